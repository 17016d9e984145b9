"""Self-attention whose scores take a bias for each pair of tokens."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import dropout, scaled_dot_product_attention

from fairseq_phrase.modules.tensors import additive, applied, infinite, made_once, upcast


class _PairBias(torch.autograd.Function):
    """Look up numbers for every pair; the gradients are summed without a vector for each pair."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor, masked: Tensor | None) -> Tensor:
        ctx.save_for_backward(index)
        ctx.kinds = table.size(1)
        batch = len(index) if masked is None else len(masked)
        # (heads, kinds of pairs) -> (batch, heads, queries * keys)
        flat = table.expand(batch, -1, -1).gather(2, _for_heads(index, batch, len(table)))
        bias: Tensor = flat.unflatten(2, index.shape[1:])
        if masked is not None:
            bias += infinite(masked, bias.dtype)[:, None, None]
        return bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # The gradient at masked keys is 0, because the softmax gave them no weight.
        exact = upcast(gradient).flatten(2)
        batch, heads, _ = exact.shape
        (index,) = ctx.saved_tensors
        sums = exact.new_zeros(batch, heads, ctx.kinds)
        sums.scatter_add_(2, _for_heads(index, batch, heads), exact)
        return sums.sum(0).to(gradient.dtype), None, None


def _for_heads(index: Tensor, batch: int, heads: int) -> Tensor:
    """View indices of pairs as those of all sentences and heads. Shape: (batch, heads, pairs)."""
    return index.flatten(1)[:, None].expand(batch, heads, -1)


def pair_bias(table: Tensor, index: Tensor, masked: Tensor | None = None) -> Tensor:
    """Look up the number of each pair's kind. Shape: (batch or 1, heads, queries, keys).

    Args:
        table: a number for each head and kind of pair. Shape: (heads, kinds)
        index: the kind of each pair. Shape: (batch or 1, queries, keys), int64
        masked: True at keys whose pairs get -inf. The bias is then for a softmax, which gives them no
            gradient. Shape: (batch, keys)
    """
    return applied(_PairBias, table, index, masked)


def scaled_scores(query: Tensor, key: Tensor) -> Tensor:
    """Return QK^T/√d in single precision or better; scale first, because float16 may overflow."""
    return upcast(query / math.sqrt(query.size(-1)) @ key.transpose(-2, -1))


