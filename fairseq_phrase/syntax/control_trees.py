"""Dependency trees without syntactic information, as controls for parses.

With linear "trees", Pham et al. (2019) report the same gains as others with parses. A tree is the head
of every word, an index from 0; the root is its own head.
"""

from __future__ import annotations

import numpy as np

from fairseq_phrase.syntax.dependency import DependencyTree


def chain(words: int) -> np.ndarray:
    """Make each word depend on the next; the last one is the root. Shape: ``(words,)``, int64.

    Examples:
        >>> chain(4).tolist()
        [1, 2, 3, 3]
    """
    return np.minimum(np.arange(1, words + 1), max(words - 1, 0))


def random_tree(words: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a random tree; all trees with all roots are equally probable. Shape: ``(words,)``, int64.

    Source: Aldous, *The Random Walk Construction of Uniform Spanning Trees* (1990), algorithm 2.
    """
    if not words:
        return np.zeros(0, dtype=np.int64)
    # The i-th node becomes a dependent of an earlier node, chosen by a number drawn from all nodes. At
    # the end the nodes are assigned to words at random.
    before = np.arange(words - 1)
    parents = np.r_[0, np.minimum(rng.integers(0, words, words - 1), before)]
    names = rng.permutation(words)
    heads = np.empty(words, dtype=np.int64)
    heads[names] = names[parents]
    return heads


def fitted(heads: np.ndarray, words: int) -> np.ndarray:
    """Truncate a tree to its first words, or extend it by a chain. Shape: ``(words,)``, int64.

    A word whose head is removed becomes a dependent of the head's nearest remaining ancestor. An added
    word depends on the next word; the last added word depends on the tree's root.

    Args:
        heads: a tree. Shape: ``(any number of words,)``, word indices from 0; a root is its own head.
    """
    if not len(heads):
        return chain(words)
    tree = DependencyTree(heads)
    if words <= len(heads):
        return tree.restricted_to(np.arange(len(heads)) < words).heads
    added = np.arange(len(heads) + 1, words + 1)
    added[-1] = tree.root
    return np.concatenate([tree.heads, added])
