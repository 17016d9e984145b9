"""Relative positions of long sentences on a CPU: folded, and attention that stores no weights.

The results are those of the equations in ``relative_attention.py``, with which an update of the IMDB
table's model takes 1.8 times as long at 256 tokens, and 2.7 times at 1,024. With folded positions, but
with autograd's gradients, it takes 1.3 and 1.6 times as long.

**Folded positions** have one lookup per pair instead of one per kind. Most pairs of a long sentence are
*far*: their position in the sentence is clipped, so their row of the first table is its first or its
last. These pairs look up a sum of two rows that is computed once.

Example: both kinds are clipped to -1, 0 and 1. The rows of the first table (sentence) are a0, a1, a2,
those of the second (tree) b0, b1, b2. The joint table has 15 rows:

    row   0      1      2      3      4      5      6  7        8        9, 11, 13   10, 12, 14
          a0+b0  a0+b1  a0+b2  a2+b0  a2+b1  a2+b2  0  a1 - a0  a2 - a0  a0+b0       a2+b2

- Rows 0 to 5 are for far pairs. A pair at -7 in the sentence and 0 in the tree looks up row 1, a0 + b1.
- Rows 6 to 8 are what the few *near* pairs add to a row of the first three. A pair at 0 and 0 looks up
  row 1 and row 7: a0 + b1 + (a1 - a0) = a1 + b1.
- Rows 9 to 14 are copies of rows 0 and 5: both positions are clipped, as they often are in deep trees.
  Adjacent keys take the row and its copies in turn, because sums of gradients are then faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_phrase.methods.common.one_by_one import is_long, one_of
from fairseq_phrase.methods.common.tensors import applied, infinite, may_read, upcast
from fairseq_phrase.methods.positions.relative_positions import RelativePositions

# One row and three copies of it.
_COPIES = 4


@dataclass(frozen=True, kw_only=True)
class FoldedPositions(RelativePositions):
    """Positions of one or two kinds. The first kind is the same for all sentences.

    Attributes:
        rows: of the first kind only.
        size: number of rows of the first table.
        joint: number of rows of the joint table.
        columns: for each pair, query * joint + its row. Shape: (batch or 1, queries * keys), int64
        near: the near pairs. Shape: (near pairs,), int64
        cells: for each near pair, query * joint + its row of the second part.
            Shape: (near pairs,), int64
    """

    size: int
    joint: int
    columns: Tensor
    near: Tensor
    cells: Tensor

    def by_kind(self) -> dict[str, Tensor]:
        """Recover the clipped positions by kind. Shape of each: (batch or 1, queries, keys), int64."""
        second = torch.arange(self.size, max(self.num_rows, self.size + 1))
        parts = second, second, second.new_zeros(self.size), second[[0, -1]].repeat(_COPIES - 1)
        rows = torch.cat(parts)[self.columns % self.joint].unflatten(1, self.rows[0].shape[1:])
        all_rows = (*self.rows, rows)[: len(self.clips)]
        return RelativePositions(all_rows, self.num_rows, clips=self.clips).by_kind()

    def sentence(self, index: int) -> FoldedPositions:
        """Take the positions of one sentence of the batch."""
        masked = one_of(self.masked, index)
        if masked is not None and not masked.any():
            masked = None
        return replace(self, masked=masked, columns=one_of(self.columns, index))

    def table(self, rows: Tensor) -> Tensor:
        """Make the joint table. Shape: (joint, head width)."""
        first, second = rows.split([self.size, len(rows) - self.size])
        if not len(second):
            second = rows.new_zeros(1, rows.size(1))
        far = torch.cat([first[:1] + second, first[-1:] + second])
        ends = torch.stack([far[0], far[-1]])
        return torch.cat([far, first - first[:1], *[ends] * (_COPIES - 1)])

    def look_up(self, per_row: Tensor) -> Tensor:
        """Look up each pair's sum in the joint table; see the base class."""
        pairs = applied(_LinearMap, per_row, self.spread, self.sums)
        if self.masked is not None:
            pairs += infinite(self.masked, pairs.dtype)[:, None]
        return pairs

    def collect(self, pairs: Tensor) -> Tensor:
        """Sum the values of all pairs with the same row of the joint table; see the base class."""
        return applied(_LinearMap, pairs, self.sums, self.spread)

    def spread(self, per_row: Tensor) -> Tensor:
        """Compute :meth:`look_up` without a gradient and without masked pairs."""
        batch, heads, queries, _ = per_row.shape
        flat = per_row.reshape(batch, heads, -1)
        pairs = flat.new_empty(batch, heads, queries, queries)
        for index, values in enumerate(pairs.flatten(2)):
            torch.index_select(flat[index], 1, one_of(self.columns, index)[0], out=values)
        near = flat.flatten(0, 1).index_select(1, self.cells)
        pairs.view(batch * heads, -1).index_add_(1, self.near, near)
        return pairs

    def sums(self, pairs: Tensor) -> Tensor:
        """Compute :meth:`collect` without a gradient: the transpose of :meth:`spread`."""
        batch, heads, queries, _ = pairs.shape
        flat = upcast(pairs).flatten(2)
        sums = flat.new_zeros(batch, heads, queries * self.joint)
        sums.scatter_add_(2, self.columns[:, None].expand_as(flat), flat)
        near = flat.flatten(0, 1).index_select(1, self.near)
        sums.flatten(0, 1).index_add_(1, self.cells, near)
        return sums.view(batch, heads, queries, self.joint).to(pairs.dtype)


