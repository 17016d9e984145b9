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

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention

from fairseq_phrase.methods.common.one_by_one import is_long
from fairseq_phrase.methods.common.projections import HeadsAttention
from fairseq_phrase.methods.positions.relative_positions import RelativePositions


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

    Its largest tensors have the shape (batch, heads, n, n). They are not stored for long sentences
    (:mod:`~fairseq_phrase.methods.positions.long_positions`).

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
    if is_long(query) and values is not None and not need_weights:
        from fairseq_phrase.methods.positions.long_positions import long_attention

        return long_attention(query, key, value, positions, keys, values, dropout_p), None
    keys = positions.table(keys.to(query.dtype))
    query = query / math.sqrt(query.size(-1))  # first, because float16 may overflow
    # Each pair looks up its q_i · a^K_ij among the products of q_i and all rows.
    bias = positions.look_up(query @ keys.T)
    if values is None and not need_weights:
        return scaled_dot_product_attention(query, key, value, bias, dropout_p, scale=1.0), None
    weights = (query @ key.mT + bias).softmax(-1)
    alpha = dropout(weights, dropout_p).to(value.dtype)
    attended = alpha @ value
    if values is not None:
        # The weights of all keys with the same row are summed, then multiplied by the row.
        attended = attended + positions.collect(alpha) @ positions.table(values.to(value.dtype))
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
