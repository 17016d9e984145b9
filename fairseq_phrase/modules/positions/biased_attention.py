"""Self-attention whose scores take a bias for each pair of tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention

from fairseq_phrase.modules.precision import upcast
from fairseq_phrase.modules.projections import initialize_projections

__all__ = ["HeadsAttention", "biased_attention", "masked_keys", "pair_bias"]


def masked_keys(padding_mask: Tensor | None) -> Tensor | None:
    """Return the keys that get no weight; None if every key gets some.

    A sentence that is all padding attends to itself, so that no NaN reaches the gradients.

    Args:
        padding_mask: True at padding; None without padding. Shape: (batch, tokens)
    """
    return None if padding_mask is None else padding_mask & ~padding_mask.all(1, keepdim=True)


class _PairBias(torch.autograd.Function):
    """Look up a number for every pair; the gradient is summed without a vector for each pair."""

    @staticmethod
    def forward(ctx, table: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape = table.shape
        batch, *pairs = index.shape
        heads, rows = table.shape
        # (batch, queries, keys) -> (batch, heads, queries * keys)
        wide = index.reshape(batch, 1, -1).expand(-1, heads, -1)
        return table.expand(batch, heads, rows).gather(2, wide).view(batch, heads, *pairs)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (index,) = ctx.saved_tensors
        batch, (heads, rows) = len(index), ctx.shape
        exact = upcast(gradient)
        sums = exact.new_zeros(batch, heads, rows)
        wide = index.reshape(batch, 1, -1).expand(-1, heads, -1)
        sums.scatter_add_(2, wide, exact.reshape(batch, heads, -1))
        return sums.sum(0).to(gradient.dtype), None


def pair_bias(table: Tensor, index: Tensor) -> Tensor:
    """Look up the number of each pair's kind, in every head.

    Args:
        table: a number for each head and kind of pair.
            Shape: (heads, kinds)
        index: the kind of each pair.
            Shape: (batch, queries, keys), int64

    Returns:
        Shape: (batch, heads, queries, keys)
    """
    return _PairBias.apply(table, index)


def biased_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    dropout_p: float = 0.0,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attend with a bias added to the scores, by ``scaled_dot_product_attention``.

    Args:
        query: Shape: (batch, heads, tokens, head width)
        key: Shape: (batch, heads, tokens, head width)
        value: Shape: (batch, heads, tokens, head width)
        bias: -inf where a query may not attend; no row may be all -inf.
            Shape: broadcasts to (batch, heads, tokens, tokens)
        dropout_p: probability with which a weight is dropped.
        need_weights: also return the weights, which is slower.

    Returns:
        The attended values, of shape (batch, heads, tokens, head width), and the weights before
        dropout, in single precision or better, of shape (batch, heads, tokens, tokens), or None.
    """
    if not need_weights:
        return scaled_dot_product_attention(query, key, value, bias, dropout_p), None
    scores = upcast(query / math.sqrt(query.size(-1)) @ key.transpose(-2, -1))
    weights = (scores + bias).softmax(-1)
    return dropout(weights, dropout_p).to(value.dtype) @ value, weights


class HeadsAttention(nn.Module):
    """The projections of multi-head self-attention: a base class for attentions. Time-first.

    The projections are named, ordered and initialized as in fairseq's ``MultiheadAttention``.

    Args:
        embed_dim: model width d.
        num_heads: number of heads h, a divisor of d.
        dropout: probability with which an attention weight is dropped in training.
        bias: whether the four projections have biases.

    Raises:
        ValueError: d is not a multiple of h.
    """

    def __init__(
        self, *, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads != 0:
            raise ValueError(f"embed_dim {embed_dim} is not divisible into {num_heads} heads")
        self.num_heads = num_heads
        self.dropout = dropout
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize as fairseq does for queries, keys and values of one width."""
        initialize_projections((self.k_proj, self.v_proj, self.q_proj), self.out_proj)

    @property
    def dropout_p(self) -> float:
        """The probability with which a weight is dropped now; 0 outside training."""
        return self.dropout if self.training else 0.0

    def split(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project states to queries, keys and values of the heads.

        Args:
            states: Shape: (tokens, batch, width)

        Returns:
            Shape of each: (batch, heads, tokens, head width)
        """
        query, key, value = (
            # (tokens, batch, width) -> (batch, heads, tokens, head width)
            projection(states).unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0, 3)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        return query, key, value

    def join(self, heads: Tensor) -> Tensor:
        """Project the heads' attended values to states.

        Args:
            heads: Shape: (batch, heads, tokens, head width)

        Returns:
            Shape: (tokens, batch, width)
        """
        return self.out_proj(heads.permute(2, 0, 1, 3).flatten(2))
