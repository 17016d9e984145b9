"""The interface of segmenters, which split text into subwords."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Segmenter(Protocol):
    """Segments words and lines into subwords."""

    def segment_word(self, word: str) -> tuple[str, ...]:
        """Segment one word, with ``▁`` in front if white space precedes it in its line."""
        ...

    def segment_line(self, line: str) -> list[str]:
        """Segment a line."""
        ...

    def join(self, subwords: str) -> str:
        """Join subwords, with a space between them, to text."""
        ...


def vocabulary_of(segmenter: Segmenter) -> Sequence[str]:
    """Return the dictionary entries that a segmenter needs and a text may lack; none if it names none."""
    vocabulary: Sequence[str] = getattr(segmenter, "vocabulary", ())
    return vocabulary
