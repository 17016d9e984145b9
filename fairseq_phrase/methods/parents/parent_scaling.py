"""Parent-scaled attention: scores are weighted by the distance of the key from the query's parent.

Source: Bugliarello and Okazaki, *Enhancing Machine Translation with Dependency-Aware Self-Attention*
(ACL 2020); ``docs/models/parent_scaling.md``. ``p_t`` is the middle of the subwords of t's parent:

    A = softmax(S ⊙ D),   D_tj = exp(-(j - p_t)² / 2σ²) / (σ √2π)

*Addition*: a learned g for each head interpolates between ordinary attention (g = 0) and this attention
(g = 1): softmax(S ⊙ (1 + g (D - 1))), or softmax(S + g log D).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from fairseq_phrase.methods.common.biased_attention import biased_attention
from fairseq_phrase.methods.common.projections import HeadsAttention
from fairseq_phrase.methods.common.tensors import upcast
from fairseq_phrase.methods.common.tree_positions import TreePositions

SCALINGS = ("multiply", "prior")
#: σ, in subwords, as in the paper.
STD = 1.0


def parent_middles(tree: TreePositions) -> Tensor:
    """Find p_t, the mean of the parent's first and last column. Shape: (batch, tokens), float32.

    The root and tokens outside words (the end of sentence, padding) are their own parents.
    """
    batch, num_tokens = tree.words.shape
    position = torch.arange(num_tokens, device=tree.words.device).expand(batch, -1)
    # Tokens outside words get an additional column after all words.
    column = tree.words.where(tree.is_word, tree.heads.size(1))
    empty = position.new_zeros(batch, tree.heads.size(1) + 1)
    first = empty.scatter_reduce(1, column, position, "amin", include_self=False)
    last = empty.scatter_reduce(1, column, position, "amax", include_self=False)
    middles = (first + last)[:, :-1].float() / 2
    parent = tree.heads.gather(1, tree.word)
    return middles.gather(1, parent).where(tree.is_word, position.float())


def parent_scales(middles: Tensor, scaling: str, std: float = STD) -> Tensor:
    """Compute the factors or summands of scores. Shape: (batch, tokens, tokens), float32.

    Args:
        middles: p_t. Shape: (batch, tokens)
        scaling: ``"multiply"`` for D; ``"prior"`` for the logarithm of D without its constant.
        std: σ, in subwords.

    Raises:
        ValueError: the scaling is unknown.
    """
    if scaling not in SCALINGS:
        raise ValueError(f"unknown scaling {scaling!r}, expected one of {', '.join(SCALINGS)}")
    positions = torch.arange(middles.size(1), device=middles.device)
    # Row t, column j. Shape: (batch, tokens, tokens)
    exponents = (positions - middles[:, :, None]).square() / (-2 * std**2)
    if scaling == "prior":
        return exponents
    return exponents.exp() / (std * math.sqrt(2 * math.pi))


def parent_scaled_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scales: Tensor,
    masked: Tensor | None = None,
    *,
    scaling: str = "multiply",
    gate: Tensor | None = None,
    dropout_p: float = 0.0,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attend with scores scaled by the distance from the parents.

    Args:
        query, key, value: Shape of each: (batch, heads, tokens, head width)
        scales: from :func:`parent_scales`. Shape: (batch, tokens, tokens)
        masked: True at keys that get no weight. Shape: (batch, tokens)
        scaling: ``"multiply"`` or ``"prior"``, as for :func:`parent_scales`.
        gate: g; None for 1. Shape: (heads,)

    Returns:
        The attended values, of shape (batch, heads, tokens, head width), and the weights before
        dropout, of shape (batch, heads, tokens, tokens), or None.
    """
    neutral = 1.0 if scaling == "multiply" else 0.0
    scales = scales[:, None]
    if scaling == "prior" and query.dtype != torch.float64:
        # Half precision would overflow far from the parent, where all weights are 0 in any case.
        # A quarter of the lowest number leaves room to add scores.
        scales = scales.clamp(min=torch.finfo(query.dtype).min / 4)
    # Shape: (batch, 1 or heads, tokens, tokens)
    scales = scales.to(query.dtype)
    if gate is not None:
        scales = neutral + gate.to(query.dtype)[:, None, None] * (scales - neutral)
    if scaling == "prior":
        if masked is not None:
            scales = scales.masked_fill(masked[:, None, None], -math.inf)
        return biased_attention(query, key, value, scales, dropout_p, need_weights)
    scores = query / math.sqrt(query.size(-1)) @ key.transpose(-2, -1) * scales
    if masked is not None:
        scores = scores.masked_fill(masked[:, None, None], -math.inf)
    weights = scores.softmax(-1)
    attended = dropout(weights, dropout_p) @ value
    return attended, upcast(weights) if need_weights else None


class ParentDistances(NamedTuple):
    """The changes of a batch's scores by the distances to the tokens' parents.

    Attributes:
        padding_mask: True at padding, for layers without scaled heads. Shape: (batch, tokens)
        scales: from :func:`parent_scales`. Shape: (batch, tokens, tokens)
        masked: True at keys that get no weight. Shape: (batch, tokens)
    """

    padding_mask: Tensor
    scales: Tensor
    masked: Tensor


class ParentScaledAttention(HeadsAttention):
    """Multi-head self-attention in which all heads are parent-scaled. Time-first.

    Its only parameters are the four projections of fairseq's attention, and the optional gate.

    Args:
        scaling: ``"multiply"`` for softmax(S ⊙ D), or ``"prior"`` for softmax(S + log D).
        neutral: learn g for each head, from 0.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        num_heads: int,
        scaling: str = "multiply",
        dropout: float = 0.0,
        neutral: bool = False,
    ) -> None:
        super().__init__(embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        self.scaling = scaling
        self.gate = nn.Parameter(torch.zeros(num_heads)) if neutral else None
        self.reset_parameters()

    def extra_repr(self) -> str:
        """Show the options in ``print(module)``."""
        return f"num_heads={self.num_heads}, {self.scaling}"

    def forward(
        self, states: Tensor, distances: ParentDistances, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attend once.

        Args:
            states: token states. Shape: (tokens, batch, width)
        """
        query, key, value = self.split(states)
        attended, weights = parent_scaled_attention(
            query,
            key,
            value,
            distances.scales,
            distances.masked,
            scaling=self.scaling,
            gate=self.gate,
            dropout_p=self.dropout_p,
            need_weights=need_weights,
        )
        return self.join(attended, states), weights
