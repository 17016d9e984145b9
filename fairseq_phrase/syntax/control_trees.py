"""Dependency trees that know nothing of syntax, as controls for those that do.

Pham et al. (2019) got from linear "trees" what others had got from parses.
"""

from __future__ import annotations

import numpy as np

from fairseq_phrase.syntax.dependency import DependencyTree

__all__ = ["chain", "fitted", "random_tree"]


def chain(words: int) -> np.ndarray:
    """Hang each word off the next; the last is the root.

    Args:
        words: number of words.

    Returns:
        The head of every word. Shape: ``(words,)``, int64, word indices from 0; the root is its own.

    Example:
        >>> chain(4).tolist()
        [1, 2, 3, 3]
    """
    return np.minimum(np.arange(1, words + 1), max(words - 1, 0))


def random_tree(words: int, generator: np.random.Generator) -> np.ndarray:
    """Draw a tree; all trees, with all roots, are equally probable.

    Source: Aldous, *The Random Walk Construction of Uniform Spanning Trees* (1990), algorithm 2.

    Args:
        words: number of words.
        generator: draws.

    Returns:
        The head of every word. Shape: ``(words,)``, int64, word indices from 0; the root is its own.
    """
    if not words:
        return np.zeros(0, dtype=np.int64)
    # The i-th node hangs off one before it, by a number drawn from all nodes; then they get names.
    before = np.arange(words - 1)
    parents = np.r_[0, np.minimum(generator.integers(0, words, words - 1), before)]
    names = generator.permutation(words)
    heads = np.empty(words, dtype=np.int64)
    heads[names] = names[parents]
    return heads


def fitted(heads: np.ndarray, words: int) -> np.ndarray:
    """Cut a tree to its first words, or extend it by a chain.

    Words whose head is cut off hang off its nearest ancestor. An added word hangs off the next, the
    last off the tree's root.

    Args:
        heads: a tree. Shape: ``(any number of words,)``, word indices from 0; a root is its own.
        words: number of words that it is to have.

    Returns:
        The head of every word, of one root. Shape: ``(words,)``, int64.
    """
    if not len(heads):
        return chain(words)
    tree = DependencyTree(heads)
    if words <= len(heads):
        return tree.restricted_to(np.arange(len(heads)) < words).heads
    added = np.arange(len(heads) + 1, words + 1)
    added[-1] = tree.root
    return np.r_[tree.heads, added]
