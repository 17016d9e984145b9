"""Segmenters: words and lines to subwords."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from functools import cached_property, lru_cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import sentencepiece

from fairseq_phrase.data.store.dictionaries import SPECIAL
from fairseq_phrase.data.subwords.protected_tokens import ProtectedTokens, Segmenter, vocabulary_of
from fairseq_phrase.errors import UserError
from fairseq_phrase.option_values import WHOLE_WORDS
from fairseq_phrase.optional_packages import load_entry, optional_packages
from fairseq_phrase.text import is_invisible, plain_spaces, read_json, require_file

# Protocol buffers merge appended content, so these bytes set two fields of a model's normalizer_spec
# (field 3) to false: add_dummy_prefix (3) and remove_extra_whitespaces (4). A word then keeps its ▁ and
# does not get another.
_KEEP_WHITE_SPACE = b"\x1a\x04\x18\x00\x20\x00"

# Options of a tokenizer's parts that add a space before a text, with values that add none.
_NO_SPACE = {
    "prepend_scheme": '"prepend_scheme": "never"',
    "add_prefix_space": '"add_prefix_space": false',
    "prepend": '"prepend": ""',
}
_ADDED_SPACE = re.compile(rf'"({"|".join(_NO_SPACE)})": ("[^"]*"|true)')

# A byte of a character that lacks a subword, as written by SentencePiece (byte_fallback).
_BYTE = "<0x[0-9A-F]{2}>"
_BYTE_PIECES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_BYTES = re.compile(rf"(?<!\S){_BYTE}(?: {_BYTE})*(?!\S)")

#: The end of a subword of subword-nmt that continues in the next one.
JOIN = "@@"


def without_position(error: RuntimeError) -> str:
    """Return SentencePiece's message without the line and the condition of its code before it."""
    return re.sub(r"^[A-Z_]+: (?:\S+\(\d+\) \[.*?\](?: |$))?", "", " ".join(str(error).split()))


class SentencePieceSegmenter:
    """A SentencePiece model that segments single words or whole lines.

    Attributes:
        vocabulary: the subwords for bytes, if any: dictionary entries that a text may lack.

    Raises:
        UserError: the file is missing or is not a SentencePiece model, or ``▁`` ends its words.
    """

    def __init__(self, model: Path):
        self.model = model
        require_file(model, "SentencePiece model")
        serialized = model.read_bytes()
        try:
            self._lines = _processor(serialized)
            self._words = _processor(serialized + _KEEP_WHITE_SPACE)
            ids = map(self._lines.piece_to_id, _BYTE_PIECES)
            self._has_bytes = all(map(self._lines.is_byte, ids))
        except RuntimeError as error:
            reason = without_position(error)
            raise UserError(
                f"{model} is not a SentencePiece model{reason and f': {reason}'}"
            ) from None
        pieces = (self._lines.id_to_piece(number) for number in range(len(self._lines)))
        marked = [piece for piece in pieces if len(piece) > 1 and "▁" in piece]
        if marked and not any(piece.startswith("▁") for piece in marked):
            raise UserError(
                f"{model} was trained with treat_whitespace_as_suffix: its ▁ ends a word, as in "
                f"'{marked[0]}', and here it begins a word: train it without"
            )
        self.vocabulary = _BYTE_PIECES if self._has_bytes else ()
        # Words repeat, so each is segmented once. A cache made here is freed with its object.
        self.segment_word = lru_cache(maxsize=1 << 18)(self._word_subwords)

    def _word_subwords(self, word: str) -> tuple[str, ...]:
        subwords = _subwords_of(self._words, word)
        if not "".join(subwords).strip("▁") or is_invisible(word.removeprefix("▁")):
            return ()
        return tuple(_unmistakable(subwords))

    def segment_line(self, line: str) -> list[str]:
        """Segment a line of raw text as SentencePiece does. White space of any kind is a space."""
        return _unmistakable(_subwords_of(self._lines, plain_spaces(line)))

    def join(self, subwords: str) -> str:
        """Join subwords to text."""
        if self._has_bytes and "<0x" in subwords:
            subwords = _BYTES.sub(_decoded, subwords)
        return subwords.replace(" ", "").replace("▁", " ").strip()


