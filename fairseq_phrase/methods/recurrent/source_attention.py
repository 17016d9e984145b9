"""Attention of decoder states to source states, with coverage, and self-attention of source states.

Sources: Luong et al. (2015), Bahdanau et al. (2015), See et al. (2017). A score is computed in two
steps. :meth:`Score.keys` computes the source's part, once per sentence;
:meth:`Score.forward` scores all queries and all source states with batched products.

h̄_i is a decoder state (query), h_j a source state, e_ij the score.

Self-attention, x'_i from x, is as introduced with recurrent networks: over a whole sentence, without
scaling, residual connection or layer norm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from fairseq_phrase.methods.common.tensors import check_mask, upcast

#: D, the positions that a window reaches to each side of its centre (Luong et al. 2015).
REACH = 10
_RANGE = 0.1  # fairseq's recurrent models start from parameters in this range


class Score(nn.Module):
    """The score of every source state for every query.

    Raises:
        ValueError: the score does not exist for these widths.

    Examples:
        >>> score = DotScore(query_width=6, source_width=6)
        >>> score(torch.zeros(2, 3, 6), score.keys(torch.zeros(2, 5, 6))).shape
        torch.Size([2, 3, 5])
    """

    def __init__(self, query_width: int, source_width: int) -> None:
        super().__init__()
        self.query_width, self.source_width = query_width, source_width

    def keys(self, source: Tensor) -> Tensor:
        """Compute the source's part of the score. Shape: (batch, source, key width).

        Args:
            source: h_j. Shape: (batch, source, source width)
        """
        return source

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Compute e_ij, by default by dot products. Shape: (batch, queries, source).

        Args:
            queries: h̄_i. Shape: (batch, queries, query width)
            keys: from :meth:`keys`. Shape: (batch, source, key width)
        """
        return queries @ keys.transpose(1, 2)


class DotScore(Score):
    """e_ij = h̄_i · h_j; queries and source states have one width."""

    def __init__(self, query_width: int, source_width: int) -> None:
        if query_width != source_width:
            raise ValueError(
                f"the dot product needs states of one width: {query_width} and {source_width}"
            )
        super().__init__(query_width, source_width)


class BilinearScore(Score):
    """e_ij = h̄_iᵀ W h_j, Luong's "general"."""

    def __init__(self, query_width: int, source_width: int) -> None:
        super().__init__(query_width, source_width)
        self.weight = _parameter(query_width, source_width)

    def keys(self, source: Tensor) -> Tensor:
        """Return W h_j. Shape: (batch, source, query width)."""
        return source @ self.weight.T


class AdditiveScore(Score):
    """e_ij = v · tanh(W [h̄_i; h_j]), as Bahdanau et al.; v, W h̄_i and W h_j have the query's width."""

    def __init__(self, query_width: int, source_width: int) -> None:
        super().__init__(query_width, source_width)
        self.query_weight = _parameter(query_width, query_width)
        self.source_weight = _parameter(query_width, source_width)
        self.vector = _parameter(query_width)

    def keys(self, source: Tensor) -> Tensor:
        """Return W h_j, without the part of h̄_i. Shape: (batch, source, query width)."""
        return source @ self.source_weight.T

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Score; for arguments and shapes see :class:`Score`."""
        # tanh is applied to each pair: (batch, queries, source, query width).
        pairs = (queries @ self.query_weight.T).unsqueeze(2) + keys.unsqueeze(1)
        return pairs.tanh() @ self.vector


class ConcatScore(Score):
    """e_ij = vᵀ W [h̄_i; h_j], linear.

    The part of h̄_i is the same for all j, so the softmax over j does not depend on the decoder state.
    Every target word gets the same context.
    """

    def __init__(self, query_width: int, source_width: int) -> None:
        super().__init__(query_width, source_width)
        self.weight = _parameter(query_width, query_width + source_width)
        self.vector = _parameter(query_width)

    def keys(self, source: Tensor) -> Tensor:
        """Return vᵀ W [0; h_j]. Shape: (batch, source, 1)."""
        return source @ (self.vector @ self.weight)[self.query_width :, None]

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Score; for arguments and shapes see :class:`Score`."""
        query_part = queries @ (self.vector @ self.weight)[: self.query_width, None]
        return query_part + keys.transpose(1, 2)


def _parameter(*shape: int) -> nn.Parameter:
    """Make a parameter. The range keeps initial scores small for any width."""
    limit = min(_RANGE, 1 / math.sqrt(shape[-1]))
    return nn.Parameter(torch.empty(shape).uniform_(-limit, limit))


#: Scores by name.
SCORES: dict[str, type[Score]] = {
    "dot": DotScore,
    "bilinear": BilinearScore,
    "additive": AdditiveScore,
    "concat": ConcatScore,
}


