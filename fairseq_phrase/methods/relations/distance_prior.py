"""Self-attention with a fixed prior: weights decay with the distance in the tree.

After dependency-aware self-attention (DASA; Chi et al. 2026), from its description: a fixed prior of tree
distances, of one strength λ. *Decision*: the decay is exponential, and distances are not normalized. With
d(i, j) the number of edges between two words:

    A = softmax(S + log D),    D_ij = exp(-λ d(i, j))
"""

from __future__ import annotations

from torch import Tensor

from fairseq_phrase.methods.common.biased_attention import biased_attention
from fairseq_phrase.methods.common.projections import HeadsAttention
from fairseq_phrase.methods.common.tensors import infinite
from fairseq_phrase.methods.common.tree_positions import TreePositions
from fairseq_phrase.methods.relations.relation_bias import PairRelations


def token_distances(tree: TreePositions) -> Tensor:
    """Count the edges between tokens' words. Shape: (batch, tokens, tokens), int64.

    *Decision*: it is 0 where one of the tokens is outside words, so that such pairs have no prior.
    """
    return tree.for_tokens(tree.word_distances(), outside=0)


#: λ, for all layers and heads. It was not tuned.
STRENGTH = 0.5


class DistancePriorAttention(HeadsAttention):
    """Multi-head self-attention with the prior, without parameters for it. Time-first."""

    def __init__(self, *, embed_dim: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__(embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        self.reset_parameters()

    def forward(
        self, states: Tensor, relations: PairRelations, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attend once.

        Args:
            states: token states. Shape: (tokens, batch, width)
            relations: their ``pairs`` are from :func:`token_distances`.
        """
        heads = self.split(states)
        bias = relations.pairs.to(heads[0].dtype) * -STRENGTH
        if relations.masked is not None:
            bias = bias + infinite(relations.masked, bias.dtype)
        attended, weights = biased_attention(*heads, bias[:, None], self.dropout_p, need_weights)
        return self.join(attended, states), weights
