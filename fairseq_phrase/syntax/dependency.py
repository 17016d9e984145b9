"""Dependency trees over the words of one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


class DependencyTree:
    """The dependency tree of one sentence, validated.

    A parser may take a line for several sentences and give it several roots: those after the first
    hang off the first (``spec/structural_positions.md``), so that a line always has one tree.

    Args:
        heads: the head of every word. Shape: ``(words,)``, word indices from 0; a root is its own
            head.

    Attributes:
        heads: as given, but with one root. Shape: ``(words,)``, int64, word indices from 0.

    Raises:
        ValueError: a head is out of range, or the heads hold a cycle.
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
        roots = words[self.heads == words]
        self._depths = self._count_edges_to_root()
        if len(roots) > 1:
            later = np.isin(self._top, roots[1:])
            self.heads[roots[1:]] = roots[0]
            self._depths[later] += 1

    def _count_edges_to_root(self) -> np.ndarray:
        """Depths by pointer doubling: O(n log n) and no Python loop over words."""
        depths = (self.heads != np.arange(len(self.heads))).astype(np.int64)
        ancestors = self.heads.copy()
        for _ in range(math.ceil(math.log2(max(len(self.heads), 2)))):
            depths += depths[ancestors]
            ancestors = ancestors[ancestors]
        circling = self.heads[ancestors] != ancestors
        if circling.any():
            word = int(circling.argmax())
            cycle = [word := int(ancestors[word])]
            while (word := int(self.heads[word])) != cycle[0]:
                cycle.append(word)
            chain = " -> ".join(map(str, [*cycle, cycle[0]]))
            raise ValueError(f"the heads of words {chain} form a cycle (words count from 0)")
        self._top = ancestors
        return depths

    def __len__(self) -> int:
        """Return the number of words."""
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
        """Edges from every word up to the root. Shape: ``(words,)``, int64; 0 at the root."""
        return self._depths

    def restricted_to(self, keep: np.ndarray) -> DependencyTree:
        """Leave words out: their dependents hang off the nearest ancestor that stays.

        Args:
            keep: True for each word that stays. Shape: ``(words,)``, bool.

        Returns:
            The tree of the words that stay, renumbered from 0 in their order.
        """
        heads = self.heads.copy()
        while True:
            # A removed root stays its own head, so the loop ends after as many rounds as removed
            # words stand in a row above one another.
            lifted = np.where(keep[heads], heads, heads[heads])
            if (lifted == heads).all():
                break
            heads = lifted
        kept = np.flatnonzero(keep)
        heads = np.where(keep[heads], heads, np.arange(len(self)))[kept]
        return DependencyTree(np.searchsorted(kept, heads))