class SubwordNmtSegmenter:
    """subword-nmt's codes. The text or the parser defines the words; ``@@`` joins subwords.

    Raises:
        UserError: subword-nmt is not installed, or the file is missing or lacks codes.
    """

    def __init__(self, model: Path):
        with optional_packages("subword-nmt is not installed", "subword-nmt"):
            from subword_nmt.apply_bpe import BPE
        self.model = model
        require_file(model, "file of BPE codes")
        try:
            with open(model, encoding="utf-8") as codes:
                self._bpe: Any = BPE(codes)
        except (ValueError, IndexError, SystemExit, UnicodeDecodeError) as error:
            raise UserError(f"{model} holds no BPE codes of subword-nmt: {error}") from None
        self.segment_word = lru_cache(maxsize=1 << 18)(self._word_subwords)

    def _word_subwords(self, word: str) -> tuple[str, ...]:
        return tuple(self._segment(word.removeprefix("▁") or word))

    def segment_line(self, line: str) -> list[str]:
        """Segment a line whose words are separated by white space."""
        return [subword for word in line.split() for subword in self.segment_word("▁" + word)]

    def join(self, subwords: str) -> str:
        """Join subwords to text."""
        return f"{subwords} ".replace(f"{JOIN} ", "").rstrip()

    def _segment(self, word: str) -> list[str]:
        subwords: list[str] = self._bpe.segment_tokens([word])
        self._bpe.cache.clear()  # it would grow with the text
        if not any(map(is_mistakable, subwords)):
            return subwords
        # A subword that is one of fairseq's special tokens, or contains white space as Python defines it,
        # is split into characters.
        text = without_white_space(word)
        return [character + JOIN for character in text[:-1]] + text[-1:]


