"""Words and the subwords they are cut into."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def words_of_subwords(subwords_per_word: Sequence[int] | np.ndarray) -> np.ndarray:
    """Number each subword with the word it belongs to.

    Args:
        subwords_per_word: how many subwords each word has. Shape: ``(words,)``, all at least 1.

    Returns:
        Word indices from 0. Shape: ``(subwords,)``, int64.

    Raises:
        ValueError: a word has no subword.
    """
    counts = np.asarray(subwords_per_word, dtype=np.int64)
    if (counts < 1).any():
        raise ValueError(f"word {int((counts < 1).argmax())} has no subword (words count from 0)")
    return np.repeat(np.arange(len(counts)), counts)


def ends_in_text(words: Sequence[str], text: str) -> list[int]:
    """Find words in the text that they spell; white space is ignored.

    Args:
        words: the words; ``▁`` in a word may represent white space within it.
        text: the text.

    Returns:
        For each word, the offset after its last character.

    Raises:
        ValueError: the words do not spell the text.
    """
    reader = TextReader(text)
    ends = []
    for number, word in enumerate(words, start=1):
        if reader.take(word) is None:
            found = reader.rest[: len(word) + 10] or "the end of the line"
            raise ValueError(f"word {number} is '{word}', and the text has '{found}' there")
        ends.append(reader.place)
    if rest := reader.rest:
        raise ValueError(f"the text goes on after the last word: '{rest.strip()[:60]}'")
    return ends


class TextReader:
    """Finds words in the text that they spell, one after the other; white space between is skipped.

    Args:
        text: the text.

    Attributes:
        place: the offset after the last word.
        space_before: whether white space (or the line's start) precedes the last word.
    """

    def __init__(self, text: str):
        self._text = text
        self.place = 0
        self.space_before = True

    @property
    def rest(self) -> str:
        """The text from the next character on that is no white space."""
        return self._text[self._next_place() :]

    def take(self, *spellings: str) -> str | None:
        """Go past a word.

        Args:
            spellings: how it may be spelled; ``▁`` may represent white space within it.

        Returns:
            The first spelling that the text has here; None if it has none of them.
        """
        start = self._next_place()
        for spelling in spellings:
            end = self._end(spelling, start)
            if end is not None:
                self.space_before = start > self.place or start == 0
                self.place = end
                return spelling
        return None

    def _end(self, word: str, place: int) -> int | None:
        """Find the end of a word that begins at a place; None if it is not there."""
        if self._text.startswith(word, place):
            return place + len(word)
        for character in word:
            if self._text.startswith(character, place):
                place += 1
            elif character == "▁" and place < (after := _after_space(self._text, place)):
                place = after
            else:
                return None
        return place

    def _next_place(self) -> int:
        return _after_space(self._text, self.place)


def _after_space(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place
