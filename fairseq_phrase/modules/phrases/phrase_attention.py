"""Attention within phrases (eq. 4-7) and, with ``mask="all"``, between all nodes (eq. 2-3).

The dense N x N form is the definition, and the fastest for short inputs. For long inputs the ``edges``
form computes the same along the list of adjacent pairs, with time and memory linear in the length.
:func:`choose_path` chooses the form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention

from fairseq_phrase.modules.node_attention import node_attention
from fairseq_phrase.modules.phrases.phrase_batch import PhraseBatch, num_part_positions
from fairseq_phrase.modules.positions.biased_attention import pair_bias, scaled_scores
from fairseq_phrase.modules.projections import HeadsAttention, project
from fairseq_phrase.modules.tensors import (
    additive,
    applied,
    cached_per_tensor,
    crossover,
    for_device,
    upcast,
)

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "identity": lambda states: states,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
}
MASKS = ("subset", "hadamard", "all")
#: Initial outputs: unchanged, with an output projection of zeros, or with a factor of 0.
GATES = ("none", "zero", "scalar")
PATHS = ("dense", "edges")

# Node pairs per adjacent pair from which the edges path is used. Measured forward and backward on
# a two-core Xeon with 1 and 2 threads (float32, width 512, 8 heads, 1024 tokens, k = 2 and 3): the
# edges path overtook the dense one at 38 to 42, for token n-grams and dependency chains alike, and
# at 22 to 43 with hadamard. At 50 (n = 75 to 115) it is 1.0 to 1.4 times as fast, and in a forward
# pass alone 1.04 to 1.1 times. On an H200 (bfloat16, 16,384 tokens, k = 2) hadamard's edges path overtook
# at 130 to 148; the edges path of subset was still slower at 682, so twice this number is assumed.
MIN_SPARSITY = {mask: crossover(f"{mask}_min_sparsity") for mask in ("subset", "hadamard")}


def outside_phrases(value: Tensor, phrases: PhraseBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the terms of a hadamard row for the nodes outside its phrases.

    Returns:
        The number of unpadded nodes that are not adjacent, of shape (batch, nodes); whether
        the node's neighbours are among the unpadded nodes, as 0 or 1, of shape (batch, nodes); the
        sum of all unpadded values, of shape (batch, heads, 1, head width).
    """
    is_node = ~phrases.padding_mask
    # The only neighbour of a padded node is itself, which is padded.
    inside = phrases.degrees * is_node
    outside = is_node.sum(1, keepdim=True) - inside
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


# Pairs whose rows are gathered at once. On the CPU, 512 to 2048 were equally fast, and a single
# gather was 2 times slower; on other devices the number bounds memory (128 MiB at width 512).
EDGES_AT_ONCE = {"cpu": 1024, "cuda": 65536}


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
        bias: added to the scores of the pairs. Shape: (edges, heads)
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
        scores = scores + bias
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
        for part in _parts(left_index, left):
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
        for part in _parts(target_index, source):
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


def _parts(index: Tensor, states: Tensor) -> list[slice]:
    """Split a list of pairs into runs: on a CPU their rows fit its cache; on others memory is bounded."""
    size = for_device(EDGES_AT_ONCE, states.device)
    return [slice(start, start + size) for start in range(0, len(index), size)]


def choose_path(phrases: PhraseBatch, mask: str) -> str:
    """Choose how attention within phrases is computed: ``"dense"`` or ``"edges"``."""
    sparsity = phrases.padding_mask.numel() * phrases.num_nodes / max(phrases.max_edges, 1)
    return "dense" if sparsity < for_device(MIN_SPARSITY[mask], phrases.device) else "edges"


