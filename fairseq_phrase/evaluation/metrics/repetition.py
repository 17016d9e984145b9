"""Rates of repetition in a text, the usual fault of decoders without attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fairseq_phrase.evaluation.metrics.interface import Statistics

LONGEST = 4  # words of the longest n-gram
IMMEDIATE = "rep-now"
NAMES = (*(f"rep-{size}" for size in range(1, LONGEST + 1)), IMMEDIATE)
NOTE = (
    "rep-n: share of n-grams, in percent, that the same sentence has before (Welleck et al., 2020). "
    f"{IMMEDIATE}: share of words that end an immediate repetition, which is one to {LONGEST} words that "
    "equal those right before them."
)


def repeated_ngrams(words: Sequence[str], size: int) -> tuple[int, int]:
    """Count a sentence's n-grams that occur earlier in it, and all of its n-grams.

    Examples:
        >>> repeated_ngrams("a man and a man".split(), 2)
        (1, 4)
    """
    ngrams = [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]
    return len(ngrams) - len(set(ngrams)), len(ngrams)


def immediate_repetitions(words: Sequence[str]) -> tuple[int, int]:
    """Count the words that end a directly repeated sequence of one to four words, and all words.

    Examples:
        >>> immediate_repetitions("a dog a dog runs runs".split())  # the second dog, and the second runs
        (2, 6)
    """
    found = sum(
        any(
            words[end - size : end] == words[end - 2 * size : end - size]
            for size in range(1, min(LONGEST, end // 2) + 1)
        )
        for end in range(2, len(words) + 1)
    )
    return found, len(words)


def repetitions(
    sentences: Sequence[str], tokenize: Callable[[str], str]
) -> dict[str, Statistics]:  # fmt: skip
    """Count repetitions.

    Args:
        tokenize: puts white space between words.

    Returns:
        By name of the rate, repeated and all items of each sentence. Shape of each: (sentences, 2).
    """
    lines = [tokenize(sentence).split() for sentence in sentences]
    counts = {
        f"rep-{size}": [repeated_ngrams(words, size) for words in lines]
        for size in range(1, LONGEST + 1)
    }
    counts[IMMEDIATE] = [immediate_repetitions(words) for words in lines]
    return {
        name: np.array(pairs, dtype=np.float64).reshape(-1, 2) for name, pairs in counts.items()
    }
