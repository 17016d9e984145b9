"""Self-attention whose scores take a bias for each pair of tokens."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import dropout, scaled_dot_product_attention

from fairseq_phrase.modules.tensors import additive, applied, cached_per_tensor, infinite, upcast


class _PairBias(torch.autograd.Function):
    """Look up a number for every pair; gradients are summed without one vector per pair."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor, masked: Tensor | None) -> Tensor:
        ctx.save_for_backward(index)
        ctx.kinds = table.size(1)
        batch = len(index) if masked is None else len(masked)
        # (heads, kinds of pairs) -> (batch, heads, queries * keys)
        flat = table.expand(batch, -1, -1).gather(2, _for_heads(index, batch, len(table)))
        bias: Tensor = flat.unflatten(2, index.shape[1:])
        if masked is not None:
            bias += infinite(masked, bias.dtype)[:, None]
        return bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # The gradient at masked pairs is 0, because their softmax weight is 0.
        exact = upcast(gradient).flatten(2)
        batch, heads, _ = exact.shape
        (index,) = ctx.saved_tensors
        sums = exact.new_zeros(batch, heads, ctx.kinds)
        sums.scatter_add_(2, _for_heads(index, batch, heads), exact)
        return sums.sum(0).to(gradient.dtype), None, None


def _for_heads(index: Tensor, batch: int, heads: int) -> Tensor:
    """Expand indices of pairs to all sentences and heads. Shape: (batch, heads, pairs), int64."""
    return index.flatten(1).long()[:, None].expand(batch, heads, -1)


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
        bias: -inf where a query may not attend; no row may be all -inf; None for no bias.
            Shape: broadcasts to (batch, heads, tokens, tokens)
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
        scores = scores.add_(bias)
    del bias  # it and the scores are as large as the weights
    weights = scores.softmax(-1)
    del scores
    attended = dropout(weights, dropout_p).to(value.dtype) @ value
    return attended, weights if need_weights else None


def _node_masks(
    mask: Tensor, queries: int, twice: int, tokens: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Make the masks for attention in which the first queries see tokens and other nodes separately.

    Args:
        queries, twice, tokens: numbers of all queries, of repeated queries, and of tokens.

    Returns:
        0 where a query may attend, else -inf: all queries, then the repeated queries with other nodes
        only (shape (batch or 1, 1, queries + twice, nodes)); and 0 for a query that may not attend to
        any other node, else 1 (shape (batch or 1, 1, twice or 1, 1)).
    """

    def make() -> tuple[Tensor, Tensor]:
        rows = mask.expand(-1, -1, queries, -1)
        of_token = torch.arange(mask.size(-1), device=mask.device) < tokens
        further = rows[:, :, :twice] & ~of_token
        seen = further.any(-1, keepdim=True)
        first = rows[:, :, :twice] & of_token
        # Without other nodes a softmax would be empty: it gets all nodes, and the factor 0.
        allowed = torch.cat([first, rows[:, :, twice:], further | ~seen], 2)
        return additive(allowed, dtype), seen.to(dtype)

    return cached_per_tensor(mask, ("nodes", queries, twice, tokens, dtype), make)


def _add_again(rows: Tensor, twice: int, factor: Tensor | None = None) -> Tensor:
    """Add the last rows, times a factor, to the first. Shape: (batch, heads, rows - twice, width)."""
    rest, again = rows.tensor_split([rows.size(2) - twice], 2)
    # empty_like keeps the memory layout of the rows, in which the projections read them.
    found = torch.empty_like(rest)
    if factor is None:
        torch.add(rest[:, :, :twice], again, out=found[:, :, :twice])
    else:
        torch.addcmul(rest[:, :, :twice], factor, again, out=found[:, :, :twice])
    found[:, :, twice:] = rest[:, :, twice:]
    return found


class _AskTwice(torch.autograd.Function):
    """Append a copy of the first queries to the queries."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, twice: int) -> Tensor:
        ctx.twice = twice
        return torch.cat([query, query[:, :, :twice]], 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _add_again(gradient, ctx.twice), None


class _AddAnswers(torch.autograd.Function):
    """Add the repeated queries' results, times a factor: [a, b, c] becomes [a + factor c, b]."""

    @staticmethod
    def forward(ctx: Any, answers: Tensor, factor: Tensor, twice: int) -> Tensor:
        ctx.save_for_backward(answers[:, :, -twice:], factor)
        return _add_again(answers, twice, factor.to(answers.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        again, factor = ctx.saved_tensors
        of_twice = gradient[:, :, : again.size(2)]
        of_factor = (of_twice * again).sum(-1, keepdim=True, dtype=upcast(factor).dtype)
        whole = torch.cat([gradient, of_twice * factor.to(gradient.dtype)], 2)
        return whole, of_factor.sum_to_size(factor.shape).to(factor.dtype), None


def node_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    gate: Tensor | None,
    tokens: int,
    dropout_p: float = 0.0,
    need_weights: bool = False,
    *,
    twice: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attend to nodes; with a gate, to tokens, plus tanh(g) per head times attention to other nodes.

    *Decision*: tokens and other nodes have separate softmaxes, as in Flamingo (Alayrac et al. 2022). With
    g = 0 this is attention to the tokens, independently of the other nodes' scores, and g has a gradient.
    One fused kernel computes both: each gated query occurs twice, for the tokens and for the other nodes.

    Args:
        query: Shape: (batch, heads, queries, head width)
        key, value: tokens first. Shape of each: (batch, heads, nodes, head width)
        mask: True where a query may attend. Shape: (batch, 1, 1 or queries, nodes)
        gate: g; None for one softmax over all nodes. Shape: (heads,)
        tokens: number of tokens.
        twice: number of first queries that see other nodes through the gate; by default the number of
            tokens.

    Returns:
        As :func:`biased_attention`. With a gate, the weights of tokens sum to 1, and the weights of other
        nodes to tanh(g).
    """
    if gate is None:
        bias = additive(mask, query.dtype)
        return biased_attention(query, key, value, bias, dropout_p, need_weights)
    twice = tokens if twice is None else twice
    bias, seen = _node_masks(mask, query.size(2), twice, tokens, query.dtype)
    asked = applied(_AskTwice, query, twice)
    answers, weights = biased_attention(asked, key, value, bias, dropout_p, need_weights)
    factor = gate.tanh().to(query.dtype)[:, None, None] * seen
    attended = applied(_AddAnswers, answers, factor, twice)
    return attended, None if weights is None else applied(_AddAnswers, weights, factor, twice)
