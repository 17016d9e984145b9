"""Self-attention with relative positions of one or more kinds, without a vector per pair.

Source: Shaw et al. 2018, *Self-Attention with Relative Position Representations*, eq. 3-4, and
*Self-Attention with Structural Position Representations*, section 3.2:

    e_ij = q_i · (k_j + a^K_ij) / √d_head,    z_i = Σ_j α_ij (v_j + a^V_ij)

where a_ij is a row of a small table (2·clip + 1 rows, shared by the heads): the row for the relative
position of j relative to i. Each kind of position (sequential, structural) has a table, R rows in all,
and the terms of the kinds are added. ``q (a^K)^T`` has the shape (n, R). Each pair looks up its number in
it (``spread``), which is an additive bias. For the value side, a query's weights are summed over the keys
of each table row (``collect``), which again gives (n, R); the result is multiplied by a^V. Both maps are
transposes of each other, so each is the gradient of the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import dropout, scaled_dot_product_attention

from fairseq_phrase.methods.common.projections import HeadsAttention
from fairseq_phrase.methods.common.tensors import (
    applied,
    check_mask,
    check_tensor,
    infinite,
    is_long,
    masked_keys,
    one_of,
    upcast,
)


def sequential_positions(num_tokens: int, device: torch.device | None = None) -> Tensor:
    """Compute the positions i - j in the sentence (eq. 4). Shape: (1, tokens, tokens), int64.

    The sign is as in eq. 6. Shaw et al. count j - i, which reverses the order of a table's rows.

    Args:
        num_tokens: length n of the padded batch. Padding on the left shifts all tokens equally.
    """
    order = torch.arange(num_tokens, device=device)
    return (order[:, None] - order)[None]


@dataclass(frozen=True)
class RelativePositions:
    """The table rows of all pairs of a padded batch. Made once per batch, shared by all layers.

    Attributes:
        rows: for each kind of relative position, the row of each pair in the concatenated tables.
            Shape of each: (batch or 1, queries, keys), int64
        masked: True at pairs that get no weight; None if all pairs get weight.
            Shape: (batch or 1, 1 or queries, keys)
        clips: the largest position of each kind, in the order of ``rows``.
    """

    rows: tuple[Tensor, ...]
    num_rows: int
    masked: Tensor | None = None
    clips: Mapping[str, int] = field(default_factory=dict)

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
                first for -c. Its order is the order of the tables.
            padding_mask: True at padded tokens; None without padding. A sentence that is all padding
                attends to itself, to avoid NaN in the gradients. Shape: (batch, tokens)

        Raises:
            ValueError: if ``clips`` is empty, if ``relative`` and ``clips`` have different kinds, or if a
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
            masked = masked_keys(padding_mask)[:, None]
        return cls(tuple(rows), first, masked, dict(clips))

    def by_kind(self) -> dict[str, Tensor]:
        """Recover the clipped positions by kind. Shape of each: (batch or 1, queries, keys), int64."""
        positions, first = {}, 0
        for (kind, clip), rows in zip(self.clips.items(), self.rows, strict=True):
            positions[kind] = rows - (first + clip)
            first += 2 * clip + 1
        return positions

    def sentence(self, index: int) -> RelativePositions:
        """Take the positions of one sentence of the batch."""
        rows = tuple(one_of(numbers, index) for numbers in self.rows)
        return replace(self, rows=rows, masked=one_of(self.masked, index))

    def table(self, rows: Tensor) -> Tensor:
        """Return the table whose rows pairs look up. Shape: (R, head width)."""
        return rows

    def spread(self, per_row: Tensor, *, masked: bool = False) -> Tensor:
        """Sum, for every pair, the values of its table rows. Shape: (batch, heads, queries, keys).

        No gradient is recorded.

        Args:
            per_row: a value for each query and table row. Shape: (batch, heads, queries, R)
            masked: set masked pairs to -inf, for use as a bias before a softmax.
        """
        pairs = self._look_up(per_row)
        if masked and self.masked is not None:
            pairs += infinite(self.masked, pairs.dtype)[:, None]
        return pairs

    def _look_up(self, per_row: Tensor) -> Tensor:
        first, *further = (rows[:, None].expand(*per_row.shape[:2], -1, -1) for rows in self.rows)
        pairs = per_row.gather(-1, first)
        for index in further:
            pairs += per_row.gather(-1, index)
        return pairs

    def collect(self, pairs: Tensor) -> Tensor:
        """Sum the values of all pairs with the same query and table row. No gradient is recorded.

        Args:
            pairs: a value for each pair. Half precision is summed in single precision.
                Shape: (batch, heads, queries, keys)

        Returns:
            Shape: (batch, heads, queries, R)
        """
        return self._sums(upcast(pairs)).to(pairs.dtype)

    def _sums(self, pairs: Tensor) -> Tensor:
        rows, copies = self.rows, 1
        if is_long(pairs):
            # Adjacent keys often have the same row. Alternating between two sums is faster than one sum.
            copies = 2
            odd = torch.arange(pairs.size(-1), device=pairs.device) % 2
            rows = tuple(numbers + odd * self.num_rows for numbers in rows)
        sums = pairs.new_zeros(*pairs.shape[:-1], copies * self.num_rows)
        for index in rows:
            sums.scatter_add_(-1, index[:, None].expand_as(pairs), pairs)
        return sums if copies == 1 else sums.unflatten(-1, (copies, -1)).sum(-2)


class _Bias(torch.autograd.Function):
    """Positions as a bias before a softmax: ``spread``, whose gradient is ``collect``."""

    @staticmethod
    def forward(ctx: Any, per_row: Tensor, positions: RelativePositions) -> Tensor:
        ctx.positions = positions
        return positions.spread(per_row, masked=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # The gradient at masked keys is 0, because their softmax weight is 0.
        return ctx.positions.collect(gradients[0]), None


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
    pairs = positions.spread(per_row.view(*query.shape[:3], -1), masked=True)
    pairs.flatten(0, 1).baddbmm_(query.flatten(0, 1), key.flatten(0, 1).mT, alpha=scale)
    return pairs.softmax(-1, dtype=dtype)


class _Attention(torch.autograd.Function):
    """The gradients are written out, which launches fewer kernels than autograd.

    With several parts, the backward pass recomputes their weights instead of storing them.
    """

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
    ) -> tuple[Tensor, Tensor]:
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
        single = [weights] if parts[0][0] == slice(None) else []
        ctx.save_for_backward(query, key, value, keys, values, *sums, *masks, *single)
        if not single:  # only the last part's weights
            ctx.mark_non_differentiable(weights)
        ctx.set_materialize_grads(False)
        return _concatenated(outputs), weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, keys, values, *saved = ctx.saved_tensors
        parts, scale = ctx.parts, ctx.scale
        of_attended, of_weights = gradients
        if of_attended is None:
            of_attended = torch.zeros_like(value)
        of_query, of_key, of_value, of_keys, of_values = [], [], [], [], []
        for number, (part, positions) in enumerate(parts):
            sums, attended = saved[number], of_attended[part].contiguous()
            weights = saved[-1]
            if part != slice(None):
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
            pairs, attended = positions.spread(per_row), attended.flatten(0, 1)
            pairs.flatten(0, 1).baddbmm_(attended, flat_value.mT)
            of_value.append(after_dropout.to(value.dtype).flatten(0, 1).mT @ attended)
            pairs = pairs.to(weights.dtype)
            if ctx.dropout_p:
                pairs.mul_(mask).mul_(factor)
            if of_weights is not None:
                pairs += of_weights
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
        of_states = (_concatenated(rows).view_as(query) for rows in (of_query, of_key, of_value))
        of_tables = (reduce(torch.add, rows) for rows in (of_keys, of_values))
        return *of_states, *of_tables, None, None, None


def _concatenated(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat([*parts])


def _scaled_product(left: Tensor, right: Tensor, scale: float) -> Tensor:
    """Multiply two matrices and a scale, before rounding to half precision."""
    # With beta=0 the first argument is not read.
    return torch.addmm(left.new_empty(1), left, right, beta=0, alpha=scale)


def relative_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: RelativePositions,
    keys: Tensor,
    values: Tensor | None = None,
    dropout_p: float = 0.0,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attend with relative positions (Shaw et al., eq. 3-4).

    Its largest tensors have the shape (batch, heads, n, n). It needs as many of them as attention without
    positions, plus a temporary one; or only temporary ones for one sentence
    (:func:`~fairseq_phrase.methods.common.tensors.is_long`). Inputs that are not contiguous are copied.

    Args:
        query, key, value: Shape of each: (batch, heads, tokens, head width)
        positions: the pairs' table rows, and which keys are padding.
        keys: the tables a^K, concatenated. Shape: (R, head width)
        values: the tables a^V; without them the positions are only an additive bias, and
            ``scaled_dot_product_attention`` computes the rest. Shape: (R, head width)
        dropout_p: probability with which a weight is dropped, for values and tables alike.

    Returns:
        The attended values, of shape (batch, heads, tokens, head width), finite at padding; and the
        weights before dropout, of shape (batch, heads, tokens, tokens), or None.
    """
    # Does not copy contiguous tensors, such as RelativeAttention's.
    query, key, value = (states.contiguous() for states in (query, key, value))
    scale, keys = 1 / math.sqrt(query.size(-1)), positions.table(keys.to(query.dtype))
    if values is None:
        per_row = _scaled_product(query.flatten(0, 2), keys.t(), scale)
        bias = applied(_Bias, per_row.view(*query.shape[:3], -1), positions)
        if not need_weights:
            return scaled_dot_product_attention(query, key, value, bias, dropout_p), None
        weights = torch.add(bias, query @ key.mT, alpha=scale).softmax(-1)
        return dropout(weights, dropout_p).to(value.dtype) @ value, weights
    parts, shape = [(slice(None), positions)], query.shape
    if is_long(query) and not need_weights:
        parts = _parts(query, positions)
        query, key, value = (states.flatten(0, 1)[:, None] for states in (query, key, value))
    tables = keys, positions.table(values.to(value.dtype))
    attended, weights = applied(_Attention, query, key, value, *tables, parts, scale, dropout_p)
    return attended.view(shape), weights if need_weights else None


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


