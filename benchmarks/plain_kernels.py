"""Plain definitions that the attention kernels are compared with."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fairseq_phrase.methods.accumulation.tree_attention import HierarchicalAccumulation
from fairseq_phrase.methods.common.tree_batch import TreeBatch
from fairseq_phrase.methods.positions.relative_positions import RelativePositions


def naive_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: RelativePositions,
    keys: Tensor,
    values: Tensor | None,
) -> Tensor:
    """Attend with a vector per pair, of shape (batch or 1, queries, keys, head width)."""
    batch = len(query)
    scores = query @ key.transpose(2, 3)
    for rows in positions.rows:
        pairs = keys[rows].expand(batch, -1, -1, -1)
        scores = scores + torch.einsum("bhid,bijd->bhij", query, pairs)
    weights = (scores / math.sqrt(query.size(-1))).softmax(-1)
    output = weights @ value
    for rows in positions.rows if values is not None else ():
        pairs = values[rows].expand(batch, -1, -1, -1)
        output = output + torch.einsum("bhij,bijd->bhid", weights, pairs)
    return output


class DenseDefinition:
    """The accumulation as the paper defines it, with a vector for every nonterminal and leaf.

    Args:
        module: the module whose parameters it uses.
        tree: the trees, whose constants it makes once.
    """

    def __init__(self, module: HierarchicalAccumulation, tree: TreeBatch):
        dtype = module.leaf_weight.weight.dtype
        self.module, self.tree = module, tree
        self.membership = tree.membership[:, None, :, :, None].to(dtype)
        self.subtrees = tree.subtrees[:, None].to(dtype)
        path = tree.leaf_depths[:, None] - tree.depths[:, :, None]
        self.branch = (path + 1).clamp(min=1)[:, None, :, :, None].to(dtype)
        self.counts = tree.leaf_counts.clamp(min=1)[:, None, :, None].to(dtype)
        leaves = torch.arange(tree.num_leaves, device=tree.device)
        along = leaves - tree.leaf_spans[..., :1]
        self.vertical = (path - 1).clamp(0, len(module.vertical) - 1)
        self.horizontal = along.clamp(0, len(module.horizontal) - 1)

    def __call__(self, values: Tensor, leaf_states: Tensor) -> Tensor:
        """Accumulate, with the module's arguments and result."""
        module, tree = self.module, self.tree
        leaves, nonterminals = values.transpose(1, 2).split(
            [tree.num_leaves, tree.num_nonterminals], 2
        )
        weights = module.leaf_weight(leaf_states).transpose(1, 2)
        # E and F, shape (batch, heads, nonterminals, leaves, head width)
        embeddings = torch.cat(
            [module.vertical[self.vertical], module.horizontal[self.horizontal]], -1
        )
        grid = (nonterminals.unsqueeze(3) + embeddings.unsqueeze(1)) * self.membership
        # U: every cell and the cells below it in its column
        summed = (self.subtrees @ grid.flatten(3)).view(grid.shape)
        averaged = (leaves.unsqueeze(2) + summed) * self.membership / self.branch
        # V
        accumulated = (weights[:, :, None, :, None] * averaged).sum(3) / self.counts
        return torch.cat([leaves, accumulated], 2).transpose(1, 2)