class TokenizerSegmenter:
    """A Hugging Face tokenizer, from a ``tokenizer.json``, that segments single words or lines.

    Attributes:
        vocabulary: its subwords, in the order of their numbers.
        adds_space: whether it segments the first word of a line like a word after white space.

    Raises:
        UserError: tokenizers is not installed, or the file is missing or damaged.
    """

    def __init__(self, model: Path):
        self.model = model
        require_file(model, "tokenizer")
        with optional_packages("tokenizers is not installed", "tokenizers"):
            from tokenizers import Tokenizer
        try:
            self._tokenizer = Tokenizer.from_file(str(model))
        except Exception as error:  # tokenizers raises nothing more specific
            raise UserError(f"{model} is not a tokenizer of Hugging Face: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        numbers = self._tokenizer.get_vocab()
        self.vocabulary: list[str] = sorted(numbers, key=numbers.__getitem__)
        settings = read_json(self._tokenizer.to_str())
        before = json.dumps([settings["normalizer"], settings["pre_tokenizer"]], ensure_ascii=False)
        # A subword of GPT-2, XLM-R or T5 contains the space before its word.
        self._space = " " if '"ByteLevel"' in before else "▁" if "▁" in before else ""
        # They may add a space before a text. Words without white space before them do not get it.
        without = _ADDED_SPACE.sub(lambda match: _NO_SPACE[match[1]], before)
        self.adds_space = without != before
        self._words = self._tokenizer
        if self.adds_space:
            settings["normalizer"], settings["pre_tokenizer"] = read_json(without)
            self._words = Tokenizer.from_str(json.dumps(settings))
        self.segment_word = lru_cache(maxsize=1 << 18)(self._word_subwords)

    def _word_subwords(self, word: str) -> tuple[str, ...]:
        bare = word.removeprefix("▁") or word
        subwords = self._segment(self._words, bare if bare == word else self._space + bare)
        return () if subwords == [self._space] else tuple(subwords)  # no subword is left

    def segment_line(self, line: str) -> list[str]:
        """Segment a line, without the tokens that a model expects at its start and end."""
        is_bytes = self._space == " "  # bytes encode white space of any kind
        return self._segment(self._tokenizer, line if is_bytes else plain_spaces(line))

    def _segment(self, tokenizer: Any, text: str) -> list[str]:
        return _unmistakable(tokenizer.encode(text, add_special_tokens=False).tokens)

    def join(self, subwords: str) -> str:
        """Join subwords to text."""
        decoder = self._tokenizer.decoder
        return str(decoder.decode(subwords.split())).strip() if decoder else subwords


class Gpt2Segmenter(TokenizerSegmenter):
    """GPT-2's byte-level BPE as in fairseq's BART and RoBERTa: the subwords are numbers.

    Raises:
        UserError: as in :class:`TokenizerSegmenter`.
    """

    def __init__(self, model: Path):
        super().__init__(model)
        self._symbols, self.vocabulary = self.vocabulary, []  # the training text has the entries
        self._numbers = {symbol: str(number) for number, symbol in enumerate(self._symbols)}
        # Bytes that are not printable are written as characters from 256 on.
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        unprintable = [byte for byte in range(256) if byte not in printable]
        self._bytes = {chr(byte): byte for byte in printable}
        self._bytes |= {chr(256 + number): byte for number, byte in enumerate(unprintable)}

    def _segment(self, tokenizer: Any, text: str) -> list[str]:
        return [self._numbers[symbol] for symbol in super()._segment(tokenizer, text)]

    def content(self, subword: str) -> bytes:
        """Return the bytes of a subword."""
        if not subword.isdigit() or int(subword) >= len(self._symbols):
            return subword.encode()
        return bytes(self._bytes[character] for character in self._symbols[int(subword)])

    def join(self, subwords: str) -> str:
        """Join subwords to text."""
        return b"".join(map(self.content, subwords.split())).decode(errors="replace").strip()

    def check(self, dictionary: Path, entries: Collection[str], *, of_text: bool = False) -> None:
        """Check that a dictionary has these subwords.

        Args:
            of_text: whether it may be a text's dictionary, which has only the subwords of the text.

        Raises:
            UserError: the dictionary has other subwords.
        """
        there, symbols = {entry for entry in entries if entry.isdigit()}, {*self._numbers.values()}
        symbols -= {self._numbers.get("<|endoftext|>", "")} - there  # not part of a line
        if difference := there - symbols if of_text else there ^ symbols:
            raise UserError(
                f"{dictionary} does not fit encoder.json and vocab.bpe, which have "
                f"{len(self._symbols)} subwords: {len(difference)} numbers, such as {min(difference)}, "
                "are in only one of them: give the files of one model"
            )


def innermost(segmenter: Any) -> Any:
    """Return the segmenter inside all wrappers."""
    while isinstance(segmenter, EveryWord | ProtectedTokens):
        segmenter = segmenter.segmenter
    return segmenter


class WholeWords:
    """Words that stay whole, ``--bpe none``; rare ones become ``<unk>`` in the dictionary."""

    def segment_word(self, word: str) -> tuple[str, ...]:
        """Return one word without the ``▁`` of white space before it.

        ``▁`` stays before a word that fairseq would confuse with one of its special symbols.
        """
        bare = word.removeprefix("▁") or "▁"
        return (f"▁{bare}" if is_mistakable(bare) else bare,)

    def segment_line(self, line: str) -> list[str]:
        """Split a line into words at white space."""
        return [subword for word in line.split() for subword in self.segment_word(word)]

    def join(self, subwords: str) -> str:
        """Return the words; words stay separate."""
        return subwords


class EveryWord:
    """A segmenter for labelled words: every word has at least one subword.

    A subword model may leave nothing of a word, for example of a zero-width space.
    """

    def __init__(self, segmenter: Segmenter):
        self.segmenter = segmenter
        self.vocabulary = vocabulary_of(segmenter)

    def segment_word(self, word: str) -> tuple[str, ...]:
        """Segment one word; ``▁`` if the subword model leaves nothing of it."""
        return self.segmenter.segment_word(word) or ("▁",)

    def segment_line(self, line: str) -> list[str]:
        """Segment a line, word by word."""
        words = [f"▁{word}" for word in line.split()]
        return [subword for subwords in segment_words(words, self) for subword in subwords]

    def join(self, subwords: str) -> str:
        """Join subwords to text."""
        return self.segmenter.join(subwords)


def find_segmenter(bpe: str) -> Callable[[Path], Segmenter]:
    """Return the class or function that loads a segmenter, from this or an installed package.

    Args:
        bpe: one of :data:`SEGMENTERS`, or an entry point in the group :data:`SEGMENTER_GROUP`.

    Raises:
        UserError: the name is unknown, or the segmenter cannot be imported.
    """
    installed = entry_points(group=SEGMENTER_GROUP)
    if bpe in SEGMENTERS:
        return SEGMENTERS[bpe]
    if bpe not in installed.names:
        names = ", ".join([*SEGMENTERS, *sorted(installed.names)])
        raise UserError(f"--bpe {bpe}: expected one of {names} or {WHOLE_WORDS}")
    entry = installed[bpe]
    load: Callable[[Path], Segmenter] = load_entry(
        entry, f"--bpe {bpe}: {entry.value} cannot be used"
    )
    return load


def load_segmenter(
    bpe: str,
    model: Path | None,
    protected: Sequence[str] = (),
    *,
    every_word: bool = False,
    whole_lines: bool = False,
) -> Segmenter:
    """Load a subword model.

    Args:
        bpe: as in :func:`find_segmenter`, or ``none``.
        model: its file; not used for ``none``.
        protected, whole_lines: tokens that are not segmented, as in :class:`ProtectedTokens`.
        every_word: give every word a subword, as in :class:`EveryWord`.
    """
    segmenter: Segmenter = WholeWords()
    if bpe != WHOLE_WORDS:
        assert model is not None
        segmenter = find_segmenter(bpe)(model)
    if protected:
        segmenter = ProtectedTokens(segmenter, protected, whole_lines=whole_lines)
    return EveryWord(segmenter) if every_word else segmenter


class SharedSegmenter:
    """A segmenter that each process loads, because it cannot be pickled.

    Args:
        loading: the arguments of :func:`load_segmenter`.
    """

    def __init__(self, *loading: Any, **options: Any) -> None:
        self._load = partial(load_segmenter, *loading, **options)

    @cached_property
    def loaded(self) -> Segmenter:
        """The segmenter of this process."""
        return self._load()

    def __getstate__(self) -> dict[str, Any]:
        return {"_load": self._load}


def segment_words(words: Sequence[str], segmenter: Segmenter) -> list[tuple[str, ...]]:
    """Segment the words of a line, with ``▁`` in front of words after white space."""
    first, tokenizer = words[:1], innermost(segmenter)
    if first and isinstance(tokenizer, TokenizerSegmenter):
        bare = first[0].removeprefix("▁") or first[0]
        first = [f"▁{bare}" if tokenizer.adds_space else bare]
    return [segmenter.segment_word(word) for word in (*first, *words[1:])]


def _processor(serialized: bytes) -> sentencepiece.SentencePieceProcessor:
    processor = sentencepiece.SentencePieceProcessor()
    processor.load_from_serialized_proto(serialized)
    return processor


def _subwords_of(processor: sentencepiece.SentencePieceProcessor, text: str) -> list[str]:
    try:
        return list(processor.encode(text, out_type=str))
    except (UnicodeEncodeError, TypeError, RuntimeError):  # depends on SentencePiece's version
        raise UserError(
            f"{text[:60]!a} cannot be split into subwords: expected text that UTF-8 can hold"
        ) from None


def byte_of(subword: str) -> bytes | None:
    """Return the byte that a subword of SentencePiece stands for; None for other subwords."""
    is_byte = subword.startswith("<0x") and re.fullmatch(_BYTE, subword)
    return bytes.fromhex(subword[3:5]) if is_byte else None


def _decoded(match: re.Match[str]) -> str:
    """Return the characters of consecutive bytes."""
    return bytes.fromhex("".join(subword[3:5] for subword in match[0].split())).decode(
        errors="replace"
    )


def is_mistakable(subword: str) -> bool:
    """Return whether fairseq would read a subword as a special token or split it at white space."""
    return subword in SPECIAL or subword.split() != [subword]


def without_white_space(text: str) -> list[str]:
    """Return the characters of a text without white space."""
    return [character for character in text if not character.isspace()]


def _unmistakable(subwords: list[str]) -> list[str]:
    """Split subwords that look like fairseq's special tokens or contain white space into characters."""
    if not any(map(is_mistakable, subwords)):
        return subwords
    safe = []
    for subword in subwords:
        safe += without_white_space(subword) if is_mistakable(subword) else [subword]
    return safe


#: Segmenters by ``--bpe``.
SEGMENTERS: dict[str, Callable[[Path], Segmenter]] = {
    "sentencepiece": SentencePieceSegmenter,
    "subword_nmt": SubwordNmtSegmenter,
    "huggingface": TokenizerSegmenter,
    "gpt2": Gpt2Segmenter,
}
#: The group of entry points in which installed packages offer segmenters.
SEGMENTER_GROUP = "fairseq_phrase.segmenters"


def model_name(bpe: str) -> str:
    """Return the name of ``--bpe``'s subword model in a data directory."""
    names = {"sentencepiece": "spm.model", "subword_nmt": "bpe.codes"}
    names |= dict.fromkeys(("huggingface", "gpt2"), "tokenizer.json")
    return names.get(bpe, "bpe.model")


def gpt2_file(folder: Path, output: Path) -> Path:
    """Write the tokenizer of GPT-2's ``encoder.json`` and ``vocab.bpe``.

    Raises:
        UserError: a file is missing or damaged.
    """
    files = [folder / "encoder.json", folder / "vocab.bpe"]
    for file in files:
        require_file(file, "file of GPT-2's BPE")
    with optional_packages("tokenizers is not installed", "tokenizers"):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    try:
        tokenizer = Tokenizer(models.BPE.from_file(*map(str, files)))
    except Exception as error:  # tokenizers raises nothing more specific
        raise UserError(f"{folder} has no BPE of GPT-2: {error}") from None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(output))
    return output


def tokenizer_file(folder: str) -> Path:
    """Find the file of a fast tokenizer.

    Args:
        folder: the folder of a model of transformers, or its name in transformers' cache.

    Raises:
        UserError: the tokenizer has no such file.
    """
    path = Path(folder) / "tokenizer.json"
    if not Path(folder).exists():
        try:
            from huggingface_hub import try_to_load_from_cache

            path = Path(str(try_to_load_from_cache(folder, path.name)))
        except (ImportError, ValueError):
            pass
    if not path.is_file():
        raise UserError(
            f"--bpe huggingface:{folder}: there is no tokenizer.json, without which a tokenizer does not "
            "know which word each token belongs to (word_ids): save a fast tokenizer there "
            "(AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER); transformers has none for "
            "Marian: convert its source.spm)"
        )
    return path
