"""Self-attention as it was introduced beside recurrence: plain, or with a full matrix for each head.

Both are over a whole sentence, without scaling, residual connection or layer norm.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from fairseq_phrase.modules.tensors import upcast


class PlainSelfAttention(nn.Module):
    """x'_i = Σ_j α_ij x_j with α_ij = softmax(x_iᵀ x_j); without parameters."""

    def __init__(self, width: int, num_heads: int = 1) -> None:
        super().__init__()

    def forward(self, states: Tensor, padding: Tensor) -> Tensor:
        """Attend.

        Args:
            states: x. Shape: (batch, tokens, width)
            padding: True at padding. Shape: (batch, tokens)

        Returns:
            x'. Shape: (batch, tokens, width)
        """
        return _weights(states @ states.transpose(1, 2), padding[:, None]) @ states


class BilinearSelfAttention(nn.Module):
    """x'_k,i = Σ_j α_k,ij V_k x_j with α_k,ij = softmax(x_iᵀ W_k x_j), heads k side by side.

    Args:
        width: of the states.
        num_heads: a divisor of the width. W_k is (width, width), V_k is (width / heads, width).

    Raises:
        ValueError: the heads do not divide the width.
    """

    def __init__(self, width: int, num_heads: int = 1) -> None:
        super().__init__()
        if width % num_heads:
            raise ValueError(f"{num_heads} heads do not divide the width {width}")
        self.weight = nn.Parameter(torch.empty(num_heads, width, width).normal_(std=1 / width))
        self.values = nn.Linear(width, width, bias=False)

    def forward(self, states: Tensor, padding: Tensor) -> Tensor:
        """Attend; for arguments and shapes see :class:`PlainSelfAttention`."""
        # (batch, heads, tokens, width) for queries; (batch, heads, tokens, head width) for values
        queries = torch.einsum("btw,hwv->bhtv", states, self.weight)
        values = self.values(states).unflatten(-1, (len(self.weight), -1)).transpose(1, 2)
        weights = _weights(queries @ states[:, None].transpose(2, 3), padding[:, None, None])
        return cast(Tensor, (weights @ values).transpose(1, 2).flatten(2))


def _weights(scores: Tensor, hidden: Tensor) -> Tensor:
    """Normalize scores over unpadded keys; padded queries also have finite weights."""
    return upcast(scores).masked_fill(hidden, -math.inf).softmax(-1).to(scores.dtype)