class RelativeAttention(HeadsAttention):
    """Multi-head self-attention with relative positions, whose tables the heads share. Time-first.

    Args:
        clips: for each kind of relative position its clip c; its table has 2c + 1 rows.
        use_values: whether the positions have a value side (a^V), or only keys (a^K).
        neutral: start with tables of zeros, and thus as attention without positions.

    Raises:
        ValueError: if d is not a multiple of h, ``clips`` is empty, or a clip is less than 1.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        num_heads: int,
        clips: Mapping[str, int],
        dropout: float = 0.0,
        use_values: bool = True,
        neutral: bool = False,
    ) -> None:
        super().__init__(embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        if not clips or min(clips.values()) < 1:
            raise ValueError(f"expected kinds of positions with clips of 1 or more, got {clips}")
        self.clips, self.neutral = dict(clips), neutral
        self.relative_keys = self._tables()
        self.relative_values = self._tables() if use_values else None
        self.reset_parameters()

    def _tables(self) -> nn.ParameterDict:
        width = self.embed_dim // self.num_heads
        return nn.ParameterDict(
            {kind: torch.empty(2 * clip + 1, width) for kind, clip in self.clips.items()}
        )

    def reset_parameters(self) -> None:
        """Initialize projections and tables."""
        super().reset_parameters()
        for tables in (self.relative_keys, self.relative_values):
            for table in tables.values() if tables is not None else ():
                nn.init.zeros_(table) if self.neutral else nn.init.xavier_uniform_(table)

    def extra_repr(self) -> str:
        """Show the options in ``print(module)``."""
        return f"num_heads={self.num_heads}, clips={self.clips}"

    def forward(
        self, states: Tensor, positions: RelativePositions, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attend once.

        Args:
            states: token states. Shape: (tokens, batch, width)
            positions: the pairs' table rows, made with this module's ``clips``.

        Raises:
            ValueError: if the positions were made for other tables.
        """
        keys = _joined(self.relative_keys)
        values = None if self.relative_values is None else _joined(self.relative_values)
        if positions.num_rows != len(keys):
            raise ValueError(
                f"positions of {positions.num_rows} table rows do not fit tables of {len(keys)}, "
                f"for clips {self.clips}"
            )
        attended, weights = relative_attention(
            *self.split(states), positions, keys, values, self.dropout_p, need_weights
        )
        return self.join(attended, states), weights


def _joined(tables: nn.ParameterDict) -> Tensor:
    """Concatenate the tables of all kinds. Shape: (R, head width)."""
    return next(iter(tables.values())) if len(tables) == 1 else torch.cat([*tables.values()])
