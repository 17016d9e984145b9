"""A constant sparse matrix times a dense one; forward and backward only gather, and never scatter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from fairseq_phrase.modules.tensors import applied


class _Rows:
    """The entries by row: for each row a bag of weighted columns."""

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

    It is stored twice, by rows and by columns, so that both the product and its gradient sum rows of
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
        # Use small integers if they suffice: every layer reads these, forward and backward.
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
        return matrix._by_rows @ dense

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        return context.matrix._by_columns @ gradient.contiguous(), None
