"""Attention of decoder states to source states."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from fairseq_phrase.modules.recurrent_attention.scores import SCORES
from fairseq_phrase.modules.tensors import check_mask, upcast


@dataclass(frozen=True)
class Source:
    """A batch's source states; padding may be on either side.

    Attributes:
        states: h_j. Shape: (batch, source, width)
        padding: True at padding. Shape: (batch, source)

    Raises:
        ValueError: the mask is not boolean, or does not fit the states.
    """

    states: Tensor
    padding: Tensor

    def __post_init__(self) -> None:
        """Check the mask."""
        check_mask("padding", self.padding, *self.states.shape[:2])

    @cached_property
    def positions(self) -> Tensor:
        """Positions of tokens in their sentences, from 0. Shape: (batch, source), int64."""
        return (~self.padding).cumsum(1) - 1

    @cached_property
    def lengths(self) -> Tensor:
        """Number of tokens of each sentence. Shape: (batch,), int64."""
        return (~self.padding).sum(1)


class AllPositions(nn.Module):
    """Attention to all of the source."""

    def __init__(self, width: int, reach: int) -> None:
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

    def __init__(self, width: int, reach: int) -> None:
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

    def __init__(self, width: int, reach: int) -> None:
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


class SourceAttention(nn.Module):
    """α_ij = softmax of e_ij over the unpadded j of the window; c_i = Σ_j α_ij h_j.

    Args:
        score: a name in :data:`SCORES`.
        query_width: width of decoder states.
        source_width: width of source states.
        window: a name in :data:`WINDOWS`.
        reach: D, how many positions a window reaches to both sides.

    Raises:
        ValueError: the score does not exist for these widths.

    Examples:
        >>> import torch
        >>> attention = SourceAttention("bilinear", query_width=6, source_width=8)
        >>> source = Source(torch.zeros(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool))
        >>> keys = attention.score.keys(source.states)
        >>> context, weights = attention(torch.zeros(2, 3, 6), source, keys)
        >>> context.shape, weights.shape
        (torch.Size([2, 3, 8]), torch.Size([2, 3, 5]))
    """

    def __init__(
        self, score: str, query_width: int, source_width: int, window: str = "all", reach: int = 10
    ) -> None:
        super().__init__()
        self.score = SCORES[score](query_width, source_width)
        self.window = WINDOWS[window](query_width, reach)

    def forward(
        self, queries: Tensor, source: Source, keys: Tensor, first: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Attend.

        Args:
            queries: h̄_i. Shape: (batch, queries, query width)
            source: the source sentences.
            keys: ``score.keys(source.states)``, computed once for a sentence.
            first: the target position of the first query, from 0.

        Returns:
            c_i, of shape (batch, queries, source width), and α_ij, of shape (batch, queries, source).
        """
        window, factors = self.window(queries, source, first)
        hidden = source.padding[:, None]
        if window is not None:
            hidden = hidden | ~window
        scores = upcast(self.score(queries, keys)).masked_fill(hidden, -math.inf)
        weights = scores.softmax(-1).to(queries.dtype)
        if factors is not None:
            weights = weights * factors
        return weights @ source.states, weights
