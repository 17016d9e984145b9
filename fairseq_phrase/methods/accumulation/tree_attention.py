"""Attention over the leaves and nonterminals of trees, with values by hierarchical accumulation.

Source: Nguyen et al., *Tree-structured Attention with Hierarchical Accumulation* (ICLR 2020). The paper
puts the nonterminals and leaves on a grid of (m + 1) rows and n columns (F). It averages them upward
along each column (U), adds embeddings of their position in the grid (E), and sums over the leaves with
learned weights (V): see :mod:`fairseq_phrase.methods.accumulation.coefficients`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fairseq_phrase.methods.accumulation.coefficients import coefficients
from fairseq_phrase.methods.common.biased_attention import node_attention
from fairseq_phrase.methods.common.projections import HeadsAttention, project
from fairseq_phrase.methods.common.tensors import upcast
from fairseq_phrase.methods.common.tree_batch import Indices, TreeBatch

CONVENTIONS = ("paper", "released")


class HierarchicalAccumulation(nn.Module):
    """Accumulate the values of a tree's nodes into its nonterminals, head by head. Batch-first.

    For nonterminal i over the leaves j, with ``path(i, j)`` the nonterminals from i down to j::

        N'_i = 1/len_i Σ_j w_j (L_j + Σ_{t in path(i, j)} (N_t + E_tj)) / (1 + |path(i, j)|)
        w_j  = X_j · u
        E_tj = [vertical(|path(t, j)|) ; horizontal(j - start_t + 1)]

    L and N are the head's projected values. X are the leaves' full states before any projection. Each
    head has its own u.

    Args:
        embed_dim: width d of the attention.
        num_heads: number of heads h; the head width c = d / h must be even.
        leaf_dim: width of the leaves' states X; by default ``embed_dim``.
        embeddings: whether there are hierarchical embeddings E.
        max_vertical: largest index of the vertical embeddings; larger indices are clipped.
        max_horizontal: largest index of the horizontal embeddings, in leaves; larger indices are clipped.
        convention: ``paper``, or ``released`` as in the authors' code: the divisor is
            ``|path(i, j)|``, although the leaf is in the sum; the vertical index is counted from the
            root (1 + depth of t); and w has a bias.

    Attributes:
        leaf_weight: a linear layer from X to w; row k is u of head k.
            Shape: (heads, leaf width), and (heads,) for the optional bias.
        vertical: row v - 1 is the embedding of v. Shape: (max_vertical, head width / 2).
        horizontal: row h - 1 is the embedding of h. Shape: (max_horizontal, head width / 2).

    Raises:
        ValueError: the head width is odd or not an integer, a size is not positive, or the convention is
            unknown.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        num_heads: int,
        leaf_dim: int | None = None,
        embeddings: bool = True,
        max_vertical: int = 50,
        max_horizontal: int = 100,
        convention: str = "paper",
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % (2 * num_heads) != 0:
            raise ValueError(
                f"embed_dim {embed_dim} is not divisible into {num_heads} heads of an even width"
            )
        if convention not in CONVENTIONS:
            raise ValueError(
                f"unknown tree convention {convention!r}, expected one of {', '.join(CONVENTIONS)}"
            )
        if min(max_vertical, max_horizontal) < 1:
            raise ValueError(
                f"hierarchical embeddings need sizes of 1 or more, got {max_vertical} vertical and "
                f"{max_horizontal} horizontal"
            )
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.embeddings, self.convention = embeddings, convention
        self.leaf_weight = nn.Linear(
            embed_dim if leaf_dim is None else leaf_dim, num_heads, bias=convention == "released"
        )
        if embeddings:
            half = self.head_dim // 2
            self.vertical = nn.Parameter(torch.empty(max_vertical, half))
            self.horizontal = nn.Parameter(torch.empty(max_horizontal, half))
        self.indices = Indices(
            from_root=convention == "released",
            max_vertical=max_vertical if embeddings else 0,
            max_horizontal=max_horizontal if embeddings else 0,
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize as fairseq does linear layers and embeddings."""
        nn.init.xavier_uniform_(self.leaf_weight.weight)
        if self.leaf_weight.bias is not None:
            nn.init.zeros_(self.leaf_weight.bias)
        if self.embeddings:
            for table in (self.vertical, self.horizontal):
                nn.init.normal_(table, std=table.size(1) ** -0.5)

    def extra_repr(self) -> str:
        """Show the options in ``print(module)``."""
        sizes = f"{len(self.vertical)}, {len(self.horizontal)}" if self.embeddings else "none"
        return f"num_heads={self.num_heads}, convention={self.convention}, embeddings={sizes}"

    def forward(self, values: Tensor, leaf_states: Tensor, tree: TreeBatch) -> Tensor:
        """Replace the nonterminals' values by the accumulated values.

        Args:
            values: the nodes' values, leaves first. Shape: (batch, nodes, heads, head width)
            leaf_states: X, the leaves' states from which the values were projected.
                Shape: (batch, leaves, leaf width)

        Returns:
            The same values at the leaves, accumulated values at the nonterminals, 0 at padded
            nonterminals. Shape: (batch, nodes, heads, head width)

        Raises:
            ValueError: the values do not fit the batch's nodes, or the states do not fit its leaves.
        """
        entering = (tree.batch_size, tree.num_leaves, self.leaf_weight.in_features)
        if leaf_states.shape != entering:
            raise ValueError(
                f"leaf states must have shape {entering}, got {tuple(leaf_states.shape)}"
            )
        return self.accumulate(values, self.leaf_weight(leaf_states), tree)

    def accumulate(self, values: Tensor, weights: Tensor, tree: TreeBatch) -> Tensor:
        """Accumulate with leaf weights that are already computed.

        Args:
            values: as for :meth:`forward`, which also describes the result.
            weights: w, the output of ``leaf_weight`` for the leaves' states.
                Shape: (batch, leaves, heads)
        """
        expected = (tree.batch_size, tree.num_nodes, self.num_heads, self.head_dim)
        if values.shape != expected:
            raise ValueError(f"values must have shape {expected}, got {tuple(values.shape)}")
        of_nodes_and_indices = coefficients(upcast(weights), tree, self.indices).to(values.dtype)
        nodes, vertical, horizontal = of_nodes_and_indices.split(self.indices.sizes(tree), -1)
        # Shape: (batch, heads, nonterminals, head width)
        accumulated = nodes @ values.transpose(1, 2)
        if self.embeddings:
            embedded = (
                vertical @ self.vertical[: vertical.size(-1)],
                horizontal @ self.horizontal[: horizontal.size(-1)],
            )
            accumulated = accumulated + torch.cat(embedded, -1)
        return torch.cat([values[:, : tree.num_leaves], accumulated.transpose(1, 2)], 1)


class TreeSelfAttention(HeadsAttention):
    """Multi-head attention among the nodes of trees. Batch-first.

    All nodes share the projections. Queries and keys are used unchanged; the values of the nonterminals
    are accumulated. With subtree masking a nonterminal attends to the leaves and nonterminals of its
    subtree, and a leaf attends to the leaves. Parameters are named and initialized as in fairseq's
    ``MultiheadAttention`` for self-attention.

    Args:
        accumulation: accumulates the values; its leaf weights depend on the leaves' states. The width
            and the number of heads are taken from it.
        subtree_masking: whether attention is restricted to subtrees; else every node attends to
            all nodes.
        neutral: without subtree masking, a learned gate for each head, from 0, scales leaves' attention
            to nonterminals (:func:`~fairseq_phrase.methods.common.biased_attention.node_attention`).
    """

    order = ("q_proj", "k_proj", "v_proj")

    def __init__(
        self,
        *,
        accumulation: HierarchicalAccumulation,
        dropout: float = 0.0,
        subtree_masking: bool = True,
        neutral: bool = False,
    ) -> None:
        heads, width = accumulation.num_heads, accumulation.head_dim
        super().__init__(embed_dim=heads * width, num_heads=heads, dropout=dropout)
        self.subtree_masking = subtree_masking
        self.accumulation = accumulation
        gated = neutral and not subtree_masking
        self.node_gate = nn.Parameter(torch.zeros(heads)) if gated else None
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
        """
        *projected, leaf_weights = project(
            states, (self.q_proj, self.k_proj, self.v_proj, self.accumulation.leaf_weight)
        )
        # (batch, nodes, width) -> (batch, nodes, heads, head width)
        query, key, value = (rows.unflatten(-1, (self.num_heads, -1)) for rows in projected)
        # The product also computed weights of nonterminals, which are not used.
        value = self.accumulation.accumulate(value, leaf_weights[:, : tree.num_leaves], tree)
        mask = tree.subtree_mask if self.subtree_masking else tree.key_mask
        query, key, value = (rows.transpose(1, 2) for rows in (query, key, value))
        attended, weights = node_attention(
            query, key, value, mask, self.node_gate, tree.num_leaves, self.dropout_p, need_weights
        )
        return self.output(attended.transpose(1, 2).flatten(2), states), weights
