"""Self-attention whose scores take a bias for each pair of tokens, or that sees other nodes by a gate."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import dropout, scaled_dot_product_attention

from fairseq_phrase.methods.common.tensors import infinite, upcast


def pair_bias(table: Tensor, index: Tensor, masked: Tensor | None = None) -> Tensor:
    """Look up the number of each pair's kind. Shape: (batch or 1, heads, queries, keys).

    Args:
        table: a number for each head and kind of pair. Shape: (heads, kinds)
        index: the kind of each pair. Shape: (batch or 1, queries, keys), integers
        masked: True at pairs that get -inf. Shape: (batch, 1 or queries, keys)
    """
    heads, kinds = table.shape
    batch = len(index) if masked is None else len(masked)
    parts = parts_of_sums(index, kinds)
    # (batch or 1, queries, keys) -> (batch, heads, parts, pairs of a part)
    kind_of = index.long().reshape(len(index), 1, parts, -1).expand(batch, heads, -1, -1)
    # The gradient, a sum over pairs, is computed in the precision of what is looked up.
    numbers = upcast(table)[:, None].expand(batch, -1, parts, -1).gather(3, kind_of)
    bias = numbers.to(table.dtype).view(batch, heads, *index.shape[1:])
    return bias if masked is None else bias + infinite(masked, bias.dtype)[:, None]


def parts_of_sums(index: Tensor, kinds: int) -> int:
    """Return into how many parts the pairs of a sentence are divided, each with a sum for every kind.

    The threads of a GPU that add to one sum wait for each other, so each query has its own sums there,
    unless they would be more than twice as many as the pairs.

    Args:
        index: the kind of each pair. Shape: (batch or 1, queries, keys)
    """
    return index.size(1) if index.is_cuda and kinds <= 2 * index.size(2) else 1


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
    queries = torch.cat([query, query[:, :, :twice]], 2)
    answers, weights = biased_attention(queries, key, value, allowed, dropout_p, need_weights)
    factor = gate.tanh()[:, None, None] * sees_nodes

    def joined(rows: Tensor) -> Tensor:
        of_tokens, others, of_nodes = rows.split([twice, query.size(2) - twice, twice], 2)
        return torch.cat([of_tokens + factor.to(rows.dtype) * of_nodes, others], 2)

    return joined(answers), None if weights is None else joined(weights)


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