@dataclass(frozen=True)
class SourceStates:
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
    """Attention to the whole source; the base of windows.

    Args:
        width: of h̄_t.
        reach: D.
    """

    def __init__(self, width: int, reach: int) -> None:
        super().__init__()
        self.reach = reach

    def forward(
        self, queries: Tensor, source: SourceStates, first: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the window.

        Args:
            queries: h̄_t. Shape: (batch, queries, width)
            first: t of the first query.

        Returns:
            True within the window (None: everywhere), and the factors of the weights (None: 1).
            Shape: (batch, queries, source)
        """
        return None, None


class MonotonicWindow(AllPositions):
    """local-m: p_t = t, or the source's last position if t is larger."""

    def forward(self, queries: Tensor, source: SourceStates, first: int) -> tuple[Tensor, None]:
        """Return the window; for arguments and shapes see :class:`AllPositions`."""
        steps = torch.arange(first, first + queries.size(1), device=queries.device)
        # (batch, queries)
        centres = torch.minimum(steps, source.lengths[:, None] - 1)
        return _near(centres, source.positions, self.reach), None


class PredictedWindow(AllPositions):
    """local-p: p_t = S sigmoid(vᵀ tanh(W h̄_t)), with S the source's length.

    The weights of the softmax are multiplied by exp(-(s - p_t)² / 2σ²) with σ = D / 2, so they do not sum
    to 1. The gradient reaches p_t through this factor.

    The parameter is v times the square root of the width. Adam changes each element of v by about the
    learning rate, and a wide v would soon saturate the sigmoid, with all windows at one end.

    p_t, the distances and the factors are computed in single precision: in half precision, positions of
    long sentences are rounded by more than one.
    """

    def __init__(self, width: int, reach: int) -> None:
        super().__init__(width, reach)
        self.hidden = nn.Linear(width, width, bias=False)
        self.scaled_vector = nn.Linear(width, 1, bias=False)

    def centres(self, queries: Tensor, source: SourceStates) -> Tensor:
        """Return p_t, in single precision at least. Shape: (batch, queries)."""
        # fairseq's --amp would compute the products in half precision.
        with torch.autocast(queries.device.type, enabled=False):
            hidden = linear(upcast(queries), upcast(self.hidden.weight)).tanh()
            vector = upcast(self.scaled_vector.weight) * queries.size(-1) ** -0.5
            share = linear(hidden, vector).squeeze(-1).sigmoid()
        return share * source.lengths[:, None]

    def forward(self, queries: Tensor, source: SourceStates, first: int) -> tuple[Tensor, Tensor]:
        """Return the window; for arguments and shapes see :class:`AllPositions`."""
        centres = self.centres(queries, source)
        # (batch, queries, source)
        distances = source.positions[:, None] - centres.unsqueeze(-1)
        # σ = D / 2, so 2σ² = D² / 2.
        factors = (-2 * (distances / self.reach).square()).exp()
        return (_near(centres.detach(), source.positions, self.reach), factors.to(queries.dtype))


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
        reach: D, the number of positions of a window on each side of its centre.

    Raises:
        ValueError: the score does not exist for these widths.

    Examples:
        >>> attention = SourceAttention("bilinear", query_width=6, source_width=8)
        >>> source = SourceStates(torch.zeros(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool))
        >>> keys = attention.score.keys(source.states)
        >>> context, weights = attention(torch.zeros(2, 3, 6), source, keys)
        >>> context.shape, weights.shape
        (torch.Size([2, 3, 8]), torch.Size([2, 3, 5]))
    """

    def __init__(
        self,
        score: str,
        query_width: int,
        source_width: int,
        window: str = "all",
        reach: int = REACH,
    ) -> None:
        super().__init__()
        self.score = SCORES[score](query_width, source_width)
        self.window = WINDOWS[window](query_width, reach)

    def forward(
        self, queries: Tensor, source: SourceStates, keys: Tensor, first: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Attend.

        Args:
            queries: h̄_i. Shape: (batch, queries, query width)
            keys: ``score.keys(source.states)``, computed once per sentence.
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


def coverage_loss(weights: Tensor, target_padding: Tensor) -> Tensor:
    """Sum min(α_ij, Σ_{i'<i} α_i'j) over source positions j and unpadded target positions i.

    Args:
        weights: α, 0 at the source's padding. Shape: (batch, target, source)
        target_padding: True at the target's padding, which comes last. Shape: (batch, target)

    Examples:
        >>> weights = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])
        >>> coverage_loss(weights, torch.zeros(1, 2, dtype=torch.bool)).item()
        0.5
    """
    weights = upcast(weights)
    before = weights.cumsum(1) - weights
    repeated = weights.minimum(before).sum(-1)
    return repeated.masked_fill(target_padding, 0.0).sum()


class PlainSelfAttention(nn.Module):
    """x'_i = Σ_j α_ij x_j with α_ij = softmax(x_iᵀ x_j); without parameters."""

    def __init__(self, width: int, num_heads: int = 1) -> None:
        super().__init__()

    def forward(self, states: Tensor, padding: Tensor) -> Tensor:
        """Compute x'. Shape: (batch, tokens, width).

        Args:
            states: x. Shape: (batch, tokens, width)
            padding: True at padding. Shape: (batch, tokens)
        """
        return _unpadded(states @ states.transpose(1, 2), padding[:, None]) @ states


class BilinearSelfAttention(nn.Module):
    """x'_k,i = Σ_j α_k,ij V_k x_j with α_k,ij = softmax(x_iᵀ W_k x_j), heads k concatenated.

    Args:
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
        weights = _unpadded(queries @ states[:, None].transpose(2, 3), padding[:, None, None])
        return cast(Tensor, (weights @ values).transpose(1, 2).flatten(2))


def _unpadded(scores: Tensor, hidden: Tensor) -> Tensor:
    """Normalize scores over unpadded keys; padded queries also have finite weights."""
    return upcast(scores).masked_fill(hidden, -math.inf).softmax(-1).to(scores.dtype)
