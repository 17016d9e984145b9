"""The tokenizer of a model of transformers, the tokens that it adds, and the numbers of subwords."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fairseq_phrase.errors import UserError
from fairseq_phrase.optional_packages import import_transformers
from fairseq_phrase.text import read_json

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary

logger = logging.getLogger(__name__)
_LANGUAGE = "--huggingface-language"


class Frame(NamedTuple):
    """The numbers of the tokens around a sentence.

    Attributes:
        before: such as ``[CLS]``, ``<s>`` or the code of a language.
        after: such as ``[SEP]`` or ``</s>``; the first is the end of the sentence.
    """

    before: list[int]
    after: list[int]


def load_tokenizer(folder: str, language: str | None) -> Any:
    """Load the tokenizer of ``--huggingface-model``, for sentences of a language.

    Args:
        language: the tokenizer's code of the language; None for the one in the tokenizer's file.

    Raises:
        UserError: the tokenizer is missing or has no ``word_ids``; or the language is missing or unknown.
    """
    transformers = import_transformers("--encoder huggingface")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # a broken file may raise any exception
        reason = str(error).strip().splitlines()[0][:200]
        raise UserError(f"--huggingface-model {folder}: no tokenizer is there ({reason})") from None
    if not tokenizer.is_fast:
        raise UserError(
            f"--huggingface-model {folder}: its tokenizer does not know which word each token belongs "
            "to (word_ids): a fast tokenizer, with tokenizer.json, is needed"
        )
    if hasattr(tokenizer, "src_lang"):
        tokenizer.src_lang = _language(tokenizer, folder, language)
    elif language:
        raise UserError(
            f"{_LANGUAGE} {language}: the tokenizer of {folder} marks no language: leave it out"
        )
    return tokenizer


def _language(tokenizer: Any, folder: str, language: str | None) -> str:
    """Return the code of the language of sentences.

    Raises:
        UserError: it is missing or unknown.
    """
    codes = [code for code in tokenizer.all_special_tokens if "_" in code]
    examples = ", ".join(codes[:3])
    if language is None:
        file = Path(folder) / "tokenizer_config.json"
        tokenizer_config = read_json(file.read_text(encoding="utf-8")) if file.is_file() else {}
        language = tokenizer_config.get("src_lang")
        if language is None:
            raise UserError(
                f"--huggingface-model {folder}: its tokenizer marks the language of a sentence: give "
                f"{_LANGUAGE}, one of {examples}, …"
            )
        logger.info("%s %s, as in %s", _LANGUAGE, language, file)
    if language not in codes:
        raise UserError(
            f"{_LANGUAGE} {language}: the tokenizer of {folder} does not know it: expected one of "
            f"{examples}, …"
        )
    return language


def read_frame(text: str) -> Frame:
    """Read the frame in a checkpoint's options.

    Raises:
        UserError: the text is not a frame.
    """
    try:
        frame = Frame(**read_json(text))
        if all(type(number) is int and number >= 0 for numbers in frame for number in numbers):
            return frame
    except (TypeError, ValueError):
        pass
    raise UserError(
        f"the option huggingface_frame of a checkpoint is {text[:80]!r}: expected the numbers of tokens, "
        '{"before": […], "after": […]}'
    )


def frame_of(tokenizer: Any) -> Frame:
    """Return the tokens that a fast tokenizer puts around a sentence."""
    # A tokenizer may drop a text. The first text that leaves a token, whose sequence is 0, will do;
    # added tokens have the sequence None.
    texts = ("a", *tokenizer.get_vocab())
    encodings = (tokenizer(text) for text in texts)
    encoding = next(e for e in encodings if 0 in e.sequence_ids(0))
    of_text = [index for index, of in enumerate(encoding.sequence_ids(0)) if of == 0]
    numbers = list(encoding["input_ids"])
    return Frame(numbers[: of_text[0]], numbers[of_text[-1] + 1 :])


def numbers_of(tokenizer: Any, frame: Frame, folder: str, dictionary: Dictionary) -> Tensor:
    """Return the model's number of each entry of a dictionary. Shape: (entries,), int64.

    A start and an end that the model lacks have the numbers -1 and 0, which are not used.

    Raises:
        UserError: the tokenizer lacks entries of the dictionary.
    """
    vocabulary = tokenizer.get_vocab()
    unknown, end = tokenizer.unk_token_id, tokenizer.eos_token_id
    special = {
        dictionary.bos(): frame.before[0] if frame.before else -1,
        dictionary.pad(): 0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        dictionary.eos(): frame.after[0] if frame.after else 0,
        dictionary.unk(): (end or 0) if unknown is None else unknown,
    }
    lacking = [
        symbol
        for symbol in dictionary.symbols[dictionary.nspecial :]
        if symbol not in vocabulary and not symbol.startswith("madeupword")
    ]
    if lacking:
        raise UserError(
            f"--huggingface-model {folder}: its tokenizer lacks {len(lacking)} entries of the source "
            f"dictionary, such as '{lacking[0]}': make the data with --bpe huggingface:{folder}"
        )
    of_symbols = (
        vocabulary.get(symbol, special[dictionary.unk()]) for symbol in dictionary.symbols
    )
    return torch.tensor([special.get(i, number) for i, number in enumerate(of_symbols)])
