"""Dependency trees over the words of one sentence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairseq_phrase.syntax.tree_arrays import dependency_depths


class DependencyTree:
    """The validated dependency tree of one sentence.

    A parser may split a line into several sentences and return several roots. Later roots then become
    dependents of the first (``docs/models/structural_positions.md``): a line always has one tree.

    Args:
        heads: the head of every word. Shape: ``(words,)``, word indices from 0; a root is its own
            head.

    Attributes:
        heads: as given, but with one root. Shape: ``(words,)``, int64, word indices from 0.

    Raises:
        ValueError: a head is out of range, or the heads contain a cycle.
    """

    def __init__(self, heads: Sequence[int] | np.ndarray):
        self.heads = np.array(heads, dtype=np.int64).reshape(-1)
        words = np.arange(len(self.heads))
        outside = (self.heads < 0) | (self.heads >= len(words))
        if outside.any():
            word = int(outside.argmax())
            raise ValueError(
                f"word {word} has head {self.heads[word]}: expected 0 to {len(words) - 1}, "
                "and a root to be its own head (words count from 0)"
            )
        self._join_roots()
        self._depths: np.ndarray | None = self._count_edges_to_root()

    @classmethod
    def from_valid(cls, heads: np.ndarray) -> DependencyTree:
        """Make a tree from heads that are known to be in range and without a cycle.

        Args:
            heads: the head of every word; a root is its own head. There may be several roots. The array
                becomes part of the tree. Shape: ``(words,)``, int64, word indices from 0.
        """
        tree = object.__new__(cls)
        tree.heads = heads
        tree._join_roots()
        tree._depths = None
        return tree

    def _join_roots(self) -> None:
        roots = np.flatnonzero(self.heads == np.arange(len(self.heads)))
        if len(roots) > 1:
            self.heads[roots[1:]] = roots[0]

    def _count_edges_to_root(self) -> np.ndarray:
        depths, circling = dependency_depths(self.heads, len(self.heads))
        if circling.any():
            word = int(circling.argmax())
            for _ in self.heads:  # up from a word that may be below the cycle
                word = int(self.heads[word])
            cycle = [word]
            while (word := int(self.heads[word])) != cycle[0]:
                cycle.append(word)
            chain = " -> ".join(str(word + 1) for word in [*cycle, cycle[0]])
            raise ValueError(f"the heads of words {chain} form a cycle")
        return depths

    def __len__(self) -> int:
        return len(self.heads)

    @property
    def root(self) -> int:
        """The index of the root, from 0.

        Raises:
            ValueError: the sentence has no words.
        """
        if not len(self):
            raise ValueError("a sentence without words has no root")
        return int((self.heads == np.arange(len(self))).argmax())

    @property
    def depths(self) -> np.ndarray:
        """The number of edges from every word up to the root. Shape: ``(words,)``, int64."""
        if self._depths is None:
            self._depths = self._count_edges_to_root()
        return self._depths

    def restricted_to(self, keep: np.ndarray) -> DependencyTree:
        """Remove words; their dependents become dependents of the nearest kept ancestor.

        Args:
            keep: True for each word to keep. Shape: ``(words,)``, bool.

        Returns:
            The tree of the kept words, renumbered from 0 in their order.
        """
        heads = self.heads.copy()
        while True:
            # A removed root stays its own head. So the number of rounds is the length of the longest
            # chain of removed words.
            lifted = np.where(keep[heads], heads, heads[heads])
            if (lifted == heads).all():
                break
            heads = lifted
        indices = np.flatnonzero(keep)
        heads = np.where(keep[heads], heads, np.arange(len(self)))[indices]
        return DependencyTree(np.searchsorted(indices, heads))


def projected_bounds(tree: DependencyTree) -> tuple[np.ndarray, np.ndarray]:
    """Find the words of each subtree after the tree is made projective by lifting.

    Lifting (pseudo-projective: Nivre and Nilsson, 2005): if a word between a dependent and its head does
    not depend on that head, the dependent moves up to its head's head. *Decision*: the lowest words are
    lifted first. So each word ends under its lowest ancestor that reaches it without a gap. Of the words
    that depend on its top, a subtree keeps the longest span around the top. Nivre and Nilsson lift the
    shortest arc first. If arcs cross each other, their order may remove more from a subtree: the result
    differs for 13 of the 668 non-projective trees in UD's English EWT and PUD and German GSD and PUD.

    Returns:
        The first word of each subtree, and one past its last. A subtree that already is a span keeps
        that span. The spans nest. Shape: ``(words,)`` each, int64, word indices from 0.
    """
    heads = tree.heads.tolist()
    from_above = np.argsort(tree.depths, kind="stable").tolist()
    sizes = _sizes(heads, from_above)
    numbers = _numbered_from_above(heads, from_above, sizes)
    count = len(tree)
    starts, ends = [0] * count, [0] * count
    # For each word, the longest span found so far that starts at it (stored as the end of the span), and
    # the longest that ends with it (stored as the start).
    end_from, start_to = [0] * count, [0] * count
    by_number = [0] * count
    for word, number in enumerate(numbers):
        by_number[number] = word
    for word in reversed(by_number):  # all words below a word come before it
        lowest, highest = numbers[word], numbers[word] + sizes[word]
        start, end = word, word + 1
        while end < count and lowest < numbers[end] < highest:
            end = end_from[end]
        while start and lowest < numbers[start - 1] < highest:
            start = start_to[start - 1]
        starts[word] = start_to[end - 1] = start
        ends[word] = end_from[start] = end
    return np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)


def _sizes(heads: list[int], from_above: list[int]) -> list[int]:
    sizes = [1] * len(heads)
    for word in reversed(from_above):
        if heads[word] != word:
            sizes[heads[word]] += sizes[word]
    return sizes


def _numbered_from_above(heads: list[int], from_above: list[int], sizes: list[int]) -> list[int]:
    """Number the words: a subtree gets consecutive numbers, and its top gets the first."""
    numbers = [0] * len(heads)
    free = [0] * len(heads)  # the next number under each word
    for word in from_above:
        head = heads[word]
        if head != word:
            numbers[word] = free[head]
            free[head] += sizes[word]
        free[word] = numbers[word] + 1
    return numbers
