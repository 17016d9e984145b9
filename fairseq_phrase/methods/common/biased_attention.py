"""Self-attention whose scores take a bias for each pair of tokens."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import dropout, scaled_dot_product_attention

from fairseq_phrase.methods.common.tensors import applied, infinite, upcast


class _PairBias(torch.autograd.Function):
    """Look up a number for every pair; gradients are summed without one vector per pair."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor, masked: Tensor | None) -> Tensor:
        ctx.save_for_backward(index)
        ctx.kinds = table.size(1)
        batch = len(index) if masked is None else len(masked)
        # (heads, kinds of pairs) -> (batch, heads, queries * keys)
        kind_of = index.flatten(1).long()[:, None].expand(batch, len(table), -1)
        flat = table.expand(batch, -1, -1).gather(2, kind_of)
        bias: Tensor = flat.unflatten(2, index.shape[1:])
        if masked is not None:
            bias += infinite(masked, bias.dtype)[:, None]
        return bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # The gradient at masked pairs is 0, because their softmax weight is 0.
        (index,) = ctx.saved_tensors
        parts = parts_of_sums(gradient, ctx.kinds)
        shape = parts, index[0].numel() // parts
        exact = upcast(gradient).reshape(*gradient.shape[:2], *shape)
        kind_of = index.long().reshape(len(index), 1, *shape)
        copies = copies_of_sums(gradient, ctx.kinds)
        if copies > 1:
            kind_of = kind_of + torch.arange(shape[1], device=index.device) % copies * ctx.kinds
        sums = exact.new_zeros(*exact.shape[:3], copies * ctx.kinds)
        sums.scatter_add_(3, kind_of.expand_as(exact), exact)
        by_kind = sums.unflatten(3, (copies, ctx.kinds)).sum((0, 2, 3))
        return by_kind.to(gradient.dtype), None, None


def parts_of_sums(gradient: Tensor, kinds: int) -> int:
    """Return into how many parts the pairs of a sentence are divided, each with a sum for every kind.

    The threads of a GPU that add to one sum wait for each other, so each query has its own sums there,
    unless they would be more than twice as many as the pairs.

    Args:
        gradient: of the bias. Shape: (batch, heads, queries, …); the rest are keys
    """
    queries, keys = gradient.size(2), gradient.shape[3:].numel()
    return queries if gradient.is_cuda and kinds <= 2 * keys else 1


def copies_of_sums(gradient: Tensor, kinds: int) -> int:
    """Return into how many sums adjacent pairs are added in turn.

    On a CPU an addition waits for the one before if both are to one sum, and adjacent pairs of long
    sentences often have one kind.
    """
    pairs = gradient.shape[2:].numel()
    return 4 if not gradient.is_cuda and pairs > 64 * kinds else 1


def pair_bias(table: Tensor, index: Tensor, masked: Tensor | None = None) -> Tensor:
    """Look up the number of each pair's kind. Shape: (batch or 1, heads, queries, keys).

    Args:
        table: a number for each head and kind of pair. Shape: (heads, kinds)
        index: the kind of each pair. Shape: (batch or 1, queries, keys), integers
        masked: True at pairs that get -inf. The bias is then for a softmax, and masked pairs get no
            gradient. Shape: (batch, 1 or queries, keys)
    """
    return applied(_PairBias, table, index, masked)


def scaled_scores(query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
    """Return QK^T/√d in single precision or better; scale first, because float16 may overflow."""
    query = query / math.sqrt(query.size(-1)) if scale is None else query * scale
    return upcast(query @ key.transpose(-2, -1))


def biased_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    dropout_p: float = 0.0,
    need_weights: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attend with a bias added to the scores, by ``scaled_dot_product_attention``.

    Args:
        query, key, value: Shape of each: (batch, heads, tokens, head width)
        bias: -inf where a query may not attend; no row may be all -inf; None for no bias. Or a mask, True
            where a query may attend. Shape: broadcasts to (batch, heads, tokens, tokens)
        need_weights: also return the weights, which is slower.
        scale: of the scores; 1/√d by default.

    Returns:
        The attended values, of shape (batch, heads, tokens, head width), and the weights before
        dropout, in single precision or better, of shape (batch, heads, tokens, tokens), or None.
    """
    # The CPU lacks fused attention with a gradient for the bias. torch's alternative is slower.
    if not need_weights and (bias is None or bias.is_cuda or not bias.requires_grad):
        return scaled_dot_product_attention(query, key, value, bias, dropout_p, scale=scale), None
    scores = scaled_scores(query, key, scale)
    if bias is not None:
        is_mask = bias.dtype == torch.bool
        scores = scores.masked_fill_(~bias, -math.inf) if is_mask else scores.add_(bias)
    del bias  # it and the scores are as large as the weights
    weights = scores.softmax(-1)
    del scores
    attended = dropout(weights, dropout_p).to(value.dtype) @ value
    return attended, weights if need_weights else None
