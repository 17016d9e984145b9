"""Whether a dependency tree is projective."""

from __future__ import annotations

import numpy as np

from fairseq_phrase.syntax.dependency import DependencyTree, projected_bounds


def is_projective(tree: DependencyTree) -> bool:
    """Whether every subtree is a span of words.

    Args:
        tree: any dependency tree.
    """
    starts, ends = projected_bounds(tree)
    return bool((ends - starts == subtree_sizes(tree)).all())


def subtree_sizes(tree: DependencyTree) -> np.ndarray:
    """Count the words of each subtree, its top included. Shape: ``(words,)``, int64."""
    heads = tree.heads.tolist()
    sizes = np.ones(len(heads), dtype=np.int64)
    for word in np.argsort(-tree.depths, kind="stable").tolist():
        if heads[word] != word:
            sizes[heads[word]] += sizes[word]
    return sizes
