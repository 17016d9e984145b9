"""Lines of subwords, spelled as text: each subword starts at a character."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from fairseq_phrase.data.subwords.protected_tokens import Segmenter
from fairseq_phrase.data.subwords.segmenters import (
    JOIN,
    byte_of,
    innermost,
)
from fairseq_phrase.option_values import WHOLE_WORDS
from fairseq_phrase.syntax.alignment import ends_in_text
from fairseq_phrase.syntax.spellings import unescape_moses, unescaped_offsets


@dataclass(frozen=True)
class SegmentedLine:
    """A line of subwords.

    Attributes:
        text: the text that they spell, for a parser. It has at least one word if the line has a subword.
        starts: the offset in the text of each subword's first character that is not a space, in
            ascending order.
        tokens: protected tokens, with the index of the subword before which each stands.
    """

    subwords: list[str]
    text: str
    starts: list[int]
    tokens: Sequence[tuple[int, str]] = ()

    @classmethod
    def from_sentencepiece(cls, subwords: list[str]) -> SegmentedLine:
        """Spell a line of SentencePiece, where ``▁`` is a space."""
        contents = list(map(byte_of, subwords))
        if any(contents):
            texts = (subword.replace("▁", " ").encode() for subword in subwords)
            pairs = zip(contents, texts, strict=True)
            return cls.from_bytes(subwords, [byte or text for byte, text in pairs])
        spelled = "".join(subwords)
        text = spelled.replace("▁", " ").strip()
        if not text:
            text = spelled  # only ▁, which must belong to a word
            return cls(subwords, text, _starts(subwords))
        first = len(spelled) - len(spelled.lstrip("▁"))
        starts = (
            start + len(subword) - len(subword.lstrip("▁"))
            for start, subword in zip(_starts(subwords), subwords, strict=True)
        )
        return cls(subwords, text, [max(0, start - first) for start in starts])

    @classmethod
    def from_bytes(cls, subwords: list[str], contents: Sequence[bytes]) -> SegmentedLine:
        """Spell a line of byte-level BPE, whose subwords may begin within a character.

        Args:
            contents: the bytes of each subword.
        """
        spelled = b"".join(contents)
        text = spelled.decode(errors="replace")
        if text.strip() and len(text.encode()) == len(spelled):
            first = len(text) - len(text.lstrip())
            # The character of each byte: bytes that continue a character begin with the bits 10.
            characters = list(accumulate((byte & 0xC0) != 0x80 for byte in spelled))
            starts = []
            for start, content in zip(_starts(contents), contents, strict=True):
                space = len(content) - len(content.lstrip(b" ")) if content.strip(b" ") else 0
                starts.append(max(0, characters[start + space] - 1 - first))
            return cls(subwords, text.strip(), starts)
        return cls(subwords, " ".join(subwords), _starts([f"{subword} " for subword in subwords]))

    @classmethod
    def from_subword_nmt(
        cls, subwords: list[str], *, unescape: bool = False, whole_words: bool = False
    ) -> SegmentedLine:
        """Spell a line of subword-nmt, where ``@@`` joins a subword to the next.

        Args:
            whole_words: each subword is a word, also with ``@@``.
            unescape: replace Moses' escapes by their characters; a subword that starts within an escape
                starts at its character.
        """
        words: list[str] = []
        starts: list[int] = []
        offset_of_word = 0
        for of_word in [[word] for word in subwords] if whole_words else joined_subwords(subwords):
            parts = of_word if whole_words else [part.removesuffix(JOIN) for part in of_word]
            if not any(parts):
                parts = of_word  # only @@, which must belong to a word
            word, offsets = "".join(parts), _starts(parts)
            if unescape and (plain := unescape_moses(word)) != word:
                plain_offsets = unescaped_offsets(word)
                word, offsets = plain, [plain_offsets[offset] for offset in offsets]
            words.append(word)
            starts += [offset_of_word + offset for offset in offsets]
            offset_of_word += len(word) + 1
        return cls(subwords, " ".join(words), starts)

    def subwords_of(self, words: Sequence[str]) -> list[list[str]]:
        """Assign each subword to its word.

        A subword across words belongs to the first of them. A subword that is only a space belongs to
        the next word.

        Returns:
            The subwords of each word; a word may have none.
        """
        ends = ends_in_text(words, self.text)
        # The first word that ends after the subword's start, or the last word.
        owners = np.searchsorted(ends[:-1], self.starts, side="right")
        bounds = np.searchsorted(owners, np.arange(len(ends) + 1))
        return [self.subwords[start:end] for start, end in pairwise(bounds)]


def spell(
    subwords: Sequence[str],
    bpe: str,
    segmenter: Segmenter | None,
    protected: Collection[str] = (),
    *,
    unescape: bool = False,
) -> SegmentedLine:
    """Spell a line of subwords.

    Args:
        bpe: the segmentation of the line.
        segmenter: its subword model, needed only for GPT-2's BPE.
        protected: tokens that are not part of the text.
        unescape: as in :meth:`SegmentedLine.from_subword_nmt`.
    """
    of_text: list[str] = []
    tokens = []
    for subword in subwords:
        if subword in protected:
            tokens.append((len(of_text), subword))
        else:
            of_text.append(subword)
    if bpe in ("subword_nmt", WHOLE_WORDS):
        line = SegmentedLine.from_subword_nmt(
            of_text, unescape=unescape, whole_words=bpe == WHOLE_WORDS
        )
    elif bpe == "gpt2":
        line = SegmentedLine.from_bytes(of_text, list(map(innermost(segmenter).content, of_text)))
    else:
        line = SegmentedLine.from_sentencepiece(of_text)
    return replace(line, tokens=tokens)


def _starts(parts: Sequence[str] | Sequence[bytes]) -> list[int]:
    """Return the start of each part in the concatenation."""
    return list(accumulate(map(len, parts), initial=0))[:-1]


def joined_subwords(subwords: Sequence[str]) -> list[list[str]]:
    """Group the subwords of subword-nmt by words."""
    words: list[list[str]] = []
    joined = False
    for subword in subwords:
        if joined:
            words[-1].append(subword)
        else:
            words.append([subword])
        joined = subword.endswith(JOIN)
    return words
