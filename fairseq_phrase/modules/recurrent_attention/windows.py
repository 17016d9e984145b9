"""Which source positions a target position attends to: all, or a window (Luong et al., 2015).

The window of target position t has a centre p_t and reaches D positions to both sides. The softmax is
over the source positions s with |s - p_t| <= D. Positions count from 0 and do not count padding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from fairseq_phrase.modules.precision import upcast
from fairseq_phrase.modules.recurrent_attention.sources import Source


class AllPositions(nn.Module):
    """Attention to all of the source."""

    def __init__(self, width: int, reach: int):
        super().__init__()

    def forward(
        self, queries: Tensor, source: Source, first: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the window.

        Args:
            queries: h̄_t. Shape: (batch, queries, width)
            source: the sentences.
            first: t of the first query.

        Returns:
            True within the window, and the factors of the weights; each None for everywhere and for 1.
            Shape: (batch, queries, source)
        """
        return None, None


class MonotonicWindow(nn.Module):
    """local-m: p_t = t, and the last position of the source where t is beyond it.

    Args:
        width: not used.
        reach: D.
    """

    def __init__(self, width: int, reach: int):
        super().__init__()
        self.reach = reach

    def forward(self, queries: Tensor, source: Source, first: int) -> tuple[Tensor, None]:
        """Return the window; for arguments and shapes see :class:`AllPositions`."""
        steps = torch.arange(first, first + queries.size(1), device=queries.device)
        # (batch, queries)
        centres = torch.minimum(steps, source.lengths[:, None] - 1)
        return _near(centres, source.positions, self.reach), None


class PredictedWindow(nn.Module):
    """local-p: p_t = S sigmoid(vᵀ tanh(W h̄_t)), with S the source's length.

    The weights of the softmax are multiplied by exp(-(s - p_t)² / 2σ²) with σ = D / 2, so they do not sum
    to 1. The gradient reaches p_t through this factor.

    The parameter is v times the square root of the width. Adam moves each of v's numbers by about the
    learning rate, so that a wide v would soon saturate the sigmoid, with all windows at one end.

    p_t, the distances and the factors are computed in single precision: in half precision, positions of
    long sentences are rounded by more than one.

    Args:
        width: of h̄_t.
        reach: D.
    """

    def __init__(self, width: int, reach: int):
        super().__init__()
        self.reach = reach
        self.hidden = nn.Linear(width, width, bias=False)
        self.scaled_vector = nn.Linear(width, 1, bias=False)

    def centres(self, queries: Tensor, source: Source) -> Tensor:
        """Return p_t, in single precision at least. Shape: (batch, queries)."""
        # fairseq's --amp would compute the products in half precision.
        with torch.autocast(queries.device.type, enabled=False):
            hidden = linear(upcast(queries), upcast(self.hidden.weight)).tanh()
            vector = upcast(self.scaled_vector.weight) * queries.size(-1) ** -0.5
            share = linear(hidden, vector).squeeze(-1).sigmoid()
        return share * source.lengths[:, None]

    def forward(self, queries: Tensor, source: Source, first: int) -> tuple[Tensor, Tensor]:
        """Return the window; for arguments and shapes see :class:`AllPositions`."""
        centres = self.centres(queries, source)
        # (batch, queries, source)
        distances = source.positions[:, None] - centres.unsqueeze(-1)
        factors = (-2 * (distances / self.reach).square()).exp()
        return (
            _near(centres.detach(), source.positions, self.reach),
            factors.to(queries.dtype),
        )


def _near(centres: Tensor, positions: Tensor, reach: int) -> Tensor:
    """Return True where a position is near a centre. Shape: (batch, queries, source)."""
    return (positions[:, None] - centres.unsqueeze(-1)).abs() <= reach


#: Windows by name.
WINDOWS: dict[str, type[nn.Module]] = {
    "all": AllPositions,
    "local-m": MonotonicWindow,
    "local-p": PredictedWindow,
}
