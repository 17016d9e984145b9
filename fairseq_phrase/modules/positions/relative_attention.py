"""Self-attention with relative positions of one or more kinds, without a vector per pair.

Source: Shaw et al. 2018, *Self-Attention with Relative Position Representations*, eq. 3-4, and
*Self-Attention with Structural Position Representations*, section 3.2:

    e_ij = q_i · (k_j + a^K_ij) / √d_head,    z_i = Σ_j α_ij (v_j + a^V_ij)

where a_ij is a row of a small table (2·clip + 1 rows, shared by the heads): the row of the relative
position of j as seen from i. Each kind of position has a table, R rows in all, and the terms of the
kinds are added. ``q (a^K)^T`` has the shape (n, R). Each pair looks up its number in it, which is an
additive bias. For the value side, a query's weights are summed over the keys of each table row, which
gives (n, R) again; the result is multiplied with the table a^V.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention

from fairseq_phrase.modules.positions.relative_positions import (
    RelativePositions,
    relative_scores,
    relative_values,
)
from fairseq_phrase.modules.projections import HeadsAttention


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

    Its largest tensors have the shape (batch, heads, n, n). It needs as many of them as attention
    without positions, and one more for a short time. Inputs that are not contiguous are copied.

    Args:
        query, key, value: Shape of each: (batch, heads, tokens, head width)
        positions: the pairs' table rows, and which keys are padding.
        keys: the tables a^K, below one another. Shape: (R, head width)
        values: the tables a^V; without them the positions are only an additive bias, and
            ``scaled_dot_product_attention`` computes the rest. Shape: (R, head width)
        dropout_p: probability with which a weight is dropped, for values and tables alike.

    Returns:
        The attended values, of shape (batch, heads, tokens, head width), finite at padding; and the
        weights before dropout, of shape (batch, heads, tokens, tokens), or None.
    """
    # No copies if they are already contiguous, as RelativeAttention makes them.
    query, key, value = (states.contiguous() for states in (query, key, value))
    scale = 1 / math.sqrt(query.size(-1))
    if values is None and not need_weights:
        bias = relative_scores(query, None, keys, positions, scale)
        return scaled_dot_product_attention(query, key, value, bias, dropout_p), None
    weights = relative_scores(query, key, keys, positions, scale).softmax(-1)
    kept = dropout(weights, dropout_p).to(value.dtype)
    if values is None:
        attended = kept @ value
    else:
        attended = relative_values(kept, value, values, positions)
    return attended, weights if need_weights else None


class RelativeAttention(HeadsAttention):
    """Multi-head self-attention with relative positions, whose tables the heads share. Time-first.

    Args:
        clips: for each kind of relative position its clip c; its table has 2c + 1 rows.
        use_values: whether the positions have a value side (a^V), or only keys (a^K).
        neutral: start with tables of zeros, as attention without positions.

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
        return self.join(attended), weights


def _joined(tables: nn.ParameterDict) -> Tensor:
    """Put the tables of all kinds below one another. Shape: (R, head width)."""
    return next(iter(tables.values())) if len(tables) == 1 else torch.cat([*tables.values()])
