"""Scores of source states for decoder states: dot, bilinear, additive, concat.

Sources: Luong et al. (2015), Bahdanau et al. (2015). A score is computed in two steps. :meth:`Score.keys`
does what depends on the source alone, once for a sentence. :meth:`Score.forward` scores all queries and
all source states with batched products.

h̄_i is a decoder state (query), h_j a source state, e_ij the score.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

_RANGE = 0.1  # fairseq's recurrent models start from parameters in this range


class Score(nn.Module):
    """The score of every source state for every query.

    Args:
        query_width: width of decoder states.
        source_width: width of source states.

    Raises:
        ValueError: the score does not exist for these widths.

    Examples:
        >>> import torch
        >>> score = DotScore(query_width=6, source_width=6)
        >>> score(torch.zeros(2, 3, 6), score.keys(torch.zeros(2, 5, 6))).shape
        torch.Size([2, 3, 5])
    """

    def __init__(self, query_width: int, source_width: int) -> None:
        super().__init__()
        self.query_width, self.source_width = query_width, source_width

    def keys(self, source: Tensor) -> Tensor:
        """Compute what the score needs of the source. Shape: (batch, source, key width).

        Args:
            source: h_j. Shape: (batch, source, source width)
        """
        return source

    @abstractmethod
    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Score.

        Args:
            queries: h̄_i. Shape: (batch, queries, query width)
            keys: from :meth:`keys`. Shape: (batch, source, key width)

        Returns:
            e_ij. Shape: (batch, queries, source)
        """


class DotScore(Score):
    """e_ij = h̄_i · h_j; queries and source states have one width."""

    def __init__(self, query_width: int, source_width: int) -> None:
        if query_width != source_width:
            raise ValueError(
                f"the dot product needs states of one width: {query_width} and {source_width}"
            )
        super().__init__(query_width, source_width)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Score; for arguments and shapes see :class:`Score`."""
        return queries @ keys.transpose(1, 2)


class BilinearScore(Score):
    """e_ij = h̄_iᵀ W h_j, Luong's "general"."""

    def __init__(self, query_width: int, source_width: int) -> None:
        super().__init__(query_width, source_width)
        self.weight = _parameter(query_width, source_width)

    def keys(self, source: Tensor) -> Tensor:
        """Return W h_j. Shape: (batch, source, query width)."""
        return source @ self.weight.T

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Score; for arguments and shapes see :class:`Score`."""
        return queries @ keys.transpose(1, 2)


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
        own = queries @ (self.vector @ self.weight)[: self.query_width, None]
        return own + keys.transpose(1, 2)


def _parameter(*shape: int) -> nn.Parameter:
    """Make a parameter. The range keeps first scores small for any width."""
    limit = min(_RANGE, 1 / math.sqrt(shape[-1]))
    return nn.Parameter(torch.empty(shape).uniform_(-limit, limit))


#: Scores by name.
SCORES: dict[str, type[Score]] = {
    "dot": DotScore,
    "bilinear": BilinearScore,
    "additive": AdditiveScore,
    "concat": ConcatScore,
}
