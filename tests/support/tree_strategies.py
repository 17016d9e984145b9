"""Random trees with their parents, from which the tests' twins are made."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st
from torch import Tensor

from fairseq_phrase.methods.common.tree_batch import TreeBatch


@dataclass
class Tree:
    """One sentence's tree: nonterminals in an order with children before parents.

    Attributes:
        leaves: number of leaves.
        parents: the parent of each nonterminal, -1 at the top.
        above: the lowest nonterminal above each leaf, -1 where there is none.
    """

    leaves: int
    parents: list[int] = field(default_factory=list)
    above: list[int] = field(default_factory=list)

    def ancestors(self, leaf: int) -> list[int]:
        """The nonterminals above a leaf, from the lowest to the root."""
        above, node = [], self.above[leaf]
        while node >= 0:
            above.append(node)
            node = self.parents[node]
        return above

    def path(self, node: int, leaf: int) -> list[int]:
        """The nonterminals from the lowest above the leaf up to the node, empty if it is not there."""
        ancestors = self.ancestors(leaf)
        return ancestors[: ancestors.index(node) + 1] if node in ancestors else []

    def under(self, node: int) -> list[int]:
        """The leaves under a node."""
        return [leaf for leaf in range(self.leaves) if node in self.ancestors(leaf)]

    def depth(self, node: int) -> int:
        """The number of nonterminals above a node."""
        parent = self.parents[node]
        return 0 if parent < 0 else 1 + self.depth(parent)

    @property
    def spans(self) -> list[list[int]]:
        under: list[list[int]] = [[] for _ in self.parents]
        for leaf in range(self.leaves):
            for node in self.ancestors(leaf):
                under[node].append(leaf)
        return [[leaves[0], leaves[-1] + 1] for leaves in under]


def grown(leaves: int, nonterminals: int, seed: int, outside: int = 0) -> Tree:
    """Grow a random n-ary tree or forest bottom-up, then give it leaves that stand under nothing.

    Unary nodes come out too: two nonterminals with the same leaves.
    """
    chance = random.Random(seed)
    tree = Tree(leaves + outside, [], [-1] * (leaves + outside))
    tops: list[tuple[str, int]] = [("leaf", leaf) for leaf in range(leaves)]
    for node in range(nonterminals):
        size = min(len(tops), chance.choice([1, 2, 2, 2, 3, 4]))
        start = chance.randrange(len(tops) - size + 1)
        for kind, child in tops[start : start + size]:
            if kind == "leaf":
                tree.above[child] = node
            else:
                tree.parents[child] = node
        tree.parents.append(-1)
        tops[start : start + size] = [("node", node)]
    return tree


def chain(depth: int) -> Tree:
    """A chain that branches to the right: one more leaf at every level."""
    # The lowest nonterminal holds the last two leaves.
    above = [depth - 1 - leaf for leaf in range(depth)] + [0]
    return Tree(depth + 1, [*range(1, depth), -1], above)


def zigzag(depth: int, seed: int) -> Tree:
    """A chain that branches to either side, with now and then a level of no further leaf."""
    chance = random.Random(seed)
    sides = [chance.choice(["left", "right", "right", "none"]) for _ in range(depth - 1)]
    left = [node + 1 for node, side in enumerate(sides) if side == "left"]
    right = [node + 1 for node, side in enumerate(sides) if side == "right"]
    above = [*left[::-1], 0, 0, *right]
    return Tree(len(above), [*range(1, depth), -1], above)


def flat(leaves: int) -> Tree:
    return Tree(leaves, [-1], [0] * leaves)


def unary(depth: int, leaves: int) -> Tree:
    """So many nonterminals over the same leaves."""
    return Tree(leaves, [*range(1, depth), -1], [0] * leaves)


SHAPES = {
    "one leaf under nothing": Tree(1, [], [-1]),
    "one leaf under one nonterminal": flat(1),
    "one nonterminal and the end of sentence": Tree(4, [-1], [0, 0, 0, -1]),
    "three nonterminals over the same leaves": unary(3, 2),
    "a chain of 60": chain(60),
    "200 leaves": flat(200),
    "a forest": Tree(7, [-1, 2, -1], [0, 0, 1, 1, 2, -1, -1]),
    "a random tree": grown(9, 8, seed=3, outside=1),
}


def trees(max_leaves: int = 7, max_nonterminals: int = 7) -> st.SearchStrategy[Tree]:
    return st.builds(
        grown,
        st.integers(1, max_leaves),
        st.integers(0, max_nonterminals),
        st.integers(0, 10_000),
        st.integers(0, 2),
    )


def pad_trees(trees: Sequence[Tree], leaves: int = 0, nonterminals: int = 0) -> TreeBatch:
    """Lay trees out as a batch, padded on the right, with so many padded nodes more than needed."""
    n = max(tree.leaves for tree in trees) + leaves
    m = max(len(tree.parents) for tree in trees) + nonterminals
    spans = torch.full((len(trees), m, 2), -1)
    padding = torch.ones(len(trees), n, dtype=torch.bool)
    for row, tree in enumerate(trees):
        padding[row, : tree.leaves] = False
        if tree.parents:
            spans[row, : len(tree.parents)] = torch.tensor(tree.spans)
    return TreeBatch(leaf_spans=spans, padding_mask=padding)


def nodes_of(tree: Tree, batch: TreeBatch) -> Tensor:
    """The positions of a tree's own nodes in its row of the batch."""
    nonterminals = batch.num_leaves + torch.arange(len(tree.parents))
    return torch.cat([torch.arange(tree.leaves), nonterminals])


forests = st.lists(trees(), min_size=1, max_size=4)
