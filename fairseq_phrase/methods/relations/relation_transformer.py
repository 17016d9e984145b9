"""Relation-biased Transformer: a learned bias for each relation of two words, one per head."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_phrase.methods.common.parse_batch import MakeStructure, ParseBatch
from fairseq_phrase.methods.common.tensors import masked_keys
from fairseq_phrase.methods.common.tree_positions import TreePositions
from fairseq_phrase.methods.encoder_method import register_encoder
from fairseq_phrase.methods.positions.relative_positions import RelativePositions
from fairseq_phrase.methods.relations.distance_prior import DistancePriorAttention, token_distances
from fairseq_phrase.methods.relations.relation_bias import (
    PairRelations,
    RelationAttention,
    edge_pairs,
    graph_relations,
    kinds_of_pairs,
    sentence_buckets,
    tree_relations,
    with_co_heads,
)
from fairseq_phrase.methods.relations.relation_options import (
    RelationOptions,
    check_relations,
    label_field,
    parse_fields,
    reads_trees,
)
from fairseq_phrase.methods.relations.relation_vectors import (
    RelationVectorAttention,
    label_rows,
    most_labels,
    relation_positions,
)
from fairseq_phrase.methods.syntax_encoder import SyntaxEncoder, SyntaxEncoderLayer

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary


class RelationEncoderLayer(SyntaxEncoderLayer):
    """fairseq's encoder layer with relation biases or vectors."""

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> nn.Module:
        """Build attention with the biases or vectors that the options ask for."""
        options: dict[str, Any] = {
            "embed_dim": embed_dim,
            "num_heads": cfg.encoder.attention_heads,
            "dropout": cfg.attention_dropout,
        }
        if cfg.relation_bias == "distance":
            prior = DistancePriorAttention(**options)
            return self.with_quant_noise(prior)
        options |= {
            "kind": cfg.relation_bias,
            "num_labels": cfg.labels.count(label_field(cfg)) if cfg.relation_labels else 0,
            "of_graph": cfg.relation_source != "heads",
        }
        if cfg.relation_vectors == "none":
            return self.with_quant_noise(RelationAttention(**options))
        use_values = cfg.relation_vectors == "keys-values"
        return self.with_quant_noise(RelationVectorAttention(**options, use_values=use_values))


@register_encoder(
    "relation_transformer",
    options=RelationOptions,
    check=check_relations,
    parse_fields=parse_fields,
    variants={
        "relation bias, tree": {},
        "relation bias, sequence": {"relation_bias": "sequence"},
        "relation bias, both": {"relation_bias": "both"},
        "relation bias, both, labels": {"relation_bias": "both", "relation_labels": True},
        "relation bias, graph, labels": {"relation_source": "enhanced", "relation_labels": True},
        "relation bias, distance": {"relation_bias": "distance"},
        "relation vectors, labels": {"relation_vectors": "keys-values", "relation_labels": True},
        "relation vectors, both, graph, labels": {
            "relation_vectors": "keys-values",
            "relation_bias": "both",
            "relation_source": "enhanced",
            "relation_labels": True,
        },
        "relation vectors, sequence, keys": {
            "relation_vectors": "keys",
            "relation_bias": "sequence",
        },
    },
)
class RelationEncoder(SyntaxEncoder):
    """fairseq's Transformer encoder with learned biases or vectors for the relations of words.

    Source: ``docs/models/tree_relations.md``, after McDonald and Chiang (2021) and T5; ``--arch
    relation_transformer`` and its presets. All biases and vectors start at 0, so training starts from
    fairseq's Transformer. With ``--relation-bias none`` it is fairseq's Transformer.
    """

    layer_class = RelationEncoderLayer
    neutral_parameters = (
        *("tree_bias", "co_head_bias", "label_bias", "sequence_bias"),
        *("relation_keys", "relation_values"),
    )

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self._num_labels = cfg.labels.count(label_field(cfg)) if cfg.relation_labels else 0

    @classmethod
    def is_plain(cls, cfg: TransformerConfig) -> bool:
        """Return whether the layers lack biases and vectors."""
        return bool(cfg.relation_bias == "none")

    @classmethod
    def neutral_obstacle(cls, cfg: TransformerConfig) -> str | None:
        """Return the obstacle, a fixed prior; all biases and vectors start at 0."""
        if cfg.relation_bias == "distance":
            return "--relation-bias distance has no neutral start, because its prior is fixed"
        return None

    def upgrade_state_dict_named(
        self, state_dict: dict[str, Tensor], name: str
    ) -> dict[str, Tensor]:
        """Read a checkpoint of graphs that was trained when co-heads counted as siblings."""
        if self.cfg.relation_source != "heads":
            with_co_heads(state_dict, name)
        return super().upgrade_state_dict_named(state_dict, name)

    @classmethod
    def batch_structure(
        cls, cfg: TransformerConfig, dictionary: Dictionary
    ) -> tuple[str, MakeStructure] | None:
        """Return the function that counts the labels of a pair in a graph, for vectors."""
        field = cfg.relation_source
        if cfg.relation_vectors == "none" or not cfg.relation_labels or field == "heads":
            return None
        return f"most labels of {field}", partial(most_labels, field)

    def structure(self, src_tokens: Tensor, parse: ParseBatch) -> PairRelations | RelativePositions:
        """Number the relations of all pairs of tokens."""
        padding_mask = self.padding(src_tokens)
        masked = masked_keys(padding_mask)[:, None]
        if self.cfg.relation_bias == "distance":
            positions = TreePositions(parse["words"], parse["heads"], padding_mask)
            return PairRelations(token_distances(positions), masked)
        buckets = None
        if self.cfg.relation_bias in ("sequence", "both"):
            buckets = sentence_buckets(src_tokens.size(1), src_tokens.device)
        if self.cfg.relation_source != "heads":
            return self._graph_structure(src_tokens, parse, buckets, masked)
        tree = None
        if reads_trees(self.cfg):
            positions = TreePositions(parse["words"], parse["heads"], padding_mask)
            labels = parse["deprels"] if self.cfg.relation_labels else None
            tree = tree_relations(positions, labels, self._num_labels)
        if self.cfg.relation_vectors == "none":
            return PairRelations(kinds_of_pairs(tree, buckets), masked)
        return relation_positions(tree, buckets, self._num_labels, masked=masked)

    def _graph_structure(
        self, src_tokens: Tensor, parse: ParseBatch, buckets: Tensor | None, masked: Tensor
    ) -> PairRelations | RelativePositions:
        """Number the relations of all pairs in a graph, whose edges have labels apart."""
        graph = parse[self.cfg.relation_source]
        relations = graph_relations(parse["words"], graph)
        edges = None
        if self.cfg.relation_labels:
            edges = edge_pairs(parse["words"], graph, self._num_labels)
        if self.cfg.relation_vectors == "none":
            return PairRelations(kinds_of_pairs(relations, buckets), masked, edges)
        labels: Sequence[Tensor] = ()
        if edges is not None:
            batch_function = self.batch_structure(self.cfg, self.dictionary)
            assert batch_function is not None
            (most,) = parse.made(batch_function[0]) or batch_function[1](src_tokens, parse)
            labels = label_rows(edges, self._num_labels, most)
        return relation_positions(
            relations, buckets, self._num_labels, labels, masked, of_graph=True
        )
