"""Projective dependency trees: those in which every subtree is a span of words."""

from __future__ import annotations

import numpy as np

from fairseq_phrase.syntax.dependency import DependencyTree


def subtree_bounds(tree: DependencyTree) -> tuple[np.ndarray, np.ndarray]:
    """Find how far each word's subtree reaches.

    Args:
        tree: a dependency tree.

    Returns:
        The first word of each subtree, and one past its last.
        Shape: ``(words,)`` each, int64, word indices from 0.
    """
    starts, lasts = list(range(len(tree))), list(range(len(tree)))
    heads = tree.heads.tolist()
    for word in np.argsort(-tree.depths, kind="stable").tolist():
        head = heads[word]
        starts[head] = min(starts[head], starts[word])
        lasts[head] = max(lasts[head], lasts[word])
    return np.array(starts, dtype=np.int64), np.array(lasts, dtype=np.int64) + 1


def subtree_sizes(tree: DependencyTree) -> np.ndarray:
    """Count the words of each subtree, its top included. Shape: ``(words,)``, int64."""
    sizes = [1] * len(tree)
    heads = tree.heads.tolist()
    for word in np.argsort(-tree.depths, kind="stable").tolist():
        if heads[word] != word:
            sizes[heads[word]] += sizes[word]
    return np.array(sizes, dtype=np.int64)


def is_projective(tree: DependencyTree) -> bool:
    """Whether every subtree is a span of words."""
    starts, ends = subtree_bounds(tree)
    return bool((ends - starts == subtree_sizes(tree)).all())


def projective(tree: DependencyTree) -> DependencyTree:
    """Lift arcs until the tree is projective (pseudo-projective: Nivre and Nilsson, 2005).

    An arc is not projective if a word between its ends does not depend on its head. The dependent
    of every such arc moves up to its head's head, all at once, until there is none. (A lifted arc
    never makes another one projective, so none is lifted in vain.)

    Args:
        tree: any dependency tree.

    Returns:
        A projective tree over the same words, with the same root; the tree itself if it is one.
    """
    while not is_projective(tree):
        heads = tree.heads
        crossing = _arcs_not_projective(tree)
        tree = DependencyTree(np.where(crossing, heads[heads], heads))
    return tree


def _arcs_not_projective(tree: DependencyTree) -> np.ndarray:
    """Whether a word between a word and its head does not depend on the head. ``(words,)``, bool."""
    # Numbered from above, a subtree's words have consecutive numbers, whatever their places.
    first = _numbered_from_above(tree)
    last = first + subtree_sizes(tree) - 1
    lowest, highest = _range_extrema(first)
    words = np.arange(len(tree))
    left, right = np.minimum(words, tree.heads), np.maximum(words, tree.heads)
    outside = (lowest(left, right) < first[tree.heads]) | (highest(left, right) > last[tree.heads])
    return outside & (words != tree.heads)


def _numbered_from_above(tree: DependencyTree) -> np.ndarray:
    """Number the words depth first, a head before its dependents. Shape: ``(words,)``, int64."""
    heads, sizes = tree.heads.tolist(), subtree_sizes(tree).tolist()
    numbers = np.zeros(len(tree), dtype=np.int64)
    free = [0] * len(tree)  # the next number under each word
    for word in np.argsort(tree.depths, kind="stable").tolist():
        head = heads[word]
        if head != word:
            numbers[word] = free[head]
            free[head] += sizes[word]
        free[word] = int(numbers[word]) + 1
    return numbers


def _range_extrema(values: np.ndarray):
    """Prepare minima and maxima of ranges ``[left, right]`` in constant time each (sparse table)."""
    minima, maxima = [values], [values]
    while 2 * (width := 1 << (len(minima) - 1)) <= len(values):
        minima.append(np.minimum(minima[-1][:-width], minima[-1][width:]))
        maxima.append(np.maximum(maxima[-1][:-width], maxima[-1][width:]))

    def over(levels: list[np.ndarray], choose):
        table = np.zeros((len(levels), len(values)), dtype=np.int64)
        for level, row in enumerate(levels):
            table[level, : len(row)] = row

        def extremum(left: np.ndarray, right: np.ndarray) -> np.ndarray:
            level = np.log2(right - left + 1).astype(np.int64)
            return choose(table[level, left], table[level, right - (1 << level) + 1])

        return extremum

    return over(minima, np.minimum), over(maxima, np.maximum)
