"""Transformer-XL's attention, for one stream of states or for XLNet's two.

Source: Dai et al. 2019, *Transformer-XL*, section 3.3; Yang et al. 2019, *XLNet*, sections 2.3 to 2.5:

    e_ij = ((q_i + u) · k_j + (q_i + v) · r_{i-j} + (q_i + b) · s_ij) / √d_head

r_{i-j} is a projection of the sinusoids of the distance i - j. s_ij is s₊ if i and j are in one segment,
else s₋. Both are keys; values lack positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from fairseq_phrase.methods.common.projections import HeadsAttention


def distance_encodings(
    nearest: int, furthest: int, width: int, device: torch.device | None = None
) -> Tensor:
    """Compute sines, then cosines, of nearest..furthest. Shape: (distances, width), float64.

    Args:
        nearest: the smallest distance, perhaps negative.
    """
    half = (width + 1) // 2
    rates = 10000.0 ** (-torch.arange(half, dtype=torch.float64, device=device) / max(half, 1))
    distances = torch.arange(nearest, furthest + 1, dtype=torch.float64, device=device)
    angles = distances[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)[:, :width]


@dataclass(frozen=True)
class PairStructure:
    """The relations of queries and keys. Made once per batch, shared by all layers.

    Attributes:
        encodings: the sinusoids of all distances. Shape: (distances, width)
        rows: the row of ``encodings`` for each pair. Shape: (batch or 1, queries, keys), int64
        visible: True where a query sees a key. Shape: (batch or 1, queries, keys)
        same_segment: True where query and key are in one segment; None without segments.
            Shape: (batch, queries, keys)
    """

    encodings: Tensor
    rows: Tensor
    visible: Tensor
    same_segment: Tensor | None = None


class XLAttention(HeadsAttention):
    """Multi-head attention with Transformer-XL's positions and XLNet's segments. Time-first.

    *Decision*: each layer has its own u, v, b and projection of distances, as in XLNet's code.

    Args:
        segments: whether there are relative segment encodings.
    """

    def __init__(
        self, *, embed_dim: int, num_heads: int, dropout: float = 0.0, segments: bool = False
    ) -> None:
        super().__init__(embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        self.distance_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        per_head = (num_heads, 1, embed_dim // num_heads)
        self.content_bias = nn.Parameter(torch.zeros(per_head))  # u
        self.position_bias = nn.Parameter(torch.zeros(per_head))  # v
        self.segment_bias: nn.Parameter | None = None
        self.segment_keys: nn.Parameter | None = None
        if segments:
            self.segment_bias = nn.Parameter(torch.zeros(per_head))  # b
            # s₋ and s₊
            self.segment_keys = nn.Parameter(torch.empty(num_heads, 2, per_head[2]))
            nn.init.normal_(self.segment_keys, std=embed_dim**-0.5)
        self.reset_parameters()
        nn.init.xavier_uniform_(self.distance_proj.weight, gain=1 / math.sqrt(2))

    def forward(
        self, states: Tensor, structure: PairStructure, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from states to the same states, see :meth:`attend`."""
        return self.attend(states, states, structure, need_weights)

    def attend(
        self, queries: Tensor, keys: Tensor, structure: PairStructure, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from one stream of states to another.

        Args:
            queries: Shape: (queries, batch, width)
            keys: Shape: (keys, batch, width)

        Returns:
            The attended states, of shape (queries, batch, width), which are the output projection's
            bias for queries that do not see any key; and the weights before dropout, of shape (batch,
            heads, queries, keys), or None.
        """
        query = self._heads(self.q_proj(queries))
        key, value = self._heads(self.k_proj(keys)), self._heads(self.v_proj(keys))
        # (distances, width) -> (heads, distances, head width)
        encodings = structure.encodings.to(queries.dtype)
        distances = self.distance_proj(encodings).unflatten(1, (self.num_heads, -1)).transpose(0, 1)
        scale = 1 / math.sqrt(query.size(-1))
        # (batch, heads, queries, distances) -> (batch, heads, queries, keys)
        by_distance = (query + self.position_bias) * scale @ distances.transpose(1, 2)
        rows = structure.rows[:, None].expand(*by_distance.shape[:2], -1, -1)
        scores = by_distance.gather(3, rows)
        scores = scores + (query + self.content_bias) * scale @ key.transpose(2, 3)
        if structure.same_segment is not None and self.segment_keys is not None:
            assert self.segment_bias is not None
            # (batch, heads, queries, 2)
            segments = (query + self.segment_bias) * scale @ self.segment_keys.transpose(1, 2)
            apart, together = segments.split(1, 3)
            scores = scores + torch.where(structure.same_segment[:, None], together, apart)
        weights = _softmax(scores, structure.visible)
        after_dropout = dropout(weights, self.dropout_p).to(value.dtype)
        # (batch, heads, queries, head width) -> (queries, batch, width)
        attended = self.join(after_dropout @ value, queries)
        return attended, weights if need_weights else None

    def _heads(self, states: Tensor) -> Tensor:
        """Shape: (time, batch, width) -> (batch, heads, time, head width)."""
        return cast(Tensor, states.unflatten(2, (self.num_heads, -1)).permute(1, 2, 0, 3))


def _softmax(scores: Tensor, visible: Tensor) -> Tensor:
    """Normalize over visible keys; a query that does not see any key has weights of 0."""
    is_visible = visible[:, None]
    some = is_visible.any(3, keepdim=True)
    # A row of -inf would be NaN, also in the gradients.
    weights = scores.masked_fill(~(is_visible | ~some), -math.inf).softmax(3)
    return weights.masked_fill(~some, 0.0)
