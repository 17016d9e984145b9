"""Words and their subwords: what must be true of a numbering, and its inverse."""

from __future__ import annotations

from itertools import pairwise

import numpy as np


def check_words(words: np.ndarray) -> None:
    """Check that words follow one another without gaps, each with at least one subword.

    Args:
        words: the word of each subword. Shape: ``(subwords,)``, word indices from 0.

    Raises:
        ValueError: the first subword is not of word 0, or a word is skipped or comes twice.
    """
    steps = np.diff(np.asarray(words, dtype=np.int64), prepend=-1)
    wrong = (steps < 0) | (steps > 1)
    if len(steps) and steps[0] != 1:
        wrong[0] = True
    if wrong.any():
        subword = int(wrong.argmax())
        before = int(words[subword - 1]) if subword else None
        raise ValueError(f"subword {subword} is of word {int(words[subword])} after word {before}")


def subwords_of_word(words: np.ndarray, count: int) -> list[range]:
    """List the subwords of each word.

    Args:
        words: the word of each subword. Shape: ``(subwords,)``, word indices from 0.
        count: the number of words.

    Returns:
        A range of subword indices from 0 for each word.
    """
    starts = np.searchsorted(words, np.arange(count + 1))
    return [range(int(start), int(end)) for start, end in pairwise(starts)]
