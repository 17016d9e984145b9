"""Attention of decoder states to source states."""

from __future__ import annotations

import math

from torch import Tensor, nn

from fairseq_phrase.modules.precision import upcast
from fairseq_phrase.modules.recurrent_attention.scores import SCORES
from fairseq_phrase.modules.recurrent_attention.sources import Source
from fairseq_phrase.modules.recurrent_attention.windows import WINDOWS


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
    ):
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
