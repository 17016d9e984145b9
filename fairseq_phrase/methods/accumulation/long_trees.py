"""The coefficients of hierarchical accumulation in long sentences: from a list of paths.

For every triple (i, t, j) with node t on the path from nonterminal i down to leaf j, A_ij is added to i's
coefficients of node t, of the vertical embedding at (t, j) and of the horizontal embedding at (t, j). A
leaf under D nonterminals has D (D + 1) / 2 triples. Ordinary trees have few, chains O(n³).

The results are those of the equation in ``coefficients.py``. Without this path, an update of the IMDB
table's model takes 9 times as long at 1,024 tokens, with 20 times the memory, and with the gradient of
torch's own ``embedding_bag`` it takes 1.4 times as long.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from fairseq_phrase.methods.common.tensors import applied
from fairseq_phrase.methods.common.tree_batch import Indices, TreeBatch, true_at


class _Rows:
    """The entries by row: each row is a bag of weighted columns."""

    def __init__(self, rows: Tensor, columns: Tensor, values: Tensor, num_rows: int) -> None:
        self.columns, self.values = columns, values
        counts = columns.new_zeros(num_rows).scatter_add_(0, rows, torch.ones_like(columns))
        self.offsets = counts.cumsum(0, dtype=counts.dtype) - counts

    def __matmul__(self, dense: Tensor) -> Tensor:
        return embedding_bag(
            self.columns, dense, self.offsets, mode="sum", per_sample_weights=self.values
        )


class ConstantSparseMatrix:
    """A sparse matrix S without gradient, for ``S @ dense`` with a gradient for ``dense``.

    It is stored twice, by rows and by columns, because then both the product and its gradient sum rows of
    the dense matrix in a fixed order. Scattering, as ``index_add`` does in either direction, is five
    times slower on a CPU and needs atomic additions on a GPU.

    Args:
        rows: each entry's row, from 0. Shape: (entries,), int64
        columns: each entry's column, from 0, in ascending order. Entries at one position add up.
            Shape: (entries,), int64
        values: the entries, of the dense matrix' type. Shape: (entries,)
        shape: numbers of rows and columns.
    """

    def __init__(
        self, rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]
    ) -> None:
        self.shape = shape
        # Small integers if possible: every layer reads them, forward and backward.
        index_type = torch.int32 if max(*shape, len(rows)) < 2**31 else torch.int64
        order = rows.to(index_type).argsort(stable=True)
        self._by_rows = _Rows(rows, columns.to(index_type)[order], values[order], shape[0])
        self._by_columns = _Rows(columns, rows.to(index_type), values, shape[1])

    def __matmul__(self, dense: Tensor) -> Tensor:
        """Multiply. Shape: (rows, width).

        Args:
            dense: Shape: (columns, width)
        """
        return applied(_Product, dense, self)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, dense: Tensor, matrix: ConstantSparseMatrix) -> Tensor:
        context.matrix = matrix
        # embedding_bag computes more than the sums for tensors that require a gradient.
        return matrix._by_rows @ dense.detach()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        return context.matrix._by_columns @ gradient.contiguous(), None


class PathCoefficients:
    """The map as a sparse matrix, with an entry for every triple and each of its three indices.

    Args:
        indices: how embeddings are numbered.
        shares: from :func:`~fairseq_phrase.methods.accumulation.coefficients.shares`.
    """

    def __init__(self, tree: TreeBatch, indices: Indices, shares: Tensor) -> None:
        sentence, top, node, leaf = tree.paths()
        sizes = nodes, vertical, _ = indices.sizes(tree)
        columns_of_nodes = [tree.num_leaves + node]
        if indices.max_vertical:
            depth = tree.depths[sentence, node]
            if not indices.from_root:
                depth = tree.leaf_depths[sentence, leaf] - 1 - depth
            along = leaf - tree.leaf_spans[sentence, node, 0]
            columns_of_nodes.append(nodes + depth.clamp(max=indices.max_vertical - 1))
            columns_of_nodes.append(nodes + vertical + along.clamp(max=indices.max_horizontal - 1))
        nonterminals = tree.num_nonterminals
        self._shape = (tree.batch_size, nonterminals, sum(sizes))
        # Rows are (sentence, nonterminal i, coefficient), columns (sentence, leaf j). Triples are sorted
        # by column; with their indices in one row, so are the entries.
        first = (sentence * nonterminals + top) * sum(sizes)
        values = shares[sentence, top, leaf]
        # Every pair (i, j) has one triple whose path has a single node: the leaf's own entry.
        entries = first.unsqueeze(1) + torch.stack([leaf, *columns_of_nodes], 1)
        is_entry = torch.ones_like(entries, dtype=torch.bool)
        is_entry[:, 0] = top == node
        num_coefficients = len(entries) * (entries.size(1) - 1)
        triple, column = true_at(is_entry, num_coefficients + tree.num_members)
        columns = sentence * tree.num_leaves + leaf
        self._matrix = ConstantSparseMatrix(
            entries[triple, column],
            columns[triple],
            values[triple],
            (tree.batch_size * nonterminals * sum(sizes), tree.batch_size * tree.num_leaves),
        )

    def __call__(self, weights: Tensor) -> Tensor:
        """Map the leaves' weights to coefficients.

        Args:
            weights: w. Shape: (batch, leaves, heads)

        Returns:
            The coefficients of nodes, vertical and horizontal indices, concatenated.
            Shape: (batch, heads, nonterminals, sum of sizes)
        """
        heads = weights.size(-1)
        flat = self._matrix @ weights.reshape(-1, heads)
        # (rows, heads) -> (batch, nonterminals, coefficients, heads)
        return flat.view(*self._shape, heads).permute(0, 3, 1, 2)
