"""The relative positions of all pairs of a batch, and the maps between pairs and table rows.

A kind of relative position (sequential, structural) has a table of 2·clip + 1 rows. The tables of all
kinds are concatenated to one table of R rows. Every pair has one row of each kind.
:func:`spread` maps (n, R) to (n, n), and :func:`collect` maps (n, n) to (n, R). They are transposes of
one another, so each is the other's gradient in :func:`relative_scores` and :func:`relative_values`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_phrase.modules.tensors import applied, check_mask, check_tensor, masked_keys, upcast


def sequential_positions(num_tokens: int, device: torch.device | None = None) -> Tensor:
    """Compute the relative positions of tokens in the sentence: i - j (eq. 4).

    The sign is that of eq. 6. Shaw et al. count j - i, which reverses the order of a table's rows.

    Args:
        num_tokens: length n of the padded batch. Padding on the left moves all tokens alike.

    Returns:
        Shape: (1, tokens, tokens), int64
    """
    order = torch.arange(num_tokens, device=device)
    return (order[:, None] - order)[None]


@dataclass(frozen=True)
class RelativePositions:
    """The table rows of all pairs of a padded batch. Made once per batch, shared by all layers.

    Attributes:
        rows: for each kind of relative position, the row of each pair in the concatenated tables.
            Shape of each: (batch or 1, queries, keys), int64
        num_rows: number of rows R of all tables.
        masked_keys: True at keys that get no weight; None if every key gets some.
            Shape: (batch, keys)
        clips: the largest position of each kind, in the order of ``rows``.
        masked_pairs: True at pairs that get no weight, instead of ``masked_keys``; None if the mask does
            not depend on the query. Shape: (batch or 1, queries, keys)
    """

    rows: tuple[Tensor, ...]
    num_rows: int
    masked_keys: Tensor | None = None
    clips: Mapping[str, int] = field(default_factory=dict)
    masked_pairs: Tensor | None = None

    @classmethod
    def from_kinds(
        cls,
        relative: Mapping[str, Tensor],
        clips: Mapping[str, int],
        padding_mask: Tensor | None = None,
    ) -> RelativePositions:
        """Look up the table rows of relative positions.

        Args:
            relative: by kind, relative positions rel(i, j), clipped or not.
                Shape of each: (batch or 1, tokens, tokens), int64
            clips: by kind, the largest size c of a relative position: the table has 2c + 1 rows, the
                first for -c. Its order is that of the tables.
            padding_mask: True at padded tokens; None without padding. A sentence that is all padding
                attends to itself, so that no NaN reaches the gradients. Shape: (batch, tokens)

        Raises:
            ValueError: if there is no kind, if ``relative`` and ``clips`` have different kinds, or if a
                tensor has a wrong type or shape.
        """
        if not clips or set(relative) != set(clips):
            raise ValueError(f"relative positions {[*relative]} do not fit tables {[*clips]}")
        rows, first = [], 0
        for kind, clip in clips.items():
            position = relative[kind]
            check_tensor(f"{kind} positions", position, torch.int64, "batch", "tokens", "tokens")
            rows.append(position.clamp(-clip, clip) + (first + clip))
            first += 2 * clip + 1
        masked = None
        if padding_mask is not None:
            check_mask("padding_mask", padding_mask, "batch", "tokens")
            masked = masked_keys(padding_mask)
        return cls(tuple(rows), first, masked, dict(clips))

    def by_kind(self) -> dict[str, Tensor]:
        """Give back the relative positions of each kind, clipped.

        Returns:
            Shape of each: (batch or 1, queries, keys), int64
        """
        positions, first = {}, 0
        for (kind, clip), rows in zip(self.clips.items(), self.rows, strict=True):
            positions[kind] = rows - (first + clip)
            first += 2 * clip + 1
        return positions

    def for_heads(self, like: Tensor) -> list[Tensor]:
        """View the rows as indices for all heads. Shape of each: (batch, heads, queries, keys)."""
        batch, heads = like.shape[:2]
        return [rows[:, None].expand(batch, heads, -1, -1) for rows in self.rows]


def spread(per_row: Tensor, positions: RelativePositions, *, masked: bool = False) -> Tensor:
    """Sum, for every pair, the values of its table rows. No gradient is recorded.

    Args:
        per_row: a value for each query and table row. Shape: (batch, heads, queries, R)
        masked: set masked keys or pairs to -inf, for use as a bias before a softmax.

    Returns:
        Shape: (batch, heads, queries, keys)
    """
    first, *others = positions.for_heads(per_row)
    pairs = per_row.gather(-1, first)
    for index in others:
        pairs += per_row.gather(-1, index)
    if masked and positions.masked_pairs is not None:
        pairs.masked_fill_(positions.masked_pairs[:, None], -math.inf)
    elif masked and positions.masked_keys is not None:
        pairs.masked_fill_(positions.masked_keys[:, None, None], -math.inf)
    return pairs


def collect(pairs: Tensor, positions: RelativePositions) -> Tensor:
    """Sum the pairs' values over the keys of each table row; the transpose of :func:`spread`.

    No gradient is recorded.

    Args:
        pairs: a value for each pair. Half precision is summed in single precision.
            Shape: (batch, heads, queries, keys)

    Returns:
        Shape: (batch, heads, queries, R)
    """
    exact = upcast(pairs)
    sums = exact.new_zeros(*pairs.shape[:-1], positions.num_rows)
    for index in positions.for_heads(pairs):
        sums.scatter_add_(-1, index, exact)
    return sums.to(pairs.dtype)


class _Scores(torch.autograd.Function):
    """The gradients are written out: they then need fewer kernels than autograd launches."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor | None,
        table: Tensor,
        positions: RelativePositions,
        scale: float,
    ) -> Tensor:
        ctx.save_for_backward(query, key, table)
        ctx.positions, ctx.scale = positions, scale
        # (batch, heads, queries, width) -> (batch * heads * queries, R)
        per_row = _scaled_product(query.flatten(0, 2), table.t(), scale)
        pairs = spread(per_row.view(*query.shape[:3], -1), positions, masked=True)
        if key is not None:
            pairs.flatten(0, 1).baddbmm_(query.flatten(0, 1), key.flatten(0, 1).mT, alpha=scale)
        return pairs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, table = ctx.saved_tensors
        # The gradient at masked keys is 0, because the softmax gave them no weight.
        pairs, scale = gradients[0].contiguous(), ctx.scale
        per_row = collect(pairs, ctx.positions).flatten(0, 2)
        of_table = _scaled_product(per_row.t(), query.flatten(0, 2), scale)
        of_query = _scaled_product(per_row, table, scale).view_as(query)
        of_key = None
        if key is not None:
            # (batch, heads, ...) -> (batch * heads, ...)
            pairs = pairs.flatten(0, 1)
            of_query.flatten(0, 1).baddbmm_(pairs, key.flatten(0, 1), alpha=scale)
            of_key = torch.baddbmm(
                pairs.new_empty(1), pairs.mT, query.flatten(0, 1), beta=0, alpha=scale
            ).view_as(key)
        return of_query, of_key, of_table, None, None


