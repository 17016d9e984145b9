"""Tree Transformer: hierarchical accumulation over constituents, in encoder and decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer.transformer_base import Embedding
from torch import Tensor, nn

from fairseq_phrase.errors import UserError
from fairseq_phrase.models.encoder_method import NeutralOptions, option, register_encoder
from fairseq_phrase.models.syntax_encoder import SyntaxEncoder, SyntaxEncoderLayer
from fairseq_phrase.models.tree_decoder import NEUTRAL, TreeDecoder, build_accumulation, regroup
from fairseq_phrase.modules.parse_batch import MakeStructure, ParseBatch
from fairseq_phrase.modules.trees.tree_attention import CONVENTIONS, TreeSelfAttention
from fairseq_phrase.modules.trees.tree_batch import TreeBatch, tree_sizes


@dataclass
class TreeOptions(NeutralOptions):
    """Options of trees."""

    tree_convention: ChoiceEnum(list(CONVENTIONS)) = option(  # type: ignore[valid-type]
        "paper",
        "accumulate as in the paper, or as in the authors' code (released): the leaf is not "
        "counted in the average, vertical indices count from the root, leaf weights have a bias",
    )
    tree_max_vertical: int = option(50, "largest index of the vertical embeddings, in nonterminals")
    tree_max_horizontal: int = option(100, "largest index of the horizontal embeddings, in tokens")
    no_hierarchical_embeddings: bool = option(False, "accumulate without hierarchical embeddings")
    no_subtree_masking: bool = option(
        False, "let every node of the encoder attend to all nodes, not only to its subtree"
    )
    tree_encoder_only: bool = option(
        False,
        "accumulate only in the encoder: the decoder attends to all nodes, and uses their values "
        "unchanged",
    )
    tree_one_label: bool = option(False, "use one embedding for all constituents, for every label")


def check_trees(cfg: Any) -> Sequence[str]:
    """Check the options of trees, and return the parse fields that trees are made from.

    Raises:
        UserError: the options cannot be used with trees.
    """
    for side in ("encoder", "decoder"):
        width, heads = (
            getattr(getattr(cfg, side), name) for name in ("embed_dim", "attention_heads")
        )
        if width % (2 * heads):
            raise UserError(
                f"--{side}-embed-dim {width} is not divisible into {heads} heads of an even width, "
                "half for vertical and half for horizontal embeddings"
            )
    for name in ("vertical", "horizontal"):
        if (largest := getattr(cfg, f"tree_max_{name}")) < 1:
            raise UserError(f"--tree-max-{name} {largest}: the smallest index is 1")
    if cfg.cross_self_attention:
        raise UserError("--cross-self-attention: trees have cross-attention of their own")
    return ["words", "spans"]


class TreeEncoderLayer(SyntaxEncoderLayer):
    """fairseq's encoder layer over the nodes of trees; all nodes share its parameters. Batch-first."""

    time_first = False

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> nn.Module:
        """Build the attention between nodes, with accumulated values."""
        return self.with_quant_noise(
            TreeSelfAttention(
                accumulation=build_accumulation(cfg, embed_dim, cfg.encoder.attention_heads),
                dropout=cfg.attention_dropout,
                subtree_masking=not cfg.no_subtree_masking,
                neutral=cfg.neutral_start,
            )
        )


