"""Constituency trees over the words of one sentence."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from fairseq_phrase.syntax.dependency import DependencyTree, projected_bounds
from fairseq_phrase.syntax.sentence_boundaries import sentence_trees
from fairseq_phrase.syntax.tree_arrays import (
    constituent_depths,
    constituent_parents,
)

#: Label of the extra root over several sentences on one line.
ROOT_LABEL = "ROOT"
_SHOWN = 200  # number of characters of brackets in a tree's representation


class ConstituencyTree:
    """The validated constituents of one sentence: n-ary and labelled; there may be several trees.

    Preterminals are not constituents: they are the words' tags. A word may be outside all constituents,
    and a sentence may have no constituents.

    Args:
        spans: the words of each constituent, in any order. Of two constituents with the same words, the
            child comes before its parent. Shape: ``(constituents, 2)``, half-open ``[start, end)``, word
            indices from 0.

    Attributes:
        spans: the same in post-order: children before parents, left before right.
            Shape: ``(constituents, 2)``, int64, half-open.
        labels: the labels in that order.

    Raises:
        ValueError: a span is empty or out of range, two spans cross, or a label is empty or contains
            white space.
    """

    def __init__(
        self, spans: Sequence[Sequence[int]] | np.ndarray, labels: Sequence[str], num_words: int
    ) -> None:
        try:
            pairs = np.array(spans, dtype=np.int64).reshape(-1, 2)
        except OverflowError:
            raise ValueError("a constituent reaches beyond any sentence") from None
        if len(pairs) != len(labels):
            raise ValueError(f"{len(pairs)} constituents, but {len(labels)} labels")
        order = _post_order(pairs)
        self.spans: np.ndarray = pairs[order]
        self.labels: list[str] = [labels[index] for index in order.tolist()]
        self.num_words = num_words
        self._validate()

    def _validate(self) -> None:
        open_spans: list[tuple[int, int]] = []  # spans without a parent so far, left to right
        for (start, end), label in zip(self.spans.tolist(), self.labels, strict=True):
            if not 0 <= start < end <= self.num_words:
                raise ValueError(
                    f"constituent '{label}' covers words {start} to {end - 1}: expected at least "
                    f"one word out of 0 to {self.num_words - 1} (words count from 0)"
                )
            if label.split() != [label]:
                raise ValueError(
                    f"the constituent over words {start} to {end - 1} has the label '{label}': "
                    "expected one without white space"
                )
            while open_spans and open_spans[-1][0] >= start:
                open_spans.pop()
            if open_spans and open_spans[-1][1] > start:
                left, right = open_spans[-1]
                raise ValueError(
                    f"constituents cross: words {left} to {right - 1} and {start} to {end - 1} "
                    "(words count from 0)"
                )
            open_spans.append((start, end))

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        """Show the brackets over the words' indices: ``<ConstituencyTree (S (NP 0 1) 2), 3 words>``."""
        before: list[list[str]] = [[] for _ in range(self.num_words)]
        closing = [""] * self.num_words
        for (start, end), label in zip(self.spans.tolist(), self.labels, strict=True):
            before[start].append(f"({label} ")
            closing[end - 1] += ")"
        brackets = " ".join(
            # Parents come after their children, so the last of the brackets is the outermost.
            f"{''.join(reversed(labels))}{word}{closed}"
            for word, (labels, closed) in enumerate(zip(before, closing, strict=True))
        )
        text = brackets if len(brackets) <= _SHOWN else f"{brackets[:_SHOWN]}…"
        return f"<{type(self).__name__} {text}, {self.num_words} words>"

    def __eq__(self, other: object) -> bool:
        """Whether two trees have the same constituents over the same number of words."""
        if not isinstance(other, ConstituencyTree):
            return NotImplemented
        return (
            self.num_words == other.num_words
            and self.labels == other.labels
            and np.array_equal(self.spans, other.spans)
        )

    __hash__ = None  # type: ignore[assignment]  # it holds an array

    @property
    def parents(self) -> np.ndarray:
        """The parent of each constituent; -1 without a parent. Shape: ``(constituents,)``, int64."""
        return constituent_parents(self.spans[:, 0], np.zeros(len(self), dtype=np.int64))

    @property
    def children(self) -> list[list[int]]:
        """The children of each constituent, left to right, and at the end the nodes without a parent.

        Constituent ``k`` is ``k``, word ``w`` is ``-1 - w``.
        """
        children = []
        waiting: list[
            tuple[int, int]
        ] = []  # the first word of each node without a parent, and the node
        num_words = 0
        for node, (start, end) in enumerate([*self.spans.tolist(), (0, self.num_words)]):
            waiting += [(word, -1 - word) for word in range(num_words, end)]
            num_words = max(num_words, end)
            first = bisect_left(waiting, (start,))
            children.append([child for _, child in waiting[first:]])
            waiting[first:] = [(start, node)]
        return children

    @property
    def depths(self) -> np.ndarray:
        """The number of constituents above each one. Shape: ``(constituents,)``, int64."""
        return constituent_depths(self.parents)

    def collapsed(self) -> ConstituencyTree:
        """Collapse unary chains: of constituents over the same words, keep the lowest."""
        keep = np.ones(len(self), dtype=bool)
        keep[1:] = (self.spans[1:] != self.spans[:-1]).any(axis=1)
        return self if keep.all() else self._subset(self.spans, keep, self.num_words)

    def with_lower(self, spans: np.ndarray, labels: Sequence[str]) -> ConstituencyTree:
        """Add constituents; each is below the existing ones over the same words.

        Args:
            spans: their words, in any order. They must not cross the existing constituents.
                Shape: ``(added, 2)``, half-open.
        """
        if not len(labels):
            return self
        return self._sorted(
            np.concatenate([spans, self.spans]), [*labels, *self.labels], self.num_words
        )

    def restricted_to(self, keep: np.ndarray) -> ConstituencyTree:
        """Remove words, and the constituents that lose all their words.

        Args:
            keep: True for each word to keep. Shape: ``(words,)``, bool.

        Returns:
            The tree over the kept words, renumbered from 0 in their order. A constituent that now has
            the same words as its only child stays, as a unary chain.
        """
        before = np.concatenate([[0], np.cumsum(keep)])
        spans = before[self.spans].reshape(-1, 2)
        return self._subset(spans, spans[:, 0] < spans[:, 1], int(before[-1]))

    def _subset(self, spans: np.ndarray, selection: np.ndarray, num_words: int) -> ConstituencyTree:
        labels = [label for label, stays in zip(self.labels, selection, strict=True) if stays]
        return self._sorted(spans[selection], labels, num_words)

    @classmethod
    def _sorted(cls, spans: np.ndarray, labels: Sequence[str], num_words: int) -> ConstituencyTree:
        """Make a tree of constituents that are known to be valid."""
        tree = object.__new__(cls)
        order = _post_order(spans)
        tree.spans = spans[order]
        tree.labels = [labels[index] for index in order.tolist()]
        tree.num_words = num_words
        return tree

    @classmethod
    def joined(cls, trees: Sequence[ConstituencyTree]) -> ConstituencyTree:
        """Join the trees of a line's sentences, in order, under one extra root if there are several."""
        if len(trees) == 1:
            return trees[0]
        spans, labels, start = [], [], 0
        for tree in trees:
            spans.append(tree.spans + start)
            labels += tree.labels
            start += tree.num_words
        if start:
            spans.append(np.array([[0, start]]))
            labels.append(ROOT_LABEL)
        return cls(np.concatenate(spans) if spans else [], labels, start)

    @classmethod
    def flat(cls, num_words: int) -> ConstituencyTree:
        """Return a tree of one constituent over all words, as a substitute for a missing parse."""
        if not num_words:
            return cls([], [], 0)
        return cls([(0, num_words)], [ROOT_LABEL], num_words)

    @classmethod
    def from_dependencies(
        cls, tree: DependencyTree, tags: Sequence[str], relations: Sequence[str] = ()
    ) -> ConstituencyTree:
        """Make a constituent from every head and all words below it.

        If a word's subtree is not contiguous, the tree is first made projective by lifting
        (:func:`fairseq_phrase.syntax.dependency.projected_bounds`). Source:
        ``docs/models/tree_attention.md``, "Trees".

        Args:
            tags: the words' parts of speech; a constituent's label is the tag of its head.
            relations: the words' relations, which show the sentences of a line
                (:func:`fairseq_phrase.syntax.sentence_boundaries.sentence_trees`); their trees become
                children of one constituent ``ROOT``. Without relations the line is one sentence.

        Returns:
            The constituents. A word without dependents does not make a constituent.
        """
        if relations:
            parts, start = [], 0
            for part in sentence_trees(tree, relations):
                parts.append(cls.from_dependencies(part, tags[start : start + len(part)]))
                start += len(part)
            return cls.joined(parts)
        starts, ends = projected_bounds(tree)
        heads = np.flatnonzero(ends - starts > 1)
        spans = np.stack([starts[heads], ends[heads]], axis=1)
        return cls._sorted(spans, [tags[head] for head in heads.tolist()], len(tree))


def _post_order(spans: np.ndarray) -> np.ndarray:
    """Sort stably by the end, then by length, shorter first. Shape: ``(constituents,)``."""
    return np.lexsort((-spans[:, 0], spans[:, 1]))
