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
    ends = []
    place = 0
    for number, word in enumerate(words, start=1):
        place = _after_space(text, place)
        end = place + len(word) if text.startswith(word, place) else _end(word, text, place)
        if end is None:
            found = text[place : place + len(word) + 10] or "the end of the line"
            raise ValueError(f"word {number} is '{word}', and the text has '{found}' there")
        ends.append(place := end)
    if _after_space(text, place) < len(text):
        rest = text[place:].strip()[:60]
        raise ValueError(f"the text goes on after the last word: '{rest}'")
    return ends


def _end(word: str, text: str, place: int) -> int | None:
    """Find the end of a word that holds white space; None if it is not there."""
    for character in word:
        if text.startswith(character, place):
            place += 1
        elif character == "▁" and place < (after := _after_space(text, place)):
            place = after
        else:
            return None
    return place


def _after_space(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place
