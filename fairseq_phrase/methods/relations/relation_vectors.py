"""Self-attention with learned vectors for the relations of two tokens, on keys and values.

Source: Shaw et al. 2018, section 3.1, with a vector for each label of a pair; RAT-SQL (Wang et al. 2020),
eq. 2; ``docs/models/tree_relations.md``:

    e_ij = q_i · (k_j + Σ_r a^K_r) / √d_head,    z_i = Σ_j α_ij (v_j + Σ_r a^V_r)

where r runs over the relations of j to i: in the tree or graph, of each edge's label, in the sentence.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.methods.common.projections import HeadsAttention
from fairseq_phrase.methods.positions.relative_attention import relative_attention
from fairseq_phrase.methods.positions.relative_positions import RelativePositions
from fairseq_phrase.methods.relations.relation_bias import (
    CHILD,
    GRAPH_RELATIONS,
    NUM_BUCKETS,
    PARENT,
    TREE_RELATIONS,
    EdgePairs,
    edge_pairs,
)


def _ranks(slots: Tensor, last: int) -> Tensor:
    """Count the earlier edges between the same words; 0 at padding. Shape: as the sorted slots."""
    first = torch.searchsorted(slots, slots)
    order = torch.arange(slots.size(1), device=slots.device)
    return (order - first).masked_fill(slots == last, 0)


def most_labels(field: str, src_tokens: Tensor, parse: ParseBatch) -> list[int]:
    """Count the most edges between two words of a batch, in the collater.

    Args:
        field: the graph's parse field.

    Returns:
        The number, 1 or more.
    """
    words = parse["words"]
    slots = edge_pairs(words, parse[field], 0).slots.sort(1).values
    return [1 + max(_ranks(slots, words.size(1) ** 2).flatten().tolist(), default=0)]


def label_rows(edges: EdgePairs, num_labels: int, count: int) -> Sequence[Tensor]:
    """Number the labels of all edges between two tokens' words, one edge per tensor.

    Args:
        num_labels: number of labels L.
        count: the most edges between two words, from :func:`most_labels`.

    Returns:
        0 to L - 1 for heads as keys, L to 2 L - 1 for dependents, 2 L where no edge is left.
        Shape of each: (batch, tokens, tokens), int64
    """
    batch, tokens = edges.of_tokens.shape[:2]
    num_slots = tokens**2 + 1  # of pairs of words, and one for padding
    slots, order = edges.slots.sort(1)
    # Edge number 0, 1, … between the same words is in table 0, 1, …
    tables = edges.labels.new_full((batch, count * num_slots), 2 * num_labels)
    slots = slots + num_slots * _ranks(slots, tokens**2)
    tables = tables.scatter(1, slots, edges.labels.gather(1, order)).view(batch, count, num_slots)
    pairs = edges.of_tokens.view(batch, 1, -1).expand(-1, count, -1)
    return list(tables.gather(2, pairs).view(batch, count, tokens, tokens).unbind(1))


def relation_positions(
    tree: Tensor | None,
    buckets: Tensor | None,
    num_labels: int = 0,
    labels: Sequence[Tensor] = (),
    masked: Tensor | None = None,
    *,
    of_graph: bool = False,
) -> RelativePositions:
    """Number the vectors of all pairs in the table of :class:`RelationVectorAttention`.

    Args:
        tree: from :func:`~fairseq_phrase.methods.relations.relation_bias.tree_relations` or
            ``graph_relations``; None without trees. Shape: (batch, tokens, tokens), int64
        buckets: from ``sentence_buckets``; None without distances. Shape: (1, tokens, tokens), int64
        num_labels: number of labels L.
        labels: of a graph, from :func:`label_rows`; labels of trees are numbers in ``tree``.
        masked: True at pairs that get no weight. Shape: (batch, 1 or tokens, tokens)
        of_graph: whether the relations are of graphs.
    """
    rows, size = [], 0
    if tree is not None:
        size = len(GRAPH_RELATIONS if of_graph else TREE_RELATIONS)
        rows = [tree, *(numbers + size for numbers in labels)]
        size += 2 * num_labels
        if labels:
            size += 1  # for pairs without an edge
    if buckets is not None:
        rows.append(buckets + size)
        size += NUM_BUCKETS
    return RelativePositions(tuple(rows), size, masked)


class RelationVectorAttention(HeadsAttention):
    """Multi-head self-attention with vectors of relations, which the heads share. Time-first.

    All vectors start at 0, so training starts from attention without relations.

    Args:
        kind: ``"tree"``, ``"sequence"`` or ``"both"``, as in
            :class:`~fairseq_phrase.methods.relations.relation_bias.RelationBias`.
        num_labels: number of labels L, if edges have a vector for their label.
        of_graph: whether the relations are of graphs.
        use_values: whether relations have vectors for values, in addition to keys.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        num_heads: int,
        kind: str = "tree",
        num_labels: int = 0,
        of_graph: bool = False,
        use_values: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        self.kind, self.num_labels, self.of_graph = kind, num_labels, of_graph
        sizes: dict[str, int] = {}
        if kind != "sequence":
            sizes["tree"] = len(GRAPH_RELATIONS if of_graph else TREE_RELATIONS)
            sizes["label"] = 2 * num_labels
        if kind != "tree":
            sizes["sequence"] = NUM_BUCKETS

        def vectors() -> nn.ParameterDict:
            width = embed_dim // num_heads
            return nn.ParameterDict(
                {n: torch.zeros(size, width) for n, size in sizes.items() if size}
            )

        self.relation_keys = vectors()
        self.relation_values = vectors() if use_values else None
        self.reset_parameters()

    def extra_repr(self) -> str:
        """Show the options in ``print(module)``."""
        return f"num_heads={self.num_heads}, kind={self.kind}, num_labels={self.num_labels}"

    def forward(
        self, states: Tensor, positions: RelativePositions, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attend once.

        Args:
            states: token states. Shape: (tokens, batch, width)
            positions: from :func:`relation_positions`.
        """
        keys = self._table(self.relation_keys)
        values = None if self.relation_values is None else self._table(self.relation_values)
        attended, weights = relative_attention(
            *self.split(states), positions, keys, values, self.dropout_p, need_weights
        )
        return self.join(attended, states), weights

    def _table(self, vectors: nn.ParameterDict) -> Tensor:
        """Concatenate the vectors in the order of :func:`relation_positions`. Shape: (R, head width)."""
        # ParameterDict sorts its names.
        tables = {name: vectors[name] for name in ("tree", "label", "sequence") if name in vectors}
        if "label" in tables and self.of_graph:
            tables["label"] = pad(tables["label"], (0, 0, 0, 1))  # no edge is left
        elif "label" in tables:
            # A labelled parent or child has two vectors: of its relation and of its label.
            edge = tables["tree"][PARENT : CHILD + 1, None]
            tables["label"] = (edge + tables["label"].unflatten(0, (2, -1))).flatten(0, 1)
        return torch.cat([*tables.values()])
