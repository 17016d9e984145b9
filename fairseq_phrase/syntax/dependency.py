"""Dependency trees over the words of one sentence, and positions of words in them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairseq_phrase.syntax.tree_arrays import dependency_depths

#: How the relative position of two words is computed from the tree.
RELATIONS = ("edge", "path", "distance")


class DependencyTree:
    """The validated dependency tree of one sentence.

    A parser may split a line into several sentences and return several roots. The later roots then become
    dependents of the first (``docs/models/structural_positions.md``), so that a line always has one tree.

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

    def distances(self) -> np.ndarray:
        """Count the edges between every two words.

        Returns:
            Shape: ``(words, words)``, int64; symmetric, 0 on the diagonal.
        """
        distances = np.zeros((len(self), len(self)), dtype=np.int64)
        by_depth = np.argsort(self.depths, kind="stable")
        ends = np.cumsum(np.bincount(self.depths, minlength=1))
        # To every word that is not below it, a word is one edge farther than its head is. The loop goes
        # down level by level. First come the distances of a level's words to all words above, computed
        # from their heads' distances, and by symmetry those in the other direction. From these follow
        # the distances between the words of the level.
        for level in np.split(by_depth, ends[:-1])[1:]:
            heads = self.heads[level]
            distances[:, level] = distances[heads].T + 1
            distances[level] = distances[heads] + 1
            distances[level, level] = 0
        return distances

    def relative_positions(self, relation: str = "edge") -> np.ndarray:
        """Compute the relative positions of all pairs of words, in O(n²).

        Source: *Self-Attention with Structural Position Representations*, section 3.1, eq. 6;
        ``docs/models/structural_positions.md``. With ``f`` the sign of ``i - j``:

        - ``edge``: the difference of depths for two words of one edge, else ``f`` times the sum of
          depths, which is the length of the path through the root (eq. 6 literally);
        - ``path``: the same, with the difference of depths for all words one of which is above the other;
        - ``distance``: ``f`` times the number of edges between the two.

        Args:
            relation: ``"edge"``, ``"path"`` or ``"distance"``.

        Returns:
            ``rel(i, j)`` for query word i and key word j, not clipped. Shape: ``(words, words)``,
            int64; antisymmetric.

        Raises:
            ValueError: the relation is unknown.
        """
        check_relation(relation)
        words = np.arange(len(self))
        sign = np.sign(words[:, None] - words)
        if relation == "distance":
            signed: np.ndarray = sign * self.distances()
            return signed
        difference = self.depths[:, None] - self.depths
        if relation == "path":
            in_line = self.distances() == abs(difference)
        else:
            is_head = self.heads[:, None] == words
            in_line = is_head | is_head.T
        through_root = sign * (self.depths[:, None] + self.depths)
        positions: np.ndarray = np.where(in_line, difference, through_root)
        return positions

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
        kept = np.flatnonzero(keep)
        heads = np.where(keep[heads], heads, np.arange(len(self)))[kept]
        return DependencyTree(np.searchsorted(kept, heads))


def check_relation(relation: str) -> None:
    """Check the name of a relation.

    Raises:
        ValueError: it is not one of :data:`RELATIONS`.
    """
    if relation not in RELATIONS:
        raise ValueError(f"unknown relation {relation!r}, expected one of {', '.join(RELATIONS)}")