class _LinearMap(torch.autograd.Function):
    """A linear map, whose gradient is the transposed map."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        of: Callable[[Tensor], Tensor],
        transposed: Callable[[Tensor], Tensor],
    ) -> Tensor:
        ctx.transposed = transposed
        return of(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.transposed(gradients[0]), None, None


def folded(positions: RelativePositions) -> RelativePositions:
    """Fold the positions of long sentences, if only the second kind differs between sentences."""
    first, *second = positions.rows
    if not is_long(first) or not may_read(first) or len(first) > 1 or len(second) > 1:
        return positions
    size = 2 * next(iter(positions.clips.values())) + 1
    is_last = first == size - 1
    near = ((first > 0) & ~is_last).flatten().nonzero().squeeze(1)
    width = max(positions.num_rows - size, 1)
    num_far, joint = 2 * width, 2 * width + size + 2 * (_COPIES - 1)
    # The joint table's row of each row of the first part, for each of the copies.
    rows = torch.arange(num_far).repeat(_COPIES, 1)
    rows[1:, [0, -1]] = torch.arange(num_far + size, joint).view(-1, 2)
    far = is_last * width + torch.arange(first.size(2)) % _COPIES * num_far
    columns = rows.flatten()[far + (second[0] - size) if second else far]
    starts = torch.arange(first.size(1))[:, None] * joint
    return FoldedPositions(
        rows=(first,),
        num_rows=positions.num_rows,
        masked=positions.masked,
        clips=positions.clips,
        size=size,
        joint=joint,
        columns=columns.add_(starts).flatten(1),
        near=near,
        cells=(starts + num_far + first).flatten()[near],
    )


def long_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: RelativePositions,
    keys: Tensor,
    values: Tensor,
    dropout_p: float,
) -> Tensor:
    """Attend a few heads of a sentence at a time; see ``relative_attention``."""
    shape, scale = query.shape, 1 / math.sqrt(query.size(-1))
    tables = positions.table(keys.to(query.dtype)), positions.table(values.to(value.dtype))
    parts = _parts(query, positions)
    # (batch, heads, queries, width) -> (batch * heads, 1, queries, width)
    heads = (states.contiguous().flatten(0, 1)[:, None] for states in (query, key, value))
    return applied(_LongAttention, *heads, *tables, parts, scale, dropout_p).view(shape)


def _parts(query: Tensor, positions: RelativePositions) -> list[tuple[slice, RelativePositions]]:
    """List slices of all sentences' heads, each with its sentence's positions."""
    batch, heads, queries, _ = query.shape
    # The pairs of these heads stay in the processor's cache.
    step = math.ceil(heads / math.ceil(heads * queries**2 / 2**18))
    return [
        (slice(i * heads + head, i * heads + min(head + step, heads)), sentence)
        for i, sentence in enumerate(map(positions.sentence, range(batch)))
        for head in range(0, heads, step)
    ]


def _weights(
    query: Tensor,
    key: Tensor,
    table: Tensor,
    positions: RelativePositions,
    scale: float,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Compute the softmax of ``scale * q_i · (k_j + Σ a_ij)``. No gradient is recorded."""
    # (batch, heads, queries, width) -> (batch * heads * queries, R)
    per_row = _scaled_product(query.flatten(0, 2), table.t(), scale)
    pairs = positions.look_up(per_row.view(*query.shape[:3], -1))
    pairs.flatten(0, 1).baddbmm_(query.flatten(0, 1), key.flatten(0, 1).mT, alpha=scale)
    return pairs.softmax(-1, dtype=dtype)