def subset_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    phrases: PhraseBatch,
    dropout_p: float = 0.0,
    *,
    path: str | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Attend from each node to the nodes adjacent to it (eq. 5 as the paper's text states it, without σ).

    Args:
        query, key, value: Shape of each: (batch, heads, nodes, head width)
        path: ``"dense"`` or ``"edges"``; chosen by size unless given.
        bias: a bias for each head and relative position of a part in its phrase
            (:func:`~fairseq_phrase.modules.phrases.phrase_batch.part_positions`), added to scores.
            Shape: (heads, positions)

    Returns:
        Shape: (batch, heads, nodes, head width). Values at padded nodes are finite.
    """
    path = _check_path(path or choose_path(phrases, "subset"))
    if path == "edges":
        by_edge = None
        if bias is not None:
            by_edge = bias.t().index_select(0, phrases.edge_positions(_clip(bias)))
        return edge_attention(query, key, value, phrases, dropout_p, leak=False, bias=by_edge)
    # Shape: (batch, 1 or heads, nodes, nodes)
    mask = additive(phrases.adjacency, query.dtype)[:, None]
    if bias is not None:
        mask = mask + pair_bias(bias, phrases.part_positions(_clip(bias)))
    return scaled_dot_product_attention(query, key, value, mask, dropout_p=dropout_p)


def hadamard_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    phrases: PhraseBatch,
    dropout_p: float = 0.0,
    *,
    path: str | None = None,
) -> Tensor:
    """Attend as eq. 5 is written: softmax over QK^T/√d ∘ A, without σ.

    Pairs outside a phrase keep the score 0 and so the weight exp(0) before normalization: every
    unpadded node leaks into every other. A padded node sees itself and all unpadded nodes.

    *Decision*: dropout applies to the weights of adjacent pairs only. All other pairs share one
    weight, which is never dropped, so both paths compute the same.

    For the arguments and the result see :func:`subset_attention`.
    """
    path = _check_path(path or choose_path(phrases, "hadamard"))
    if path == "dense":
        weights = attention_weights(query, key, phrases, "hadamard")
        if dropout_p > 0:
            inside = phrases.adjacency[:, None]
            weights = torch.where(inside, dropout(weights, dropout_p), weights)
        return weights.to(value.dtype) @ value
    return edge_attention(query, key, value, phrases, dropout_p, leak=True)


def all_attention(
    query: Tensor, key: Tensor, value: Tensor, phrases: PhraseBatch, dropout_p: float = 0.0
) -> Tensor:
    """Attend from each node to all unpadded nodes (eq. 2), see :func:`subset_attention`."""
    mask = None if phrases.key_mask is None else additive(phrases.key_mask, query.dtype)
    return scaled_dot_product_attention(query, key, value, mask, dropout_p=dropout_p)


def attention_weights(
    query: Tensor, key: Tensor, phrases: PhraseBatch, mask: str, bias: Tensor | None = None
) -> Tensor:
    """Return the N x N attention weights by their definition; slow for long inputs.

    Args:
        query, key: Shape of each: (batch, heads, nodes, head width)
        mask: ``"subset"``, ``"hadamard"`` or ``"all"``.
        bias: as for :func:`subset_attention`. Shape: (heads, positions)

    Returns:
        Weights in float32 (float64 for float64 input), before dropout.
        Shape: (batch, heads, nodes, nodes)
    """
    scores = scaled_scores(query, key)
    if bias is not None:
        scores = scores + pair_bias(bias, phrases.part_positions(_clip(bias)))
    if mask == "subset":
        scores = scores.masked_fill(~phrases.adjacency[:, None], -math.inf)
    elif mask == "hadamard":
        scores = scores.masked_fill(~phrases.adjacency[:, None], 0.0)
        # eq. 5 excludes padded keys, except for the node itself.
        itself = torch.eye(phrases.num_nodes, dtype=torch.bool, device=phrases.device)
        excluded = phrases.padding_mask[:, None] & ~itself
        scores = scores.masked_fill(excluded[:, None], -math.inf)
    elif phrases.key_mask is not None:
        scores = scores.masked_fill(~phrases.key_mask, -math.inf)
    return scores.softmax(-1)


class PhraseAttention(HeadsAttention):
    """Multi-head attention over the nodes of a batch, tokens and phrases. Batch-first.

    With ``mask="all"`` and ``activation="identity"`` it is the attention over all node pairs
    (phase 1, eq. 2-3); otherwise the attention within phrases (phase 2, eq. 4-7).

    Args:
        activation: σ of eq. 5, applied to each head's output before the output projection:
            ``sigmoid``, ``identity`` ("Linear PhraseTransformer"), ``tanh``, ``relu`` or ``gelu``.
        mask: ``subset`` attends to adjacent nodes only; ``hadamard`` is eq. 5 literally, where
            other nodes keep the score 0; ``all`` attends to all nodes.
        gate: ``none``; ``zero`` starts with an output projection of zeros; ``scalar`` multiplies the
            output by a learned number that starts at 0.
        relative_clip: with ``subset``, the largest relative position of a part in its phrase. Each
            relative position has a learned bias of the scores in each head, which starts at 0.
            0 disables relative positions.
        neutral: with ``all``, a learned gate for each head, from 0, scales tokens' attention to phrases
            (:func:`~fairseq_phrase.modules.node_attention.node_attention`).

    Raises:
        ValueError: if d is not a multiple of h, a name is unknown, or ``relative_clip`` is given
            with a mask other than ``subset``.
    """

    order = ("q_proj", "k_proj", "v_proj")

    def __init__(
        self,
        *,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        activation: str = "sigmoid",
        mask: str = "subset",
        gate: str = "none",
        relative_clip: int = 0,
        neutral: bool = False,
    ) -> None:
        super().__init__(embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"unknown activation {activation!r}, expected one of {', '.join(ACTIVATIONS)}"
            )
        if mask not in MASKS:
            raise ValueError(f"unknown phrase mask {mask!r}, expected one of {', '.join(MASKS)}")
        if gate not in GATES:
            raise ValueError(f"unknown gate {gate!r}, expected one of {', '.join(GATES)}")
        if relative_clip and mask != "subset":
            raise ValueError(f"mask {mask!r} has no relative positions of parts in phrases")
        self.gate = gate
        self.relative_clip = relative_clip
        self.activation = activation
        self.mask = mask
        self.factor: nn.Parameter | None = None
        if gate == "scalar":
            self.factor = nn.Parameter(torch.zeros(1))
        self.node_gate = nn.Parameter(torch.zeros(num_heads)) if neutral else None
        self.part_bias: nn.Parameter | None = None
        if relative_clip:
            positions = num_part_positions(relative_clip)
            self.part_bias = nn.Parameter(torch.zeros(num_heads, positions))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize projections; with ``gate="zero"``, the output projection with zeros."""
        super().reset_parameters()
        if self.gate == "zero":
            nn.init.zeros_(self.out_proj.weight)

    def extra_repr(self) -> str:
        """Show the options in ``print(module)``."""
        return f"num_heads={self.num_heads}, activation={self.activation}, mask={self.mask}"

    def forward(
        self, states: Tensor, phrases: PhraseBatch, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attend once.

        Args:
            states: node states. Shape: (batch, nodes, width)

        Raises:
            ValueError: if the states do not fit the batch's nodes.
        """
        if states.shape[:2] != phrases.padding_mask.shape:
            raise ValueError(
                f"states of shape {tuple(states.shape)} do not fit phrases of "
                f"(batch, nodes) {tuple(phrases.padding_mask.shape)}"
            )
        query, key, value = (
            # (batch, nodes, width) -> (batch, heads, nodes, head width)
            rows.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for rows in project(states, (self.q_proj, self.k_proj, self.v_proj))
        )
        dropout_p = self.dropout_p
        weights = None
        if need_weights and self.node_gate is None:
            weights = attention_weights(query, key, phrases, self.mask, self.part_bias)
        if self.node_gate is not None:
            mask, padding = phrases.key_mask, phrases.padding_mask
            if mask is None:
                mask = cached_per_tensor(padding, "keys", lambda: ~padding[:, None, None])
            attended, weights = node_attention(
                query, key, value, mask, self.node_gate, phrases.num_tokens, dropout_p, need_weights
            )
        elif self.mask == "all":
            attended = all_attention(query, key, value, phrases, dropout_p)
        elif self.mask == "hadamard":
            attended = hadamard_attention(query, key, value, phrases, dropout_p)
        else:
            attended = subset_attention(query, key, value, phrases, dropout_p, bias=self.part_bias)
        heads = ACTIVATIONS[self.activation](attended)
        output = self.output(heads.transpose(1, 2).flatten(2), states)
        return output if self.factor is None else self.factor * output, weights


def _clip(bias: Tensor) -> int:
    """Return the largest relative position that has a column in a table of biases."""
    return bias.size(1) // 2 - 1


def _check_path(path: str) -> str:
    if path not in PATHS:
        raise ValueError(f"unknown path {path!r}, expected one of {', '.join(PATHS)}")
    return path