@register_encoder(
    "tree_transformer",
    options=TreeOptions,
    parse_fields=check_trees,
    decoder=TreeDecoder,
    rows={
        "tree": {},
        "tree, released": {"tree_convention": "released"},
        "tree, encoder only": {"tree_encoder_only": True},
        "tree, neutral": {"neutral_start": True},
        "tree, all nodes, neutral": {"neutral_start": True, "no_subtree_masking": True},
    },
)
class TreeEncoder(SyntaxEncoder):
    """fairseq's Transformer encoder over leaves (source tokens) and nonterminals (constituents).

    Source: Nguyen et al., *Tree-structured Attention with Hierarchical Accumulation* (ICLR 2020);
    ``--arch tree_transformer`` and its presets.
    """

    layer_class = TreeEncoderLayer
    neutral_parameters = NEUTRAL

    def __init__(self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        num_labels = 1 if cfg.tree_one_label else cfg.count_labels("spans")
        self.embed_labels = Embedding(num_labels, embed_tokens.embedding_dim, None)

    def structure(self, src_tokens: Tensor, parse: ParseBatch) -> TreeBatch:
        """Make the trees of a batch."""
        sizes = [made.size(1) for made in parse.made("tree")] or None
        return TreeBatch.from_words(parse["words"], parse["spans"], self.padding(src_tokens), sizes)

    @classmethod
    def batch_structure(cls, cfg: TransformerConfig, dictionary: Any) -> tuple[str, MakeStructure]:
        """Return what checks the trees and counts their paths."""
        return "tree", tree_sizes

    def first_states(
        self, src_tokens: Tensor, structure: TreeBatch, token_embeddings: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Embed leaves with their positions, and nonterminals by their labels without positions."""
        leaves, embedding = self.forward_embedding(src_tokens, token_embeddings)
        assert structure.labels is not None
        labels = structure.labels
        if self.cfg.tree_one_label:
            labels = torch.zeros_like(labels)
        nonterminals = self.embed_scale * self.embed_labels(labels)
        if self.layernorm_embedding is not None:
            nonterminals = self.layernorm_embedding(nonterminals)
        nonterminals = self.dropout_module(nonterminals)
        if self.quant_noise is not None:
            nonterminals = self.quant_noise(nonterminals)
        states = torch.cat([leaves, nonterminals], 1)
        return states.masked_fill(structure.node_padding_mask.unsqueeze(-1), 0.0), embedding

    def node_padding_mask(self, src_tokens: Tensor, structure: TreeBatch) -> Tensor:
        """Return which nodes are padding: the decoder attends to leaves and nonterminals."""
        return structure.node_padding_mask

    def further_outputs(self, structure: TreeBatch) -> dict[str, list[Any]]:
        """Return the trees and the number of decoder rows of each sentence."""
        return {"tree": [structure], "beams": [1]}

    def root_nodes(self, encoded: dict[str, list[Any]], parse: ParseBatch) -> Tensor:
        """Find each tree's root: the last nonterminal, as parents come after children.

        A sentence of one subword may have no nonterminal. Its root is its leaf.
        """
        (tree,) = encoded["tree"]
        count = tree.is_nonterminal.sum(1)
        leaf = (parse["words"] >= 0).long().argmax(1)
        return torch.where(count > 0, tree.num_leaves + count - 1, leaf)

    def node_members(self, src_tokens: Tensor, structure: TreeBatch) -> list[list[tuple[int, ...]]]:
        """List the tokens of each leaf and nonterminal."""
        leaves = super().node_members(src_tokens, structure)
        spans = structure.leaf_spans.tolist()
        return [
            [*row, *(tuple(range(start, end)) for start, end in nonterminals)]
            for row, nonterminals in zip(leaves, spans, strict=True)
        ]

    def reorder_encoder_out(
        self, encoder_out: dict[str, list[Any]], new_order: Tensor
    ) -> dict[str, list[Any]]:
        """Reorder the output of :meth:`forward` for beam search.

        A sentence is kept once for all its rows, so that the decoder accumulates it once. ``beams`` is
        the number of rows.

        On a GPU the host does not wait to read the order, and relies on what fairseq's searches do: the
        rows of a sentence are adjacent, as many for each sentence, and sentences keep their order, except
        that they may change it while each has one row. Any other order, as of a search of another
        package, ends in CUDA's ``device-side assert triggered``. On a CPU every order is right.
        """
        (tree,), (beams,) = encoder_out["tree"], encoder_out["beams"]
        chosen, beams = regroup(new_order, tree.batch_size, beams)
        if chosen is None:
            return {**encoder_out, "beams": [beams]}
        sentences = {
            name: kept for name, kept in encoder_out.items() if name not in ("tree", "beams")
        }
        reordered = super().reorder_encoder_out(sentences, chosen)
        return {**reordered, "tree": [tree.index_select(chosen)], "beams": [beams]}
