"""Self-attention whose scores take a bias for each pair of tokens."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import dropout, scaled_dot_product_attention

from fairseq_phrase.modules.tensors import applied, upcast


class _PairBias(torch.autograd.Function):
    """Look up numbers for every pair; the gradients are summed without a vector for each pair."""

    @staticmethod
    def forward(ctx: Any, masked: Tensor | None, *tables_and_indices: Tensor) -> Tensor:
        tables, indices = tables_and_indices[::2], tables_and_indices[1::2]
        ctx.save_for_backward(*indices)
        ctx.widths = [table.size(1) for table in tables]
        batch = max(map(len, indices))
        # (kinds of pairs) -> (batch, heads, queries * keys)
        first, *others = (
            table.expand(batch, -1, -1).gather(2, _for_heads(index, batch, len(table)))
            for table, index in zip(tables, indices, strict=True)
        )
        for other in others:
            first += other
        bias = first.unflatten(2, indices[0].shape[1:])
        return cast(
            Tensor, bias if masked is None else bias.masked_fill(masked[:, None, None], -math.inf)
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # The gradient at masked keys is 0, because the softmax gave them no weight.
        exact = upcast(gradient).flatten(2)
        batch, heads, _ = exact.shape
        sums = exact.new_zeros(batch, heads, sum(ctx.widths)).split(ctx.widths, 2)
        of_inputs: list[Tensor | None] = [None]
        for of_table, index in zip(sums, ctx.saved_tensors, strict=True):
            of_table.scatter_add_(2, _for_heads(index, batch, heads), exact)
            of_inputs += [of_table.sum(0).to(gradient.dtype), None]
        return tuple(of_inputs)


def _for_heads(index: Tensor, batch: int, heads: int) -> Tensor:
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
    return applied(_PairBias, masked, *(tensor for lookup in lookups for tensor in lookup))


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
