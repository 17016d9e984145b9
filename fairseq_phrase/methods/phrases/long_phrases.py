"""Attention within phrases of long inputs on a CPU: along the list of adjacent pairs, not over all pairs.

The numbers are those of :mod:`~fairseq_phrase.methods.phrases.phrase_attention`; the attention's time
and memory are linear in the length. One layer (both phases and the feed-forward block), forward and
backward, k = 2, width 512, 8 heads, 1,024 tokens in a batch, float32, one thread of a Xeon:

    tokens a sentence                      128     256     512   1,024
    subset, times as fast as dense        1.03    1.12    1.25    1.41
    hadamard, times as fast as dense      1.10    1.29            2.13

At 1,024 tokens the dense form of ``hadamard`` takes 445 MiB, this form 103. Those of ``subset`` take 106
and 103: the fused kernel does not hold the scores.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout

from fairseq_phrase.methods.common.tensors import applied, upcast
from fairseq_phrase.methods.phrases.phrase_batch import PhraseBatch, number_parts

#: Pairs whose rows are gathered at once. 512 to 2048 were equally fast, and a single gather was 2 times
#: slower.
EDGES_AT_ONCE = 1024


def edge_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    phrases: PhraseBatch,
    dropout_p: float,
    *,
    leak: bool,
    bias: Tensor | None = None,
) -> Tensor:
    """Attend along the list of adjacent pairs. Shape: (batch, heads, nodes, head width).

    Args:
        query, key, value: Shape of each: (batch, heads, nodes, head width)
        dropout_p: probability with which the weight of an adjacent pair is dropped.
        leak: whether pairs that are not adjacent keep the score 0, as in eq. 5 literally.
        bias: a bias for each head and relative position of a part in its phrase, added to scores.
            Shape: (heads, positions)
    """
    batch, heads, num_nodes, width = query.shape
    queries, keys = phrases.edges
    # (batch, heads, nodes, head width) -> (batch * nodes, heads, head width)
    query_rows, key_rows, value_rows = (
        states.transpose(1, 2).reshape(batch * num_nodes, heads, width)
        for states in (query, key, value)
    )
    # Shape: (edges, heads)
    scores = applied(_EdgeDot, query_rows, key_rows, queries, keys) / math.sqrt(width)
    if bias is not None:
        starts, sizes = (values.view(-1) for values in phrases.extents)
        of_query, of_key = ((starts[nodes], sizes[nodes]) for nodes in (queries, keys))
        scores = scores + bias.t().index_select(0, number_parts(of_query, of_key, bias.size(1)))
    per_node = (batch * num_nodes, heads)
    # The maximum cancels out, so it does not need a gradient.
    maximum = scores.new_full(per_node, -math.inf).scatter_reduce(
        0, queries[:, None].expand_as(scores), scores.detach(), "amax"
    )
    if leak:
        outside, is_node, total = outside_phrases(value, phrases)
        outside, is_node = outside.reshape(-1, 1), is_node.reshape(-1, 1)
        maximum, unit = shift_scores(maximum, outside)
    inner = (scores - maximum[queries]).exp()
    normalizer = scores.new_zeros(per_node).index_add(0, queries, inner)
    if leak:
        normalizer = normalizer + unit * outside
    inner = dropout(inner, dropout_p)
    if leak:
        # The sum over all nodes, below, includes the adjacent nodes: subtract their share of it.
        inner = inner - (unit * is_node)[queries]
    weights = inner / normalizer.index_select(0, queries)
    output = applied(_EdgeSum, weights, value_rows, queries, keys)
    output = output.view(batch, num_nodes, heads, width).transpose(1, 2)
    if leak:
        leaked = (unit / normalizer).view(batch, num_nodes, heads, 1).transpose(1, 2)
        output = output + leaked * total
    return output.to(query.dtype)


def outside_phrases(value: Tensor, phrases: PhraseBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the terms of a hadamard row for the nodes outside its phrases.

    Returns:
        The number of unpadded nodes that are not adjacent, of shape (batch, nodes); whether
        the node's neighbours are among the unpadded nodes, as 0 or 1, of shape (batch, nodes); the
        sum of all unpadded values, of shape (batch, heads, 1, head width).
    """
    is_node = ~phrases.padding_mask
    neighbours = phrases.edges.query.bincount(minlength=is_node.numel()).view(is_node.shape)
    # The only neighbour of a padded node is itself, which is padded.
    outside = is_node.sum(1, keepdim=True) - neighbours * is_node
    total = upcast(value).masked_fill(phrases.padding_mask[:, None, :, None], 0).sum(2, True)
    return outside, is_node.to(total.dtype), total


def shift_scores(maximum: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Include the zero scores of the pairs outside in the rows' largest score.

    A row without pairs outside lacks a zero score. If one were included, all exponentials of a row of
    very negative scores would vanish.

    Returns:
        The number to subtract from a row's scores; and the exponential of a zero score after the
        subtraction, 0 in rows without pairs outside.
    """
    has_zero = outside > 0
    at_least_zero = maximum.clamp(min=0)
    unit = (-at_least_zero).exp() * has_zero
    return torch.where(has_zero, at_least_zero, maximum), unit


class _EdgeDot(torch.autograd.Function):
    """Dot products of pairs of rows, (edges, heads), without holding the pairs' rows at once.

    Its gradient is :class:`_EdgeSum`, whose gradient is this function.
    """

    @staticmethod
    def forward(
        ctx: Any, left: Tensor, right: Tensor, left_index: Tensor, right_index: Tensor
    ) -> Tensor:
        ctx.save_for_backward(left, right, left_index, right_index)
        dots = left.new_empty(len(left_index), left.size(1), dtype=_accumulator(left))
        for part in _parts(left_index):
            left_rows = upcast(left.index_select(0, left_index[part]))
            dots[part] = left_rows.mul_(upcast(right.index_select(0, right_index[part]))).sum(-1)
        return dots

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        left, right, left_index, right_index = ctx.saved_tensors
        left_gradient = applied(_EdgeSum, gradient, right, left_index, right_index)
        right_gradient = applied(_EdgeSum, gradient, left, right_index, left_index)
        return left_gradient.to(left.dtype), right_gradient.to(right.dtype), None, None


class _EdgeSum(torch.autograd.Function):
    """For each target row the weighted sum of its pairs' source rows: (rows, heads, head width)."""

    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, source: Tensor, target_index: Tensor, source_index: Tensor
    ) -> Tensor:
        ctx.save_for_backward(weights, source, target_index, source_index)
        sums = torch.zeros_like(source, dtype=_accumulator(source))
        for part in _parts(target_index):
            rows = upcast(source.index_select(0, source_index[part]))
            sums.index_add_(0, target_index[part], rows.mul_(weights[part][:, :, None]))
        return sums

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weights, source, target_index, source_index = ctx.saved_tensors
        weight_gradient = applied(_EdgeDot, gradient, source, target_index, source_index)
        source_gradient = applied(_EdgeSum, weights, gradient, source_index, target_index)
        return weight_gradient, source_gradient.to(source.dtype), None, None


def _accumulator(states: Tensor) -> torch.dtype:
    return torch.float64 if states.dtype == torch.float64 else torch.float32


def _parts(index: Tensor) -> list[slice]:
    """Split a list of pairs into runs whose rows fit the processor's cache."""
    return [slice(start, start + EDGES_AT_ONCE) for start in range(0, len(index), EDGES_AT_ONCE)]
