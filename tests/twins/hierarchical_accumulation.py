"""Hierarchical accumulation: the paper's equations, one grid cell after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_phrase.methods.accumulation.tree_attention import HierarchicalAccumulation
from tests.support.tree_strategies import Tree


def grid(leaves: Tensor, nonterminals: Tensor, tree: Tree) -> dict[tuple[int, int], Tensor]:
    """F: leaf j at the bottom (row 0) of column j, and nonterminal i in row i + 1 where j is below it."""
    cells = {}
    for j in range(tree.leaves):
        cells[0, j] = leaves[j]
        for i in tree.ancestors(j):
            cells[i + 1, j] = nonterminals[i]
    return cells


def place(t: int, j: int, tree: Tree, convention: str) -> tuple[int, int]:
    """The indices of E_tj, from 1."""
    vertical = len(tree.path(t, j)) if convention == "paper" else tree.depth(t) + 1
    return vertical, j - tree.under(t)[0] + 1


def twin_head(
    leaves: Tensor,
    nonterminals: Tensor,
    states: Tensor,
    tree: Tree,
    module: HierarchicalAccumulation,
    head: int,
) -> Tensor:
    """One head of one sentence, from its values and the whole states.

    Shape: (nonterminals, head width).
    """
    cells = grid(leaves, nonterminals, tree)
    if module.embeddings:  # E
        for (row, j), cell in list(cells.items()):
            if row > 0:
                v, h = place(row - 1, j, tree, module.convention)
                embedding = torch.cat(
                    [
                        module.vertical[min(v, len(module.vertical)) - 1],
                        module.horizontal[min(h, len(module.horizontal)) - 1],
                    ]
                )
                cells[row, j] = cell + embedding
    averages = {}
    for row, j in cells:  # U
        if row > 0:
            branch = [cells[0, j], *(cells[t + 1, j] for t in tree.path(row - 1, j))]
            count = len(branch) - (module.convention == "released")
            averages[row - 1, j] = sum(branch[1:], branch[0]) / count
    outputs = []
    for i in range(len(tree.parents)):  # V
        total = torch.zeros_like(nonterminals[0])
        for j in tree.under(i):
            weight = states[j] @ module.leaf_weight.weight[head]
            if module.leaf_weight.bias is not None:
                weight = weight + module.leaf_weight.bias[head]
            total = total + weight * averages[i, j]
        outputs.append(total / len(tree.under(i)))
    return torch.stack(outputs) if outputs else nonterminals[:0]


def twin(values: Tensor, states: Tensor, tree: Tree, module: HierarchicalAccumulation) -> Tensor:
    """All heads of one sentence without padding. Shape: (nonterminals, heads, head width).

    ``states`` are those that the values were projected from.
    """
    leaves, nonterminals = values[: tree.leaves], values[tree.leaves :]
    heads = [
        twin_head(leaves[:, head], nonterminals[:, head], states, tree, module, head)
        for head in range(module.num_heads)
    ]
    return torch.stack(heads, 1)
