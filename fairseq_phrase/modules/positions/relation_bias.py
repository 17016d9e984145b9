"""Self-attention with a learned number for each relation of two tokens, in each head.

Source: ``docs/models/tree_relations.md``: ``S_ij += b[l, h, r(i, j)]``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fairseq_phrase.modules.positions.biased_attention import biased_attention, pair_bias
from fairseq_phrase.modules.positions.tree_relations import NUM_BUCKETS, TREE_RELATIONS
from fairseq_phrase.modules.projections import HeadsAttention

#: The relations that may have biases: in the tree, in the sentence, or both.
BIASES = ("tree", "sequence", "both", "none")
_PARENT, _CHILD = TREE_RELATIONS.index("parent"), TREE_RELATIONS.index("child")
assert _PARENT + 1 == _CHILD  # as the labels' biases are


class RelationAttention(HeadsAttention):
    """Multi-head self-attention with relation biases. Time-first.

    All biases start at 0, so training starts from attention without biases.

    Args:
        embed_dim: model width d.
        num_heads: number of heads h, a divisor of d.
        kind: ``"tree"``, ``"sequence"`` or ``"both"``.
        num_labels: number of dependency labels L, if pairs of parent and child have a bias for their
            label.
        dropout: probability with which an attention weight is dropped in training.

    Attributes:
        tree_bias: None without trees. Shape: (heads, relations)
        label_bias: for the labels of parents, then of children; None without labels.
            Shape: (heads, 2 L)
        sequence_bias: None without distances in the sentence. Shape: (heads, buckets)

    Raises:
        ValueError: d is not a multiple of h, or the kind is unknown.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        num_heads: int,
        kind: str = "tree",
        num_labels: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        if kind not in BIASES[:3]:
            raise ValueError(f"unknown kind {kind!r}, expected one of {', '.join(BIASES[:3])}")

        def numbers(count: int, wanted: bool) -> nn.Parameter | None:
            return nn.Parameter(torch.zeros(num_heads, count)) if wanted else None

        self.kind, self.num_labels = kind, num_labels
        self.tree_bias = numbers(len(TREE_RELATIONS), kind != "sequence")
        self.label_bias = numbers(2 * num_labels, kind != "sequence" and num_labels > 0)
        self.sequence_bias = numbers(NUM_BUCKETS, kind != "tree")
        self.reset_parameters()

    def extra_repr(self) -> str:
        """Show the options in ``print(module)``."""
        return f"num_heads={self.num_heads}, kind={self.kind}, num_labels={self.num_labels}"

    def bias(
        self, tree: Tensor | None, buckets: Tensor | None, masked: Tensor | None = None
    ) -> Tensor:
        """Look up the biases of all pairs. Shape: (batch or 1, heads, tokens, tokens).

        Args:
            tree: relations in the tree. Shape: (batch, tokens, tokens), int64
            buckets: distances in the sentence. Shape: (1, tokens, tokens), int64
            masked: True at keys that get no weight, and -inf as their bias. Shape: (batch, tokens)
        """
        lookups = []
        if self.tree_bias is not None:
            assert tree is not None
            table: Tensor = self.tree_bias
            if self.label_bias is not None:
                # A labelled parent has two biases: that of parents and that of its label; children too.
                of_labels = self.label_bias.unflatten(1, (2, -1))
                labelled = table[:, _PARENT : _CHILD + 1, None] + of_labels
                table = torch.cat([table, labelled.flatten(1)], dim=1)
            lookups.append((table, tree))
        if self.sequence_bias is not None:
            assert buckets is not None
            lookups.append((self.sequence_bias, buckets))
        return pair_bias(*lookups, masked=masked)

    def forward(
        self,
        states: Tensor,
        tree: Tensor | None = None,
        buckets: Tensor | None = None,
        masked: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend once.

        Args:
            states: token states. Shape: (tokens, batch, width)
            tree: from :func:`~fairseq_phrase.modules.positions.tree_relations.tree_relations`.
                Shape: (batch, tokens, tokens), int64
            buckets: from :func:`~fairseq_phrase.modules.positions.tree_relations.sentence_buckets`.
                Shape: (1, tokens, tokens), int64
            masked: True at keys that get no weight. Shape: (batch, tokens)
            need_weights: also return the weights, which is slower.

        Returns:
            The attended states, of shape (tokens, batch, width), and the weights before dropout, of
            shape (batch, heads, tokens, tokens), or None.
        """
        bias = self.bias(tree, buckets, masked)
        attended, weights = biased_attention(
            *self.split(states), bias, self.dropout_p, need_weights
        )
        return self.join(attended), weights
