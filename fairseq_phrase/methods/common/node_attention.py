"""Attention to tokens and to nodes above them, with a gate for the other nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_phrase.methods.common.biased_attention import biased_attention
from fairseq_phrase.methods.common.tensors import applied, upcast


def _node_masks(mask: Tensor, queries: int, twice: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Make the masks for attention in which the first queries see tokens and other nodes separately.

    Args:
        queries, twice, tokens: numbers of all queries, of repeated queries, and of tokens.

    Returns:
        True where a query may attend: all queries, then the repeated queries with other nodes only
        (shape (batch or 1, 1, queries + twice, nodes)); and False for a query that may not attend to any
        other node (shape (batch or 1, 1, twice or 1, 1)).
    """
    rows = mask.expand(-1, -1, queries, -1)
    of_token = torch.arange(mask.size(-1), device=mask.device) < tokens
    allowed_nodes = rows[:, :, :twice] & ~of_token
    sees_nodes = allowed_nodes.any(-1, keepdim=True)
    first = rows[:, :, :twice] & of_token
    # Without other nodes a softmax would be empty: it gets all nodes, and the factor 0.
    return torch.cat([first, rows[:, :, twice:], allowed_nodes | ~sees_nodes], 2), sees_nodes


def _add_again(rows: Tensor, twice: int, factor: Tensor | None = None) -> Tensor:
    """Add the last rows, times a factor, to the first. Shape: (batch, heads, rows - twice, width)."""
    first, again = rows.tensor_split([rows.size(2) - twice], 2)
    # empty_like keeps the memory layout of the rows, in which the projections read them.
    sums = torch.empty_like(first)
    if factor is None:
        torch.add(first[:, :, :twice], again, out=sums[:, :, :twice])
    else:
        torch.addcmul(first[:, :, :twice], factor, again, out=sums[:, :, :twice])
    sums[:, :, twice:] = first[:, :, twice:]
    return sums


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
        of_rows = torch.cat([gradient, of_twice * factor.to(gradient.dtype)], 2)
        return of_rows, of_factor.sum_to_size(factor.shape).to(factor.dtype), None


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
        return biased_attention(query, key, value, mask, dropout_p, need_weights)
    twice = tokens if twice is None else twice
    allowed, sees_nodes = _node_masks(mask, query.size(2), twice, tokens)
    queries = applied(_AskTwice, query, twice)
    answers, weights = biased_attention(queries, key, value, allowed, dropout_p, need_weights)
    factor = gate.tanh().to(query.dtype)[:, None, None] * sees_nodes
    attended = applied(_AddAnswers, answers, factor, twice)
    return attended, None if weights is None else applied(_AddAnswers, weights, factor, twice)
