"""Words and lines to subwords with their parse, in the same way for a corpus and for new text.

Either the parser's words are cut into subwords one by one, so that the word of every subword is known, or
a line was cut before it is parsed: then the words are found in its subwords by characters. Imports no
fairseq and no torch, so that worker processes start quickly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from fairseq_phrase.parsers import Unparsed
from fairseq_phrase.parsers.base import cut_at_white_space
from fairseq_phrase.parsers.moses import unescape_moses, unescaped_offsets
from fairseq_phrase.parsers.pipeline import Parse, ParsingPipeline
from fairseq_phrase.raw_text.segmenters import JOIN
from fairseq_phrase.syntax.alignment import ends_in_text
from fairseq_phrase.syntax.encoding import EncodedSentence, encode_words


class MisspeltError(ValueError):
    """Words that do not spell their text."""


@dataclass(frozen=True)
class CutLine:
    """A line's subwords.

    Attributes:
        pieces: the subwords.
        text: the text that they spell, for a parser. It has a word if the line has a subword.
        starts: the offset in the text of each subword's first character that is not a space, in
            ascending order.
    """

    pieces: list[str]
    text: str
    starts: list[int]

    @classmethod
    def from_sentencepiece(cls, pieces: list[str]) -> CutLine:
        """Spell a line of SentencePiece, where ``▁`` is a space."""
        spelled = "".join(pieces)
        text = spelled.replace("▁", " ").strip()
        if not text:
            text = spelled  # only ▁, which must belong to a word
            return cls(pieces, text, _starts(pieces))
        first = len(spelled) - len(spelled.lstrip("▁"))
        starts = (
            start + len(piece) - len(piece.lstrip("▁"))
            for start, piece in zip(_starts(pieces), pieces, strict=True)
        )
        return cls(pieces, text, [max(0, start - first) for start in starts])

    @classmethod
    def from_subword_nmt(cls, pieces: list[str], *, unescape: bool = False) -> CutLine:
        """Spell a line of subword-nmt, where ``@@`` joins a subword to the next.

        Args:
            pieces: the subwords.
            unescape: replace Moses' escapes by their characters; a subword that starts within an escape
                starts at its character.
        """
        words: list[str] = []
        starts: list[int] = []
        offset_of_word = 0
        for cut in _words(pieces):
            parts = [piece.removesuffix(JOIN) for piece in cut]
            if not any(parts):
                parts = cut  # only @@, which must belong to a word
            word, offsets = "".join(parts), _starts(parts)
            if unescape and (plain := unescape_moses(word)) != word:
                plain_offsets = unescaped_offsets(word)
                word, offsets = plain, [plain_offsets[offset] for offset in offsets]
            words.append(word)
            starts += [offset_of_word + offset for offset in offsets]
            offset_of_word += len(word) + 1
        return cls(pieces, " ".join(words), starts)

    def pieces_of(self, words: Sequence[str]) -> list[list[str]]:
        """Assign each subword to its word.

        A subword across words belongs to the first of them. A subword that is only a space belongs to
        the next word.

        Args:
            words: words that spell the text.

        Returns:
            The subwords of each word; a word may have none.

        Raises:
            MisspeltError: the words do not spell the text.
        """
        try:
            ends = ends_in_text(words, self.text)
        except ValueError as error:
            raise MisspeltError(str(error)) from None
        # The first word that ends after the subword's start, or the last word.
        owners = np.searchsorted(ends[:-1], self.starts, side="right")
        bounds = np.searchsorted(owners, np.arange(len(ends) + 1))
        return [self.pieces[start:end] for start, end in pairwise(bounds)]


def _starts(parts: Sequence[str]) -> list[int]:
    """Return where each part starts in their concatenation."""
    return list(accumulate(map(len, parts), initial=0))[:-1]


def _words(pieces: list[str]) -> list[list[str]]:
    """Group the subwords of subword-nmt by words."""
    words: list[list[str]] = []
    joined = False
    for piece in pieces:
        if joined:
            words[-1].append(piece)
        else:
            words.append([piece])
        joined = piece.endswith(JOIN)
    return words


def encode_line(
    parse: Parse, line: CutLine, pipeline: ParsingPipeline
) -> tuple[EncodedSentence, str | None]:
    """Encode a line that was cut into subwords before it was parsed.

    Args:
        parse: its parse.
        line: its subwords and the text that they spell.
        pipeline: what parsed it.

    Returns:
        The sentence, and what is wrong with its parse or None. If the parse does not spell the line, the
        sentence has flat trees over the words between white space.
    """
    if isinstance(parse, Unparsed):
        problem = parse.reason
    else:
        try:
            return encode_words(parse, line.pieces_of(parse.words)), None
        except MisspeltError as error:
            problem = f"its parse is not one of this text: {error}"
    flat = pipeline.flat(Unparsed(problem, cut_at_white_space(line.text)))
    return encode_words(flat, line.pieces_of(flat.words)), problem
