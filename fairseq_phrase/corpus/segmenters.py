"""Words and lines to subwords."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import sentencepiece

from fairseq_phrase.choices import WHOLE_WORDS
from fairseq_phrase.corpus.special_pieces import is_mistakable, without_white_space
from fairseq_phrase.corpus.subword_nmt import SubwordNmtSegmenter
from fairseq_phrase.errors import UserError
from fairseq_phrase.text import require_file

# Protocol buffers merge what is appended, so these bytes set two fields of a model's
# normalizer_spec (field 3): add_dummy_prefix (3) and remove_extra_whitespaces (4), both to false. A
# word then keeps its own ▁ and gets no other.
_KEEP_WHITE_SPACE = b"\x1a\x04\x18\x00\x20\x00"


class Segmenter(Protocol):
    """Cuts words, and lines, into subwords."""

    def word_pieces(self, word: str) -> tuple[str, ...]:
        """Cut one word, with ``▁`` in front if white space precedes it in its line."""
        ...

    def line_pieces(self, line: str) -> list[str]:
        """Cut a line."""
        ...


class SentencePieceSegmenter:
    """A SentencePiece model that cuts words one at a time, or whole lines.

    Args:
        model: the model's file.

    Raises:
        UserError: the file is missing or is no SentencePiece model.
    """

    def __init__(self, model: Path):
        self.model = model
        require_file(model, "SentencePiece model")
        serialized = model.read_bytes()
        try:
            self._lines = _processor(serialized)
            self._words = _processor(serialized + _KEEP_WHITE_SPACE)
        except RuntimeError as error:
            raise UserError(f"{model} is no SentencePiece model: {error}") from None
        # Words repeat, so each is cut once. The cache is made here so that it is freed with its object.
        self.word_pieces = lru_cache(maxsize=1 << 18)(self._word_pieces)

    def _word_pieces(self, word: str) -> tuple[str, ...]:
        """Cut one word.

        Args:
            word: the word, with ``▁`` in front if white space precedes it.

        Returns:
            Its pieces; none if the model's normal form of it is only white space.
        """
        pieces = _pieces(self._words, word)
        if not "".join(pieces).strip("▁"):
            return ()
        return tuple(_unmistakable(pieces))

    def line_pieces(self, line: str) -> list[str]:
        """Cut a line of raw text, as SentencePiece does."""
        return _unmistakable(_pieces(self._lines, line))


class WholeWords:
    """Words that stay whole, ``--bpe none``; rare ones become ``<unk>`` in the dictionary."""

    def word_pieces(self, word: str) -> tuple[str, ...]:
        """Return one word without the ``▁`` of white space before it.

        ``▁`` stays before a word that fairseq would take for one of its special symbols.
        """
        bare = word.removeprefix("▁") or "▁"
        return (f"▁{bare}" if is_mistakable(bare) else bare,)

    def line_pieces(self, line: str) -> list[str]:
        """Cut a line into its words at white space."""
        return [piece for word in line.split() for piece in self.word_pieces(word)]


class EveryWord:
    """Subwords of words that have labels: every word has a subword.

    A subword model may leave nothing of a word, for example of a zero-width space.

    Args:
        segmenter: cuts words.
    """

    def __init__(self, segmenter: Segmenter):
        self.segmenter = segmenter

    def word_pieces(self, word: str) -> tuple[str, ...]:
        """Cut one word; ``▁`` if the subword model leaves nothing of it."""
        return self.segmenter.word_pieces(word) or ("▁",)

    def line_pieces(self, line: str) -> list[str]:
        """Cut a line, word by word."""
        return [piece for word in line.split() for piece in self.word_pieces(f"▁{word}")]


def load_segmenter(bpe: str, model: Path | None) -> Segmenter:
    """Load a subword model.

    Args:
        bpe: one of :data:`SEGMENTERS`, or ``none``.
        model: its file; not used for ``none``.

    Raises:
        UserError: it is missing or has another kind, or its library is not installed.
    """
    if bpe == WHOLE_WORDS:
        return WholeWords()
    assert model is not None
    return SEGMENTERS[bpe](model)


def _processor(serialized: bytes) -> sentencepiece.SentencePieceProcessor:
    processor = sentencepiece.SentencePieceProcessor()
    processor.load_from_serialized_proto(serialized)
    return processor


def _pieces(processor: sentencepiece.SentencePieceProcessor, text: str) -> list[str]:
    try:
        return processor.encode(text, out_type=str)
    except (UnicodeEncodeError, TypeError, RuntimeError):  # depends on SentencePiece's version
        raise UserError(
            f"{text[:60]!a} cannot be cut into subwords: expected text that UTF-8 can hold"
        ) from None


def _unmistakable(pieces: list[str]) -> list[str]:
    """Cut pieces that look like fairseq's special tokens, or hold white space, into characters."""
    if not any(map(is_mistakable, pieces)):
        return pieces
    cut = []
    for piece in pieces:
        cut += without_white_space(piece) if is_mistakable(piece) else [piece]
    return cut


#: What cuts words into subwords, by ``--bpe``.
SEGMENTERS: dict[str, Callable[[Path], Segmenter]] = {
    "sentencepiece": SentencePieceSegmenter,
    "subword_nmt": SubwordNmtSegmenter,
}
#: What a data directory calls its subword model.
MODEL_NAMES = {"sentencepiece": "spm.model", "subword_nmt": "bpe.codes"}
