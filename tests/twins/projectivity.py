"""Whether a dependency tree is projective."""

from __future__ import annotations

from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.projectivity import projected_bounds, subtree_sizes


def is_projective(tree: DependencyTree) -> bool:
    """Whether every subtree is a span of words.

    Args:
        tree: any dependency tree.
    """
    starts, ends = projected_bounds(tree)
    return bool((ends - starts == subtree_sizes(tree)).all())
