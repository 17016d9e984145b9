"""Attention over the leaves and nonterminals of trees, with accumulated values."""

from __future__ import annotations

from torch import Tensor

from fairseq_phrase.modules.positions.biased_attention import biased_attention
from fairseq_phrase.modules.projections import HeadsAttention, project
from fairseq_phrase.modules.tensors import additive
from fairseq_phrase.modules.trees.hierarchical_accumulation import HierarchicalAccumulation
from fairseq_phrase.modules.trees.tree_batch import TreeBatch


class TreeSelfAttention(HeadsAttention):
    """Multi-head attention among the nodes of trees. Batch-first.

    All nodes share the projections. Queries and keys are used unchanged; the values of the nonterminals
    are accumulated. With subtree masking a nonterminal attends to the leaves and nonterminals of its
    subtree, and a leaf attends to the leaves. Parameters are named and initialized as in fairseq's
    ``MultiheadAttention`` for self-attention.

    Args:
        accumulation: accumulates the values; its weights of leaves depend on their states. The width
            and the number of heads are taken from it.
        dropout: probability with which an attention weight is dropped in training.
        subtree_masking: whether attention is restricted to subtrees; otherwise every node attends to
            all nodes.
    """

    order = ("q_proj", "k_proj", "v_proj")

    def __init__(
        self,
        *,
        accumulation: HierarchicalAccumulation,
        dropout: float = 0.0,
        subtree_masking: bool = True,
    ) -> None:
        heads, width = accumulation.num_heads, accumulation.head_dim
        super().__init__(embed_dim=heads * width, num_heads=heads, dropout=dropout)
        self.subtree_masking = subtree_masking
        self.accumulation = accumulation
        self.reset_parameters()

    def extra_repr(self) -> str:
        """Show the options in ``print(module)``."""
        return f"num_heads={self.num_heads}, subtree_masking={self.subtree_masking}"

    def forward(
        self, states: Tensor, tree: TreeBatch, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attend once.

        Args:
            states: node states, leaves first. Shape: (batch, nodes, width)
            tree: the trees.
            need_weights: also return the weights, which is slower.

        Returns:
            The attended states, of shape (batch, nodes, width), and the weights before dropout, of
            shape (batch, heads, nodes, nodes), or None.

        Raises:
            ValueError: the states do not fit the batch's nodes.
        """
        *projected, leaf_weights = project(
            states, (self.q_proj, self.k_proj, self.v_proj, self.accumulation.leaf_weight)
        )
        # (batch, nodes, width) -> (batch, nodes, heads, head width)
        query, key, value = (each.unflatten(-1, (self.num_heads, -1)) for each in projected)
        value = self.accumulation.accumulate(value, leaf_weights[:, : tree.num_leaves], tree)
        mask = tree.subtree_mask if self.subtree_masking else tree.key_mask
        attended, weights = biased_attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            additive(mask, query.dtype),
            self.dropout_p,
            need_weights,
        )
        return self.out_proj(attended.transpose(1, 2).flatten(2)), weights
