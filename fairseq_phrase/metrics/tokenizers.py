"""sacrebleu's tokenizers: the tokenizer of each language, and the texts that 13a does not fit."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.utils import SACREBLEU_DIR

from fairseq_phrase.errors import UserError

DEFAULT = "13a"  # sacrebleu's, for text with spaces between words

# Other codes of the languages for which sacrebleu has a tokenizer.
_OTHER_CODES = {"zho": "zh", "chi": "zh", "cmn": "zh", "yue": "zh", "wuu": "zh", "lzh": "zh",
                "jpn": "ja", "kor": "ko"}  # fmt: skip
# Languages without spaces for which it lacks a tokenizer: Thai, Lao, Khmer, Burmese, Tibetan, Dzongkha.
_WITHOUT_SPACES = frozenset({"th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bur", "bo", "bod",
                             "tib", "dz", "dzo"})  # fmt: skip
_EXTRAS = {"ja-mecab": "'sacrebleu[ja]'", "ko-mecab": "'sacrebleu[ko]'"}
# sacrebleu downloads it. It is used only where it was downloaded before.
_FLORES = "flores200"
FLORES_FILE = Path(SACREBLEU_DIR) / "models" / "flores200sacrebleuspm"

_HAN_AND_KANA = (
    r"\u3005\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    r"\uf900-\ufaff\U00020000-\U0003ffff"
)
# Thai and Lao, Tibetan, Burmese, Khmer.
_OTHERS = r"\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\uaa60-\uaa7f"
_WIDE = re.compile(f"[{_HAN_AND_KANA}\\u3001-\\u303f\\uff01-\\uff65]")  # with their punctuation
_LETTER = re.compile(r"[^\W\d_]")
_LONGEST_WORD = 6  # mean letters; words of segmented Chinese have 1.7, of segmented Thai 4.4


def check_tokenizer(name: str, option: str = "--tokenize") -> str:
    """Return the name of a tokenizer that sacrebleu has, and load it.

    Raises:
        UserError: sacrebleu does not have it, or lacks a package or a file that it needs. The message
            names the option.
    """
    if name not in BLEU.TOKENIZERS:
        raise UserError(f"{option} {name}: expected one of {', '.join(sorted(BLEU.TOKENIZERS))}")
    try:
        BLEU(tokenize=name)
    except (ImportError, RuntimeError, OSError) as error:
        raise UserError(
            f"{option}: sacrebleu's tokenizer {name} cannot be used: {error}"
        ) from error
    return name


@cache
def tokenizer_of(language: str | None) -> tuple[str, str]:
    """Choose the tokenizer that sacrebleu's command uses for a target language.

    For languages without spaces that sacrebleu does not know, and where its own tokenizer cannot be
    loaded, this is flores200 if its model is installed, and otherwise ``char``.

    Args:
        language: a code such as ``zh``, ``zh_CN`` or ``jpn_Jpan``; None if it is unknown.

    Returns:
        The tokenizer's name, and a note if the choice differs from sacrebleu's, else an empty text.
    """
    code = re.split("[-_]", (language or "").lower())[0]
    name = BLEU._TOKENIZER_MAP.get(_OTHER_CODES.get(code, code))
    if name is None and code not in _WITHOUT_SPACES:
        return DEFAULT, ""
    reason = f"sacrebleu has no tokenizer for '{language}', which has no spaces"
    if name is not None:
        try:
            BLEU(tokenize=name)
            return name, ""
        except (ImportError, RuntimeError, OSError):
            reason = f"sacrebleu's tokenizer {name} needs pip install {_EXTRAS.get(name, name)}"
    tokenizer = _FLORES if FLORES_FILE.is_file() else "char"
    advice = "" if tokenizer == _FLORES else f", or --tokenize {_FLORES}, which is downloaded"
    return tokenizer, f"BLEU is of the tokenizer {tokenizer}: {reason}{advice}."


def is_unspaced(lines: Iterable[str]) -> bool:
    """Return whether a text is in a script without spaces between words, and has none."""
    text = " ".join(lines)
    words = re.findall(rf"[{_HAN_AND_KANA}{_OTHERS}]+", text)
    letters = sum(map(len, words))
    return 2 * letters > len(_LETTER.findall(text)) and letters > _LONGEST_WORD * len(words)


def is_han_or_kana(lines: Iterable[str]) -> bool:
    """Return whether most letters of a text are Chinese characters or Japanese syllables."""
    text = " ".join(lines)
    count = sum(map(len, re.findall(rf"[{_HAN_AND_KANA}]+", text)))
    return 2 * count > len(_LETTER.findall(text))


def has_space_between(sentence: str, following: str) -> bool:
    """Return whether a space separates two sentences: in Chinese and Japanese it does not."""
    return not (_WIDE.match(sentence[-1:]) or _WIDE.match(following))
