"""Self-attention with relative positions of one or more kinds, without a vector per pair.

Source: Shaw et al. 2018, *Self-Attention with Relative Position Representations*, eq. 3-4, and
*Self-Attention with Structural Position Representations*, section 3.2:

    e_ij = q_i · (k_j + a^K_ij) / √d_head,    z_i = Σ_j α_ij (v_j + a^V_ij)

where a_ij is a row of a small table (2·clip + 1 rows, shared by the heads): the row for the relative
position of j relative to i. Each kind of position (sequential, structural) has a table, R rows in all,
and the terms of the kinds are added. ``q (a^K)^T`` has the shape (n, R), and each pair looks up its
numbers in it. For the value side, a query's weights are summed over the keys of each table row, which
again gives (n, R); the sums are multiplied by a^V.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention

from fairseq_phrase.modules.projections import HeadsAttention
from fairseq_phrase.modules.tensors import (
    check_mask,
    check_tensor,
    infinite,
    is_long,
    masked_keys,
    one_by_one,
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

    def look_up(self, per_row: Tensor) -> Tensor:
        """Add up the values of each pair's table rows. Shape: (batch, heads, queries, keys).

        Args:
            per_row: a value for each query and table row. Shape: (batch, heads, queries, R)

        Returns:
            The sums, and -inf at masked pairs.
        """
        index, *others = self._indices(per_row)
        pairs = per_row.gather(3, index)
        for index in others:
            pairs = pairs + per_row.gather(3, index)
        return pairs if self.masked is None else pairs + infinite(self.masked, pairs.dtype)[:, None]

    def collect(self, pairs: Tensor) -> Tensor:
        """Sum the values of all pairs with the same query and table row.

        Args:
            pairs: a value for each pair. Half precision is summed in single precision.
                Shape: (batch, heads, queries, keys)

        Returns:
            Shape: (batch, heads, queries, R)
        """
        exact = upcast(pairs)
        sums = exact.new_zeros(*exact.shape[:3], self.num_rows)
        for index in self._indices(exact):
            sums = sums.scatter_add(3, index, exact)
        return sums.to(pairs.dtype)

    def _indices(self, values: Tensor) -> list[Tensor]:
        """Repeat the rows of each kind for all heads. Shape of each: (batch, heads, queries, keys)."""
        return [rows[:, None].expand(*values.shape[:2], -1, -1) for rows in self.rows]


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

    Its largest tensors have the shape (batch, heads, n, n). In long sentences these are computed again
    in the backward pass instead of stored (:func:`~fairseq_phrase.modules.tensors.is_long`).

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

    def attend(
        positions: RelativePositions, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        query = query / math.sqrt(query.size(-1))  # first, because float16 may overflow
        bias = positions.look_up(query @ positions.table(keys.to(query.dtype)).T)
        if values is None and not need_weights:
            return scaled_dot_product_attention(query, key, value, bias, dropout_p, scale=1.0), None
        weights = (query @ key.mT + bias).softmax(-1)
        alpha = dropout(weights, dropout_p).to(value.dtype)
        attended = alpha @ value
        if values is not None:
            sums = positions.collect(alpha)
            attended = attended + sums @ positions.table(values.to(value.dtype))
        return attended, weights

    if is_long(query) and not need_weights:
        return one_by_one(attend, positions, query, key, value), None
    attended, weights = attend(positions, query, key, value)
    return attended, weights if need_weights else None


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
