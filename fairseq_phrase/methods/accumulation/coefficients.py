"""The coefficients of nodes and embeddings in each nonterminal: a linear map of the leaves' weights.

``A_ij = w_j / (len_i |branch from i to j|)`` is nonterminal i's coefficient of leaf j. For every triple
(i, t, j) with node t on the path from i down to j, A_ij is added to i's coefficients of node t, of the
vertical embedding at (t, j) and of the horizontal embedding at (t, j). Two forms of this map give the
same numbers:

- :class:`PathCoefficients` lists the triples. A leaf under D nonterminals has D (D + 1) / 2 of them. An
  ordinary tree has few triples; in a deep tree their number grows cubically with the depth.
- :class:`DepthCoefficients` does not list triples. The nonterminals above leaf j have the depths 0, 1,
  2, … from the root down. Along them an index never increases (the authors' vertical index never
  decreases). So the nonterminals of index k have the depths ``low_jk`` to ``high_jk - 1``, and
  ``max(0, high_jk - max(low_jk, depth_i))`` of them are on the path from i. This form takes at most as
  much memory as all pairs of nodes.

:func:`coefficients_of` chooses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, pad

from fairseq_phrase.methods.common.tensors import applied, for_device
from fairseq_phrase.methods.common.tree_batch import TreeBatch, true_at


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


# Triples are listed up to this number for each leaf of the padded batch. A triple takes about 300 bytes
# while the list is made: 0.3 MiB a token, compared with the 1 MiB that a training step of base size
# takes. Trees of natural language have far fewer (right-branching trees have 110 at 50 words and 590 at
# 512 words), and for them the list is up to 20 times as fast. Chains reach this number at a depth of 78.
# There the list, including the time to make it, takes as long as the other form in 12 layers.
# On an H200 (bfloat16), at half the number.
PATHS_PER_LEAF = {"cpu": 1024.0, "cuda": 539.3}

# The largest number of elements of a slice of DepthCoefficients' counts: small on a CPU to stay in its
# caches, larger on a GPU for fewer launches.
CHUNK = {"cpu": 1 << 19, "cuda": 1 << 22}


@dataclass(frozen=True)
class Indices:
    """The length of branches and the numbering of embeddings.

    Attributes:
        from_root: follow the authors' code: vertical indices are counted from the root, and the leaf is
            not counted in the length of its branch. Otherwise follow the paper.
        max_vertical: largest vertical index, 0 without embeddings.
        max_horizontal: largest horizontal index, 0 without embeddings.
    """

    from_root: bool
    max_vertical: int
    max_horizontal: int

    def sizes(self, tree: TreeBatch) -> tuple[int, int, int]:
        """Count the nodes, vertical and horizontal indices that have coefficients in a batch."""
        return (
            tree.num_nodes,
            min(tree.max_depth, self.max_vertical),
            min(tree.max_span, self.max_horizontal),
        )


def branches(tree: TreeBatch, from_root: bool, dtype: torch.dtype) -> Tensor:
    """Return ``M_ij / (len_i · |branch|)``; A is this times w_j. Shape: (batch, nonterminals, leaves).

    The branch from i down to j has ``D_j - depth_i`` nonterminals and, in the paper, also the leaf.
    """
    return tree.cached(_branches, from_root, dtype)


def _branches(tree: TreeBatch, from_root: bool, dtype: torch.dtype) -> Tensor:
    path = tree.leaf_depths[:, None] - tree.depths[:, :, None]
    nodes = path if from_root else path + 1  # the paper also counts the leaf
    divisor = tree.leaf_counts[:, :, None] * nodes
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    return torch.where(tree.membership, 1 / divisor.to(exact), 0.0).to(dtype)


def coefficients_of(
    tree: TreeBatch, indices: Indices, dtype: torch.dtype
) -> PathCoefficients | DepthCoefficients:
    """Return the map for a batch, in the faster form for its trees; made once per batch."""
    return tree.cached(_coefficients, indices, dtype)


def _coefficients(
    tree: TreeBatch, indices: Indices, dtype: torch.dtype
) -> PathCoefficients | DepthCoefficients:
    form = DepthCoefficients if _is_deep(tree) else PathCoefficients
    return form(tree, indices, dtype)


def _is_deep(tree: TreeBatch) -> bool:
    """Return whether a batch has too many triples to list them."""
    limit = for_device(PATHS_PER_LEAF, tree.device)
    return tree.num_paths > limit * tree.batch_size * tree.num_leaves


class PathCoefficients:
    """The map as a sparse matrix, with an entry for every triple and each of its three indices.

    Args:
        indices: how embeddings are numbered.
        dtype: of the weights.
    """

    def __init__(self, tree: TreeBatch, indices: Indices, dtype: torch.dtype) -> None:
        sentence, top, node, leaf = tree.paths()
        self.sizes = nodes, vertical, _ = indices.sizes(tree)
        columns_of_nodes = [tree.num_leaves + node]
        if indices.max_vertical:
            depth = tree.depths[sentence, node]
            if not indices.from_root:
                depth = tree.leaf_depths[sentence, leaf] - 1 - depth
            along = leaf - tree.leaf_spans[sentence, node, 0]
            columns_of_nodes.append(nodes + depth.clamp(max=indices.max_vertical - 1))
            columns_of_nodes.append(nodes + vertical + along.clamp(max=indices.max_horizontal - 1))
        nonterminals = tree.num_nonterminals
        self._shape = (tree.batch_size, nonterminals, sum(self.sizes))
        # Rows are (sentence, nonterminal i, coefficient), columns (sentence, leaf j). Triples are sorted
        # by column; with their indices in one row, so are the entries.
        first = (sentence * nonterminals + top) * sum(self.sizes)
        values = branches(tree, indices.from_root, dtype)[sentence, top, leaf]
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
            (tree.batch_size * nonterminals * sum(self.sizes), tree.batch_size * tree.num_leaves),
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


class DepthCoefficients:
    """The map computed from the depths of nodes, in dense slices of bounded size.

    Args:
        indices: how embeddings are numbered.
        dtype: of the weights.
    """

    def __init__(self, tree: TreeBatch, indices: Indices, dtype: torch.dtype) -> None:
        self.sizes = indices.sizes(tree)
        self._branches = branches(tree, indices.from_root, dtype)
        self._subtrees = tree.subtrees
        self._below = tree.membership.transpose(1, 2).to(dtype)
        self._depths = tree.depths.to(dtype)
        _, vertical, horizontal = self.sizes
        ranges = [
            _vertical_ranges(tree, vertical, indices.from_root),
            _horizontal_ranges(tree, horizontal),
        ]
        # Shapes: (batch, 1, leaves, indices)
        lows, highs = zip(*ranges, strict=True)
        self._high = torch.cat(highs, -1).unsqueeze(1).to(dtype)
        low = torch.cat(lows, -1).unsqueeze(1).to(dtype)
        self._most, self._zero = (self._high - low).clamp(min=0), low.new_zeros(())

    def __call__(self, weights: Tensor) -> Tensor:
        """Map the leaves' weights to coefficients; see :meth:`PathCoefficients.__call__`."""
        # A, shape (batch, nonterminals, heads, leaves)
        shares = self._branches.unsqueeze(2) * weights.transpose(1, 2).unsqueeze(1)
        # (A·M^T) ∘ Sub
        of_nodes = (shares.flatten(1, 2) @ self._below).unflatten(1, shares.shape[1:3])
        of_nodes = of_nodes.masked_fill(~self._subtrees.unsqueeze(2), 0.0)
        of_indices = applied(_Counted, shares, self)
        return torch.cat([shares, of_nodes, of_indices], -1).transpose(1, 2)

    def chunks(self) -> list[slice]:
        """Split the nonterminals into slices whose counts have at most :data:`CHUNK` elements."""
        batch, _, leaves, indices = self._high.shape
        largest = for_device(CHUNK, self._high.device)
        run = max(1, largest // max(1, batch * leaves * indices))
        return [slice(i, i + run) for i in range(0, self._depths.size(1), run)]

    def counts(self, chunk: slice) -> Tensor:
        """Count the nodes of each index on the paths from some nonterminals to all leaves.

        If a leaf is not below the nonterminal, the count is undefined, and A is 0.

        Returns:
            Shape: (batch, nonterminals, leaves, indices)
        """
        depths = self._depths[:, chunk, None, None]
        counts = self._high - depths
        return torch.clamp(counts, self._zero, self._most, out=counts)


class _Counted(torch.autograd.Function):
    """Compute the coefficients of embeddings from A: A_ij times the counts of (i, j), summed over j."""

    @staticmethod
    def forward(context: Any, shares: Tensor, form: DepthCoefficients) -> Tensor:
        context.form = form
        coefficients = shares.new_empty(*shares.shape[:3], sum(form.sizes[1:]))
        for chunk in form.chunks():
            coefficients[:, chunk] = shares[:, chunk] @ form.counts(chunk)
        return coefficients

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        form = context.form
        shares = gradient.new_empty(*gradient.shape[:3], form._below.size(1))
        for chunk in form.chunks():
            shares[:, chunk] = gradient[:, chunk] @ form.counts(chunk).transpose(-2, -1)
        return shares, None


def _vertical_ranges(tree: TreeBatch, size: int, from_root: bool) -> tuple[Tensor, Tensor]:
    """Return the depths of each leaf's nodes by vertical index; the last includes all larger ones.

    Returns:
        The lowest, and one past the highest. Shapes: (batch, leaves, indices)
    """
    leaf_depths = tree.leaf_depths.unsqueeze(-1)
    index = torch.arange(size, device=tree.device)
    if from_root:
        low, high = index.expand(*tree.leaf_depths.shape, size), (index + 1).minimum(leaf_depths)
        # The last index includes all nodes down to the leaf. The slice is empty without indices.
        return low, torch.cat([high[..., :-1], leaf_depths[..., :size]], -1)
    high = leaf_depths - index
    # The last index includes all nodes up to the root, at depth 0.
    return (high - 1) * (index < size - 1), high


def _horizontal_ranges(tree: TreeBatch, size: int) -> tuple[Tensor, Tensor]:
    """Return the depths of each leaf's nodes by horizontal index; the last includes all larger ones.

    Returns:
        The lowest, and one past the highest. Shapes: (batch, leaves, indices)
    """
    leaves = torch.arange(tree.num_leaves, device=tree.device)
    along = leaves[:, None] - tree.leaf_spans[:, None, :, 0]
    counts = along.new_zeros(tree.batch_size, tree.num_leaves, size)
    if size:
        counts.scatter_add_(
            2, along.clamp(0, size - 1), tree.membership.transpose(1, 2).to(counts.dtype)
        )
    # Nodes of this index or a higher one are nearer to the root.
    high = counts.flip(-1).cumsum(-1).flip(-1)
    # An index begins where the next one ends; the last one begins at the root.
    return pad(high[..., 1:], (0, min(1, size))), high