class _Values(torch.autograd.Function):
    """The gradients are written out, as in :class:`_Scores`."""

    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, value: Tensor, table: Tensor, positions: RelativePositions
    ) -> Tensor:
        # (batch, heads, queries, keys) -> (batch * heads * queries, R)
        sums = collect(weights, positions).flatten(0, 2)
        ctx.save_for_backward(weights, value, table, sums)
        ctx.positions = positions
        attended = (sums @ table).view_as(value)
        attended.flatten(0, 1).baddbmm_(weights.flatten(0, 1), value.flatten(0, 1))
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weights, value, table, sums = ctx.saved_tensors
        attended = gradients[0].contiguous()
        per_row = (attended.flatten(0, 2) @ table.t()).view(*weights.shape[:3], -1)
        of_table = sums.t() @ attended.flatten(0, 2)
        # (batch, heads, ...) -> (batch * heads, ...)
        of_weights, attended = spread(per_row, ctx.positions), attended.flatten(0, 1)
        of_weights.flatten(0, 1).baddbmm_(attended, value.flatten(0, 1).mT)
        of_value = (weights.flatten(0, 1).mT @ attended).view_as(value)
        return of_weights, of_value, of_table, None


def _scaled_product(left: Tensor, right: Tensor, scale: float) -> Tensor:
    """Multiply two matrices and a number. The number is applied before rounding to half precision."""
    # With beta=0 the first argument is not read.
    return torch.addmm(left.new_empty(1), left, right, beta=0, alpha=scale)


def relative_scores(
    query: Tensor, key: Tensor | None, table: Tensor, positions: RelativePositions, scale: float
) -> Tensor:
    """Compute ``scale * q_i · (k_j + Σ a_ij)`` for all pairs; -inf at masked keys.

    Args:
        query: Shape: (batch, heads, tokens, head width), contiguous
        key: without it, only the terms of the table are computed.
            Shape: (batch, heads, tokens, head width), contiguous
        table: rows a. Shape: (R, head width)

    Returns:
        Shape: (batch, heads, queries, keys)
    """
    return applied(_Scores, query, key, table.to(query.dtype), positions, scale)


def relative_values(
    weights: Tensor, value: Tensor, table: Tensor, positions: RelativePositions
) -> Tensor:
    """Compute ``Σ_j α_ij (v_j + Σ a_ij)`` for all queries. Shape: (batch, heads, queries, head width).

    Args:
        weights: α. Shape: (batch, heads, queries, keys), contiguous
        value: Shape: (batch, heads, tokens, head width), contiguous
        table: rows a. Shape: (R, head width)
    """
    return applied(_Values, weights, value, table.to(value.dtype), positions)
