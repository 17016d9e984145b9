"""Attention over the nodes of a batch, tokens and phrases, as *Attention over Phrases* writes it.

Phase 1 attends between all nodes (eq. 2, joined by eq. 3): :func:`all_attention`. Phase 2 attends within
phrases (eq. 5, joined by eq. 7), by the matrix A of eq. 6: :func:`subset_attention` as the text states
it, or :func:`hadamard_attention` as eq. 5 is printed. Each is the dense N x N form. For long inputs
(:attr:`PhraseBatch.is_long`), :mod:`~fairseq_phrase.methods.phrases.long_phrases` computes the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention

from fairseq_phrase.methods.common.biased_attention import node_attention, pair_bias, scaled_scores
from fairseq_phrase.methods.common.projections import HeadsAttention, project
from fairseq_phrase.methods.phrases.phrase_batch import PhraseBatch, num_part_positions

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


def all_attention(
    query: Tensor, key: Tensor, value: Tensor, phrases: PhraseBatch, dropout_p: float = 0.0
) -> Tensor:
    """Attend between all nodes but padding, softmax(QK^T/√d) V (eq. 2).

    Args:
        query, key, value: Shape of each: (batch, heads, nodes, head width)

    Returns:
        Shape: (batch, heads, nodes, head width). Values at padded nodes are finite.
    """
    return scaled_dot_product_attention(query, key, value, phrases.key_mask, dropout_p=dropout_p)


def subset_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    phrases: PhraseBatch,
    dropout_p: float = 0.0,
    *,
    bias: Tensor | None = None,
) -> Tensor:
    """Attend between nodes with A_ij = 1 (eq. 4 to 6, as the text states them, before σ).

    Args:
        bias: a bias for each head and relative position of a part in its phrase
            (:meth:`PhraseBatch.part_positions`), added to scores. Shape: (heads, positions)

    For the other arguments and the result see :func:`all_attention`.
    """
    if phrases.is_long:
        return _along_edges(query, key, value, phrases, dropout_p, leak=False, bias=bias)
    # Shape: (batch, 1 or heads, nodes, nodes)
    mask = phrases.adjacency[:, None]
    if bias is not None:
        mask = pair_bias(bias, phrases.part_positions(bias.size(1)), ~phrases.adjacency)
    return scaled_dot_product_attention(query, key, value, mask, dropout_p=dropout_p)


def hadamard_attention(
    query: Tensor, key: Tensor, value: Tensor, phrases: PhraseBatch, dropout_p: float = 0.0
) -> Tensor:
    """Attend as eq. 5 is printed: softmax(QK^T/√d ∘ A) V, before σ.

    Pairs outside a phrase keep the score 0 and so the weight exp(0) before normalization: every
    unpadded node leaks into every other. A padded node sees itself and all unpadded nodes.

    *Decision*: dropout applies to the weights of adjacent pairs only. All other pairs share one
    weight, which is never dropped, so that long inputs can be computed without them.

    For the arguments and the result see :func:`all_attention`.
    """
    if phrases.is_long:
        return _along_edges(query, key, value, phrases, dropout_p, leak=True)
    weights = attention_weights(query, key, phrases, "hadamard")
    if dropout_p > 0:
        weights = torch.where(phrases.adjacency[:, None], dropout(weights, dropout_p), weights)
    return weights.to(value.dtype) @ value


def attention_weights(
    query: Tensor, key: Tensor, phrases: PhraseBatch, mask: str, bias: Tensor | None = None
) -> Tensor:
    """Return the N x N attention weights, for pictures and for :func:`hadamard_attention`.

    Args:
        mask: ``"subset"``, ``"hadamard"`` or ``"all"``.
        bias: as for :func:`subset_attention`. Shape: (heads, positions)

    Returns:
        Weights in float32 (float64 for float64 input), before dropout.
        Shape: (batch, heads, nodes, nodes)
    """
    scores = scaled_scores(query, key)
    if bias is not None:
        scores = scores + pair_bias(bias, phrases.part_positions(bias.size(1)))
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


def _along_edges(
    query: Tensor, key: Tensor, value: Tensor, phrases: PhraseBatch, dropout_p: float, **form: Any
) -> Tensor:
    # Who reads the equations need not read how long inputs are computed.
    from fairseq_phrase.methods.phrases.long_phrases import edge_attention

    return edge_attention(query, key, value, phrases, dropout_p, **form)


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
            (:func:`~fairseq_phrase.methods.common.biased_attention.node_attention`).

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
            mask = phrases.key_mask
            if mask is None:
                mask = ~phrases.padding_mask[:, None, None]
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
