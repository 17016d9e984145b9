"""Trees of many sentences at once: pure functions of their concatenated arrays.

Each function has a simple counterpart for one sentence in :mod:`fairseq_phrase.syntax`. Any of those
takes tens of microseconds for a sentence of twenty words. The functions here process millions of words
per second.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np


def dependency_depths(heads: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Count the edges from each word up to its root, by pointer doubling.

    Args:
        heads: the head of each word; a root is its own head. Shape: ``(words,)``, indices into this
            array.
        longest: the number of words in the longest sentence.

    Returns:
        The depths, and whether each word is on a cycle or below one (its depth is then undefined).
        Shape: ``(words,)`` each, int64 and bool.
    """
    depths = (heads != np.arange(len(heads))).astype(np.int64)
    ancestors = heads
    for _ in range(math.ceil(math.log2(max(longest, 2)))):
        above = depths[ancestors]
        if not above.any():
            break
        depths += above
        ancestors = ancestors[ancestors]
    return depths, heads[ancestors] != ancestors


def projective_words(heads: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """Find the words whose subtrees are spans of words.

    Args:
        heads: the head of each word; a root is its own head. Shape: ``(words,)``, indices into this
            array.
        depths: edges from each word up to its root. Shape: ``(words,)``.

    Returns:
        True at these words. A tree is projective if all its words are True. Shape: ``(words,)``, bool.
    """
    sizes = np.ones(len(heads), dtype=np.int64)
    first = np.arange(len(heads))
    last = np.arange(len(heads))
    order = np.argsort(depths, kind="stable")
    bounds = np.searchsorted(depths[order], np.arange(1, depths.max(initial=0) + 2))
    for start, end in zip(bounds[-2::-1], bounds[:0:-1], strict=True):  # the deepest words first
        words = order[start:end]
        above = heads[words]
        np.add.at(sizes, above, sizes[words])
        np.minimum.at(first, above, first[words])
        np.maximum.at(last, above, last[words])
    return last - first + 1 == sizes


def previous_smaller(values: np.ndarray, lowest: np.ndarray) -> np.ndarray:
    """Find, for each value, the nearest smaller value to its left.

    Args:
        values: any numbers. Shape: ``(values,)``
        lowest: the leftmost index to search. Shape: ``(values,)``, indices into ``values``.

    Returns:
        The index of that value; -1 if no value is smaller. Shape: ``(values,)``, int64.
    """
    places = np.arange(len(values)) - 1
    places[places < lowest] = -1
    return _nearest(places, lambda here, there: values[there] >= values[here])


def _nearest(
    places: np.ndarray, passes_over: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> np.ndarray:
    """Replace each candidate by the next one until it is accepted, or is -1.

    A place has rejected all candidates between itself and its current candidate. If it rejects this one,
    too, it continues with the candidate's own candidate. So the steps grow as in pointer doubling.

    Args:
        places: each place's nearest candidate; -1 without a candidate. Shape: ``(places,)``
        passes_over: a function of places and their candidates that tells which candidates are rejected.
    """
    searching = np.flatnonzero(places >= 0)
    while len(searching):
        searching = searching[passes_over(searching, places[searching])]
        places[searching] = places[places[searching]]
        searching = searching[places[searching] >= 0]
    return places


def constituent_parents(starts: np.ndarray, sentences: np.ndarray) -> np.ndarray:
    """Find the parent of each constituent.

    Args:
        starts: the constituents' first words, in post-order. Shape: ``(constituents,)``.
        sentences: the sentence of each constituent, in order. Shape: ``(constituents,)``.

    Returns:
        The parents; -1 without a parent. Shape: ``(constituents,)``, indices into ``starts``.
    """
    # The parent is the next constituent in post-order that does not start later.
    places = np.arange(1, len(starts) + 1)
    places[places >= np.searchsorted(sentences, sentences, side="right")] = -1
    return _nearest(places, lambda here, there: starts[there] > starts[here])


def constituent_depths(parents: np.ndarray) -> np.ndarray:
    """Count the constituents above each one.

    Args:
        parents: the parents, -1 at the top. Shape: ``(constituents,)``, indices into this array.

    Returns:
        The depths, 0 at the top. Shape: ``(constituents,)``, int64.
    """
    heads = np.where(parents < 0, np.arange(len(parents)), parents)
    return dependency_depths(heads, len(heads))[0]


def constituent_arities(parents: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Count the children of each constituent, words included.

    Args:
        parents: the parents, -1 at the top. Shape: ``(constituents,)``, indices into this array.
        lengths: the number of words of each constituent. Shape: ``(constituents,)``.
    """
    inside = parents >= 0
    below = np.bincount(parents[inside], minlength=len(parents))
    covered = np.bincount(parents[inside], lengths[inside], minlength=len(parents))
    return below + lengths - covered.astype(np.int64)
