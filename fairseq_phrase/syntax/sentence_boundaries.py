"""Find the sentences of a line in its parse.

A parser may find several sentences in a line. Their trees become one: the roots of the later sentences
depend on the first root and keep the root's relation; constituency trees are joined under a constituent
``ROOT``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairseq_phrase.syntax.dependency import DependencyTree


def sentences_of_dependencies(heads: np.ndarray, relations: np.ndarray) -> np.ndarray:
    """Number each word's sentence by dependencies, from 0. Shape: ``(words,)``, int64.

    The root of a later sentence is a word that depends on the line's root and has the same relation as
    the line's root. A sentence is a run of words below one such word.

    Args:
        heads: the head of each word; the root is its own head. Shape: ``(words,)``, from 0.
        relations: the number of each word's relation. Shape: ``(words,)``.

    Examples:
        >>> sentences_of_dependencies(np.array([1, 1, 1, 2]), np.array([5, 9, 9, 5])).tolist()
        [0, 0, 1, 1]
    """
    above = np.where(_are_roots(heads, relations), np.arange(len(heads)), heads)
    for _ in range(len(heads).bit_length()):
        above = above[above]
    return np.cumsum(np.diff(above, prepend=above[:1]) != 0)  # the runs of equal values


def _are_roots(heads: np.ndarray, relations: np.ndarray) -> np.ndarray:
    """Whether each word is the root of a sentence. Shape: ``(words,)``, bool."""
    is_root: np.ndarray = heads == np.arange(len(heads))
    if not is_root.any():
        return is_root
    root = int(is_root.argmax())
    is_root |= (heads == root) & (relations == relations[root])
    return is_root


def sentence_trees(tree: DependencyTree, relations: Sequence[str]) -> list[DependencyTree]:
    """Split the dependency tree of a line into the trees of its sentences.

    Args:
        relations: the relation of each word, as many as words.

    Returns:
        The sentences' trees, in order. If words of different sentences alternate, a sentence would not
        be one tree; then only the given tree.
    """
    numbered = np.unique(relations, return_inverse=True)[1]
    are_roots = _are_roots(tree.heads, numbered)
    numbers = sentences_of_dependencies(tree.heads, numbered)
    heads = np.where(are_roots, np.arange(len(tree)), tree.heads)
    # A head is in another run of words: sentences alternate.
    if are_roots.sum() < 2 or (numbers[heads] != numbers).any():
        return [tree]
    ends = np.cumsum(np.bincount(numbers))
    starts = np.concatenate([[0], ends[:-1]])
    return [
        DependencyTree.from_valid(heads[start:end] - start)
        for start, end in zip(starts, ends, strict=True)
    ]
