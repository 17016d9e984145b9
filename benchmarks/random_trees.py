"""Random n-ary constituency trees for benchmarks."""

from __future__ import annotations

import random

import torch
from torch import Tensor


def random_spans(leaves: int, nonterminals: int, chance: random.Random) -> list[tuple[int, int]]:
    """Draw one tree: adjacent nodes are joined, mostly in twos, until one is left.

    Args:
        leaves: number of leaves.
        nonterminals: number of nonterminals, fewer than leaves.
        chance: the random number generator.

    Returns:
        The nonterminals' leaves, half-open, in post-order.
    """
    nodes = [(leaf, leaf + 1) for leaf in range(leaves)]
    spans = []
    for left in range(nonterminals, 0, -1):
        # Join more than two nodes where joins of two would leave more than one node.
        surplus = (len(nodes) - 1) - left
        size = 2 + surplus if left == 1 else 2 + (chance.random() < surplus / left)
        start = chance.randrange(len(nodes) - size + 1)
        span = (nodes[start][0], nodes[start + size - 1][1])
        nodes[start : start + size] = [span]
        spans.append(span)
    return sorted(spans, key=lambda span: (span[1], -span[0]))


def right_branching_spans(leaves: int, chance: random.Random) -> list[tuple[int, int]]:
    """Draw one tree that branches to the right three times out of four, as English trees mostly do.

    Its depth grows in proportion to its length.

    Returns:
        The nonterminals' leaves, half-open, in post-order.
    """
    spans, left = [], [(0, leaves)]
    while left:
        start, end = left.pop()
        if end - start < 2:
            continue
        spans.append((start, end))
        first = start + 1 if chance.random() < 0.75 else chance.randrange(start + 1, end)
        left += [(start, first), (first, end)]
    return sorted(spans, key=lambda span: (span[1], -span[0]))


def stack(trees: list[list[tuple[int, int]]]) -> Tensor:
    """Pad trees to one batch. Shape: ``(batch, nonterminals, 2)``, int64, -1 at padding."""
    rows = [torch.tensor(tree, dtype=torch.int64).view(-1, 2) for tree in trees]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
