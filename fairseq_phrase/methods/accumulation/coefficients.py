"""Hierarchical accumulation as coefficients of nodes and embeddings in each nonterminal.

The steps of the paper (Nguyen et al. 2020, section 3) are linear in leaves L, nonterminals N and
embeddings E, and the grid of their vectors is not built:

- F puts into column j leaf j and the nonterminals above it.
- E adds an embedding to every nonterminal t in column j: of its height over the leaf, and of the leaf's
  distance from the beginning of t.
- U averages each column from the bottom up to nonterminal i. That is over the *branch* from i to j: all
  nonterminals t on the path, and the leaf.
- V sums these averages over the leaves under i, with the weights w_j / len_i.

So every vector of the branch has the coefficient ``A_ij = w_j / (len_i |branch|)``, and

    N'_i = Σ_j A_ij (L_j + Σ_{t in path(i, j)} (N_t + E_tj))
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from fairseq_phrase.methods.accumulation.long_trees import PathCoefficients
from fairseq_phrase.methods.common.tree_batch import Indices, TreeBatch

#: Of listing a path, in dense coefficients that are computed in its time.
COST_OF_A_PATH = 64


def coefficients(weights: Tensor, tree: TreeBatch, indices: Indices) -> Tensor:
    """Compute the coefficients of all nodes and embeddings in each nonterminal.

    Args:
        weights: w. Shape: (batch, leaves, heads)
        indices: how embeddings are numbered.

    Returns:
        The coefficients of nodes, vertical and horizontal embeddings, concatenated.
        Shape: (batch, heads, nonterminals, sum of ``indices.sizes``)
    """
    if lists_paths(tree, indices):
        return tree.cached(_paths, indices, weights.dtype)(weights)
    # U and V: A, of shape (batch, nonterminals, heads, leaves)
    leaves = tree.cached(shares, indices, weights.dtype).unsqueeze(2) * weights.mT.unsqueeze(1)
    # F: nonterminal t is in the columns under it, and on paths from the nonterminals i above it.
    below, subtrees = tree.cached(_below, weights.dtype), tree.subtrees.unsqueeze(2)
    nonterminals = (leaves.flatten(1, 2) @ below).unflatten(1, leaves.shape[1:3])
    nonterminals = nonterminals.masked_fill(~subtrees, 0.0)
    # E: A_ij for every nonterminal on the path that has the embedding.
    embeddings = leaves @ tree.cached(counts, indices, weights.dtype)
    return torch.cat([leaves, nonterminals, embeddings], -1).transpose(1, 2)


def lists_paths(tree: TreeBatch, indices: Indices) -> bool:
    """Return whether paths are listed: they are few compared with the dense coefficients of all leaves.

    This is so in sentences of more than some 50 words, except in very deep trees.
    """
    pairs = tree.batch_size * tree.num_nonterminals * tree.num_leaves
    dense = pairs * (tree.num_nonterminals + sum(indices.sizes(tree)[1:]))
    return COST_OF_A_PATH * tree.num_paths < dense


def _paths(tree: TreeBatch, indices: Indices, dtype: torch.dtype) -> PathCoefficients:
    return PathCoefficients(tree, indices, shares(tree, indices, dtype))


def _below(tree: TreeBatch, dtype: torch.dtype) -> Tensor:
    """M^T: 1 where a leaf is under a nonterminal. Shape: (batch, leaves, nonterminals)."""
    return tree.membership.mT.to(dtype)


def shares(tree: TreeBatch, indices: Indices, dtype: torch.dtype) -> Tensor:
    """Return ``M_ij / (len_i |branch|)``; A is this times w_j. Shape: (batch, nonterminals, leaves).

    The branch from i down to j has ``D_j - depth_i`` nonterminals and, in the paper, also the leaf.
    """
    path = tree.leaf_depths[:, None] - tree.depths[:, :, None]
    nodes = path if indices.from_root else path + 1
    divisor = (tree.leaf_counts[:, :, None] * nodes).to(dtype)
    return torch.where(tree.membership, 1 / divisor, 0.0)


def counts(tree: TreeBatch, indices: Indices, dtype: torch.dtype) -> Tensor:
    """Count the nonterminals of each vertical and horizontal index on the path from i down to j.

    Indices are numbered from 0; the last one includes all larger ones. Where leaf j is not under i the
    count is undefined, and A is 0.

    Returns:
        Shape: (batch, nonterminals, leaves, vertical and horizontal indices)
    """
    _, vertical, horizontal = indices.sizes(tree)
    top = tree.depths[:, :, None, None].to(dtype)
    bottom = tree.leaf_depths[:, None, :, None].to(dtype)
    index = torch.arange(vertical, device=tree.device)
    if indices.from_root:  # depths from the larger of index and depth_i to D_j - 1
        heights = bottom - torch.maximum(top, index)
    else:
        heights = bottom - top - index
    # Of the nonterminals above a leaf, those that begin farther to the left are nearer to the root.
    leaves = torch.arange(tree.num_leaves, device=tree.device)
    along = leaves[:, None] - tree.leaf_spans[:, None, :, 0]
    begin = top.new_zeros(tree.batch_size, tree.num_leaves, horizontal)
    if horizontal:
        begin.scatter_add_(2, along.clamp(0, horizontal - 1), tree.membership.mT.to(dtype))
    distances = begin.flip(-1).cumsum(-1).flip(-1)[:, None] - top
    # Both are the number of nonterminals on the path with this index or a larger one.
    at_least = (heights.clamp(min=0), distances.clamp(min=0))
    return torch.cat([numbers - pad(numbers, (0, 1))[..., 1:] for numbers in at_least], -1)
