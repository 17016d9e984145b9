"""Absolute positions of tokens in the tree, alone or fused with positions in the sentence (eq. 3, 5, 7).

Source: *Self-Attention with Structural Position Representations*, section 3;
``docs/models/structural_positions.md``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, pad

FUSIONS = ("tanh", "add")


def sinusoids(count: int, width: int) -> Tensor:
    """Encode the positions 0, 1, ... (eq. 3), first all sines and then all cosines as fairseq does.

    Args:
        count: how many positions.
        width: of an encoding; the last column of an odd width is 0.

    Returns:
        Shape: (count, width), float32
    """
    half = width // 2
    # Wavelengths from 2π to 10000 · 2π.
    rates = torch.exp(torch.arange(half) * (-math.log(10000) / max(half - 1, 1)))
    angles = torch.arange(count)[:, None] * rates
    return pad(torch.cat([angles.sin(), angles.cos()], dim=1), (0, width - 2 * half))


class DepthEncoding(nn.Module):
    """The encoding of tree depths, fused with that of positions in the sentence if there are any.

    Args:
        width: model width d.
        max_depth: largest depth to prepare for; larger depths still work.
        fusion: ``"tanh"`` for ``tanh(W_seq PE(seq) + W_stru PE(stru) + b)`` (eq. 7), or ``"add"``
            for ``PE(seq) + PE(stru)``, without parameters; None if positions are never given.

    Raises:
        ValueError: if the fusion is unknown.
    """

    table: Tensor

    def __init__(self, width: int, max_depth: int = 256, fusion: str | None = None) -> None:
        super().__init__()
        if fusion not in (None, *FUSIONS):
            raise ValueError(f"unknown fusion {fusion!r}, expected one of {', '.join(FUSIONS)}")
        self.sequential: nn.Linear | None = None
        self.structural: nn.Linear | None = None
        if fusion == "tanh":
            self.sequential = nn.Linear(width, width, bias=False)
            self.structural = nn.Linear(width, width)
            nn.init.xavier_uniform_(self.sequential.weight)
            nn.init.xavier_uniform_(self.structural.weight)
            nn.init.zeros_(self.structural.bias)
        self.register_buffer("table", sinusoids(max_depth + 1, width), persistent=False)

    def forward(
        self,
        depths: Tensor,
        max_depth: int,
        positions: Tensor | None = None,
        position_encodings: Tensor | None = None,
    ) -> Tensor:
        """Encode depths, and positions in the sentence if given. Shape: (batch, tokens, width).

        A batch has far fewer depths and positions than tokens. So these are projected first, and then
        looked up for each token.

        Args:
            depths: tree depth of each token. Shape: (batch, tokens), int64
            max_depth: an upper bound of the depths, for example the number of tokens.
            positions: the token's position in its sentence, an index of ``position_encodings``.
                Shape: (batch, tokens), int64
            position_encodings: PE(seq), of each position. Shape: (positions, width)
        """
        encodings = self._depth_encodings(max_depth + 1)
        if self.structural is not None:
            encodings = self.structural(encodings)
        encoded = embedding(depths, encodings)
        if positions is not None and position_encodings is not None:
            if self.sequential is not None:
                position_encodings = self.sequential(position_encodings)
            encoded = encoded + embedding(positions, position_encodings)
        return encoded.tanh() if self.structural is not None else encoded

    def _depth_encodings(self, count: int) -> Tensor:
        if count > len(self.table):
            self.table = sinusoids(count, self.table.size(1)).to(self.table)
        return self.table[:count]