class _LongAttention(torch.autograd.Function):
    """Attention part by part. The backward pass computes their weights again."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        keys: Tensor,
        values: Tensor,
        parts: Sequence[tuple[slice, RelativePositions]],
        scale: float,
        dropout_p: float,
    ) -> Tensor:
        ctx.parts, ctx.scale, ctx.dropout_p = parts, scale, dropout_p
        outputs, sums, masks = [], [], []
        for part, positions in parts:
            weights = _weights(query[part], key[part], keys, positions, scale)
            after_dropout = weights
            if dropout_p:
                after_dropout, mask = torch.native_dropout(weights, dropout_p, True)
                masks.append(mask)
            after_dropout, own_value = after_dropout.to(value.dtype), value[part]
            # (batch, heads, queries, keys) -> (batch * heads * queries, R)
            sums.append(positions.collect(after_dropout).flatten(0, 2))
            attended = (sums[-1] @ values).view_as(own_value)
            attended.flatten(0, 1).baddbmm_(after_dropout.flatten(0, 1), own_value.flatten(0, 1))
            outputs.append(attended)
        ctx.dtype = weights.dtype
        ctx.save_for_backward(query, key, value, keys, values, *sums, *masks)
        return torch.cat(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, keys, values, *saved = ctx.saved_tensors
        parts, scale = ctx.parts, ctx.scale
        (of_attended,) = gradients
        of_query, of_key, of_value, of_keys, of_values = [], [], [], [], []
        for number, (part, positions) in enumerate(parts):
            sums, attended = saved[number], of_attended[part].contiguous()
            weights = _weights(query[part], key[part], keys, positions, scale, ctx.dtype)
            after_dropout = weights
            if ctx.dropout_p:
                mask, factor = saved[len(parts) + number], 1 / (1 - ctx.dropout_p)
                after_dropout = weights.mul(mask).mul_(factor)
            # (batch, heads, ...) -> (batch * heads, ...)
            flat_query, flat_key, flat_value = (
                states[part].flatten(0, 1) for states in (query, key, value)
            )
            of_values.append(sums.t() @ attended.flatten(0, 2))
            per_row = (attended.flatten(0, 2) @ values.t()).view(*attended.shape[:3], -1)
            pairs = replace(positions, masked=None).look_up(per_row)
            attended = attended.flatten(0, 1)
            pairs.flatten(0, 1).baddbmm_(attended, flat_value.mT)
            of_value.append(after_dropout.to(value.dtype).flatten(0, 1).mT @ attended)
            pairs = pairs.to(weights.dtype)
            if ctx.dropout_p:
                pairs.mul_(mask).mul_(factor)
            pairs = torch._softmax_backward_data(pairs, weights, -1, weights.dtype).to(query.dtype)
            # The gradient at masked keys is 0, because their softmax weight is 0.
            per_row = positions.collect(pairs).flatten(0, 2)
            of_keys.append(_scaled_product(per_row.t(), flat_query.flatten(0, 1), scale))
            own_query = _scaled_product(per_row, keys, scale).view_as(flat_query)
            pairs = pairs.flatten(0, 1)
            of_query.append(own_query.baddbmm_(pairs, flat_key, alpha=scale))
            # With beta=0 the first argument is not read.
            of_key.append(
                torch.baddbmm(pairs.new_empty(1), pairs.mT, flat_query, beta=0, alpha=scale)
            )
        of_states = (torch.cat(rows).view_as(query) for rows in (of_query, of_key, of_value))
        of_tables = (reduce(torch.add, rows) for rows in (of_keys, of_values))
        return *of_states, *of_tables, None, None, None


def _scaled_product(left: Tensor, right: Tensor, scale: float) -> Tensor:
    """Multiply two matrices and a scale, before rounding to half precision."""
    # With beta=0 the first argument is not read.
    return torch.addmm(left.new_empty(1), left, right, beta=0, alpha=scale)
