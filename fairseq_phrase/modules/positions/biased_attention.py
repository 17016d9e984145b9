"""Self-attention whose scores take a bias for each pair of tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import dropout, scaled_dot_product_attention

from fairseq_phrase.modules.projections import initialize_projections, split_heads
from fairseq_phrase.modules.tensors import upcast


class _PairBias(torch.autograd.Function):
    """Look up numbers for every pair; the gradients are summed without a vector for each pair."""

    @staticmethod
    def forward(ctx, masked: Tensor | None, *tables_and_indices: Tensor) -> Tensor:
        tables, indices = tables_and_indices[::2], tables_and_indices[1::2]
        ctx.save_for_backward(*indices)
        ctx.widths = [table.size(1) for table in tables]
        batch = max(map(len, indices))
        # (kinds of pairs) -> (batch, heads, queries * keys)
        first, *others = (
            table.expand(batch, -1, -1).gather(2, _of_heads(index, batch, len(table)))
            for table, index in zip(tables, indices, strict=True)
        )
        for other in others:
            first += other
        bias = first.unflatten(2, indices[0].shape[1:])
        return bias if masked is None else bias.masked_fill(masked[:, None, None], -math.inf)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        # The gradient at masked keys is 0, because the softmax gave them no weight.
        exact = upcast(gradient).flatten(2)
        batch, heads, _ = exact.shape
        sums = exact.new_zeros(batch, heads, sum(ctx.widths)).split(ctx.widths, 2)
        of_inputs: list[Tensor | None] = [None]
        for of_table, index in zip(sums, ctx.saved_tensors, strict=True):
            of_table.scatter_add_(2, _of_heads(index, batch, heads), exact)
            of_inputs += [of_table.sum(0).to(gradient.dtype), None]
        return tuple(of_inputs)


def _of_heads(index: Tensor, batch: int, heads: int) -> Tensor:
    """View indices of pairs as those of all sentences and heads. Shape: (batch, heads, pairs)."""
    return index.flatten(1)[:, None].expand(batch, heads, -1)


def pair_bias(*lookups: tuple[Tensor, Tensor], masked: Tensor | None = None) -> Tensor:
    """Look up the number of each pair's kind, in every head, in one or more tables, and add them.

    Args:
        *lookups: a table and an index. The table has a number for each head and kind of pair, the index
            the kind of each pair.
            Shape of a table: (heads, kinds). Shape of an index: (batch or 1, queries, keys), int64
        masked: True at keys whose pairs get -inf. The bias is then for a softmax, which gives them no
            gradient. Shape: (batch, keys)

    Returns:
        Shape: (batch, heads, queries, keys)
    """
    return _PairBias.apply(masked, *(tensor for lookup in lookups for tensor in lookup))


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
    # The CPU has no fused attention with a gradient for the bias. torch's replacement is slower.
    if not need_weights and (bias.is_cuda or not bias.requires_grad):
        return scaled_dot_product_attention(query, key, value, bias, dropout_p), None
    scores = upcast(query / math.sqrt(query.size(-1)) @ key.transpose(-2, -1))
    weights = (scores + bias).softmax(-1)
    attended = dropout(weights, dropout_p).to(value.dtype) @ value
    return attended, weights if need_weights else None


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
        projections = self.q_proj, self.k_proj, self.v_proj
        query, key, value = split_heads(states, projections, self.num_heads)
        return query, key, value

    def join(self, heads: Tensor) -> Tensor:
        """Project the heads' attended values to states.

        Args:
            heads: Shape: (batch, heads, tokens, head width)

        Returns:
            Shape: (tokens, batch, width)
        """
        return self.out_proj(heads.permute(2, 0, 1, 3).flatten(2))