def biased_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    dropout_p: float = 0.0,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attend with a bias added to the scores, by ``scaled_dot_product_attention``.

    Args:
        query, key, value: Shape of each: (batch, heads, tokens, head width)
        bias: -inf where a query may not attend; no row may be all -inf; None for no bias.
            Shape: broadcasts to (batch, heads, tokens, tokens)
        need_weights: also return the weights, which is slower.

    Returns:
        The attended values, of shape (batch, heads, tokens, head width), and the weights before
        dropout, in single precision or better, of shape (batch, heads, tokens, tokens), or None.
    """
    # The CPU has no fused attention with a gradient for the bias. torch's replacement is slower.
    if not need_weights and (bias is None or bias.is_cuda or not bias.requires_grad):
        return scaled_dot_product_attention(query, key, value, bias, dropout_p), None
    scores = scaled_scores(query, key)
    if bias is not None:
        scores = scores.add_(bias)
    del bias  # it and the scores are as large as the weights
    weights = scores.softmax(-1)
    del scores
    attended = dropout(weights, dropout_p).to(value.dtype) @ value
    return attended, weights if need_weights else None


class NodeKeys(NamedTuple):
    """What :func:`gated_attention` attends to: tokens, and further nodes such as phrases.

    Attributes:
        key, value: of tokens. Shape of each: (batch, heads, tokens, head width)
        bias: -inf at tokens that get no weight; None without any. Shape: (batch, 1, 1 or queries, tokens)
        node_key, node_value: of further nodes. Shape of each: (batch, heads, nodes, head width)
        node_bias: as ``bias``, for further nodes; 0 for a query that may attend to none.
        seen: 0 for a query that may attend to no further node, else 1. Shape: (batch, 1, 1 or queries, 1)
    """

    key: Tensor
    value: Tensor
    bias: Tensor | None
    node_key: Tensor
    node_value: Tensor
    node_bias: Tensor | None
    seen: Tensor | None

    @classmethod
    def split(cls, key: Tensor, value: Tensor, mask: Tensor | None, num_tokens: int) -> NodeKeys:
        """Separate tokens and further nodes.

        Args:
            key, value: tokens first. Shape of each: (batch, heads, all nodes, head width)
            mask: True where a query may attend; None for everywhere.
                Shape: (batch, 1, 1 or queries, all nodes)
        """
        sizes = num_tokens, key.size(2) - num_tokens
        (token_key, node_key), (token_value, node_value) = (
            key.split(sizes, 2),
            value.split(sizes, 2),
        )

        def masks(mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            of_tokens, of_nodes = mask.split(sizes, -1)
            some = of_nodes.any(-1, keepdim=True)
            biases = additive(of_tokens, key.dtype), additive(of_nodes | ~some, key.dtype)
            return *biases, some.to(key.dtype)

        bias = node_bias = seen = None
        if mask is not None:
            made = made_once(mask, ("nodes", num_tokens, key.dtype), partial(masks, mask))
            bias, node_bias, seen = made
        return cls(token_key, token_value, bias, node_key, node_value, node_bias, seen)


def gated_attention(
    query: Tensor, keys: NodeKeys, gate: Tensor, dropout_p: float = 0.0, need_weights: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Attend to tokens, and add what is attended to among further nodes, times tanh(g) of each head.

    *Decision*: each has a softmax of its own, as in Flamingo (Alayrac et al. 2022). With g = 0 this is
    attention to the tokens, whatever the scores of the other nodes, and g has a gradient there. Both are
    computed by fused kernels, and weigh as much as one attention to all.

    Args:
        query: Shape: (batch, heads, queries, head width)
        gate: g. Shape: (heads,)

    Returns:
        As :func:`biased_attention`. The weights of tokens sum to 1, those of further nodes to tanh(g).
    """
    attended, weights = biased_attention(
        query, keys.key, keys.value, keys.bias, dropout_p, need_weights
    )
    if not keys.node_key.size(2):
        return attended, weights
    added, further = biased_attention(
        query, keys.node_key, keys.node_value, keys.node_bias, dropout_p, need_weights
    )
    factor = gate.tanh().to(query.dtype)[:, None, None]
    if keys.seen is not None:
        factor = factor * keys.seen
    attended = torch.addcmul(attended, factor, added)
    if weights is None or further is None:
        return attended, None
    return attended, torch.cat([weights, factor * further], -1)


def node_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    num_tokens: int,
    gate: Tensor,
    dropout_p: float = 0.0,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attend as :func:`biased_attention`, but tokens see further nodes by :func:`gated_attention`.

    Args:
        query: tokens first. Shape: (batch, heads, nodes, head width)
        key, value: Shape of each: (batch, heads, nodes, head width)
        mask: True where a query may attend; None for everywhere. Shape: (batch, 1, 1 or nodes, nodes)
        gate: g. Shape: (heads,)
    """
    rows = [mask, mask]
    if mask is not None and mask.size(2) > 1:
        rows = [mask[:, :, :num_tokens], mask[:, :, num_tokens:]]
    keys = NodeKeys.split(key, value, rows[0], num_tokens)
    tokens = gated_attention(query[:, :, :num_tokens], keys, gate, dropout_p, need_weights)
    others = biased_attention(
        query[:, :, num_tokens:],
        key,
        value,
        None if rows[1] is None else additive(rows[1], query.dtype),
        dropout_p,
        need_weights,
    )
    weights = None
    if tokens[1] is not None and others[1] is not None:
        weights = torch.cat([tokens[1], others[1]], 2)
    return torch.cat([tokens[0], others[0]], 2), weights
