"""Tree Transformer: hierarchical accumulation over constituents, in encoder and decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer.transformer_base import Embedding
from fairseq.modules import MultiheadAttention
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor, nn

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.accumulation.tree_attention import (
    CONVENTIONS,
    HierarchicalAccumulation,
    TreeSelfAttention,
)
from fairseq_phrase.methods.common.biased_attention import node_attention
from fairseq_phrase.methods.common.parse_batch import MakeStructure, ParseBatch
from fairseq_phrase.methods.common.projections import project
from fairseq_phrase.methods.common.tree_batch import TreeBatch, tree_sizes
from fairseq_phrase.methods.encoder_method import NeutralOptions, option, register_encoder
from fairseq_phrase.methods.syntax_decoder import SyntaxDecoder
from fairseq_phrase.methods.syntax_encoder import (
    SyntaxEncoder,
    SyntaxEncoderLayer,
    add_neutral,
    wrap_layer,
)

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary


@dataclass
class TreeOptions(NeutralOptions):
    """Options of trees."""

    # fmt: off
    tree_convention: ChoiceEnum(list(CONVENTIONS)) = option("paper",  # type: ignore[valid-type]
        "accumulate as in the paper, or as in the authors' code (released): the leaf is not "
        "counted in the average, vertical indices count from the root, leaf weights have a bias")
    tree_max_vertical: int = option(50, "largest index of the vertical embeddings, in nonterminals")
    tree_max_horizontal: int = option(100, "largest index of the horizontal embeddings, in tokens")
    no_hierarchical_embeddings: bool = option(False, "accumulate without hierarchical embeddings")
    no_subtree_masking: bool = option(False,
        "let every node of the encoder attend to all nodes, not only to its subtree")
    tree_encoder_only: bool = option(False,
        "accumulate only in the encoder: the decoder attends to all nodes, and uses their values "
        "unchanged")
    tree_one_label: bool = option(False, "use one embedding for all constituents, for every label")


def check(cfg: Any) -> None:
    """Check the options of trees.

    Raises:
        UserError: the options cannot be used with trees.
    """
    for side, sizes in (("encoder", cfg.encoder), ("decoder", cfg.decoder)):
        width, heads = sizes.embed_dim, sizes.attention_heads
        if width % (2 * heads):
            raise UserError(
                f"--{side}-embed-dim {width} is not divisible into {heads} heads of an even width, "
                "half for vertical and half for horizontal embeddings"
            )
    for name, largest in (
        ("vertical", cfg.tree_max_vertical),
        ("horizontal", cfg.tree_max_horizontal),
    ):
        if largest < 1:
            raise UserError(f"--tree-max-{name} {largest}: the smallest index is 1")
    if cfg.cross_self_attention:
        raise UserError("--cross-self-attention: trees have cross-attention of their own")


#: Names that encoder and decoder add to fairseq's; see ``SyntaxEncoder.neutral_parameters``.
NEUTRAL = ("embed_labels", "accumulation", "node_gate")


def regroup(new_order: Tensor, sentences: int, beams: int) -> tuple[Tensor | None, int]:
    """Compute how sentences move when beam search moves their rows.

    fairseq's search reorders rows, one for each hypothesis. Data of a sentence are the same for all its
    rows. They are kept only once, as long as the rows of the sentence are adjacent.

    Reading an order on a GPU would make the host wait, so it is not read: see
    :meth:`TreeEncoder.reorder_encoder_out`.

    Args:
        new_order: for each new row, the index of the old row. Shape: (new rows,), int64
        beams: number of adjacent rows of each sentence.

    Returns:
        For each new sentence, the index of the old sentence (shape (new sentences,), int64; None if
        nothing moves); and how many rows each has. If the rows of a sentence are not adjacent, every
        row becomes a sentence.
    """
    # Row r belongs to sentence r // beams.
    source = new_order if beams == 1 else new_order // beams
    rows = len(source)
    # A search starts with one row per sentence, and then adds as many rows to each.
    together = rows // sentences if beams == 1 and rows % sentences == 0 else beams
    if together < 1 or rows % together:
        return source, 1
    groups = source.view(-1, together)
    firsts = groups[:, 0]
    stays = together > 1 and len(firsts) == sentences
    if new_order.is_cuda:
        expected = torch.arange(sentences, device=firsts.device) if stays else firsts
        as_expected = (groups == expected[:, None]).all()
        torch._assert_async(as_expected, "beam search separated the rows of a sentence")
        return None if stays else firsts, together
    if not (groups == groups[:, :1]).all():
        return source, 1
    return None if firsts.tolist() == [*range(sentences)] else firsts, together


IncrementalState = dict[str, dict[str, Tensor | None]]


def build_accumulation(
    cfg: TransformerConfig, embed_dim: int, num_heads: int
) -> HierarchicalAccumulation:
    """Build a layer's accumulation according to the options."""
    return HierarchicalAccumulation(
        embed_dim=embed_dim,
        num_heads=num_heads,
        # Decoder and encoder have the same leaves.
        leaf_dim=cfg.encoder.embed_dim,
        embeddings=not cfg.no_hierarchical_embeddings,
        max_vertical=cfg.tree_max_vertical,
        max_horizontal=cfg.tree_max_horizontal,
        convention=cfg.tree_convention,
    )


class TreeCrossAttention(MultiheadAttention):
    """fairseq's cross-attention over all source nodes; the values of nonterminals are accumulated.

    Keys and accumulated values are computed once per sentence, for all rows of its beam. During decoding
    they are kept in fairseq's incremental state.

    Args:
        accumulation: accumulates the values; None leaves them as they are.
        neutral: a learned gate for each head, from 0, scales the attention to nonterminals
            (:func:`~fairseq_phrase.methods.common.biased_attention.node_attention`).
    """

    def __init__(
        self, accumulation: HierarchicalAccumulation | None, neutral: bool = False, **options: Any
    ) -> None:
        super().__init__(encoder_decoder_attention=True, **options)
        self.accumulation = accumulation
        self.node_gate = nn.Parameter(torch.zeros(self.num_heads)) if neutral else None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: TreeBatch,
        incremental_state: IncrementalState | None = None,
        need_weights: bool = False,
        static_kv: bool = True,
        attn_mask: None = None,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend to the source. Time-first, as fairseq's decoder layer calls it.

        Args:
            query: target states; the rows of a sentence are adjacent.
                Shape: (target tokens, sentences * beams, width)
            key: node states of the source, leaves first; ignored if the incremental state already holds
                the keys and values computed from them. Shape: (nodes, sentences, encoder width)
            value: not used, as in fairseq: the same as ``key``.
            key_padding_mask: the trees, which fairseq passes under this name.
            need_weights: also return the weights' mean over the heads.
            need_head_weights: return every head's weights instead.

        Returns:
            The attended states, of shape (target tokens, sentences * beams, width), and the weights
            before dropout: None, or of shape (sentences * beams, target tokens, nodes), for every
            head (heads, sentences * beams, target tokens, nodes).
        """
        # The source's keys and values are made in the first step of a search, and kept.
        source = self._get_input_buffer(incremental_state)
        if "prev_key" not in source:
            source = self.encoded(key, key_padding_mask)
        sentences = source["prev_key"].size(0)
        length, rows, _ = query.shape
        beams = rows // sentences
        if incremental_state is not None:
            source["beams"] = beams
            self._set_input_buffer(incremental_state, source)
        # The rows of a sentence attend to the same nodes, so they are treated as additional queries.
        # (length, sentences * beams, width) -> (sentences, heads, beams * length, head width)
        query = self.q_proj(query).view(length, sentences, beams, self.num_heads, self.head_dim)
        # As in FairseqDropout: --retain-dropout also drops at inference.
        drops = self.training or self.dropout_module.apply_during_inference
        query = query.permute(1, 3, 2, 0, 4).flatten(2, 3)
        # One softmax over leaves and nonterminals, the latter behind the gate of a neutral start.
        attended, weights = node_attention(
            query, source["prev_key"], source["prev_value"], source["prev_mask"],
            self.node_gate, source["leaves"], self.dropout_module.p if drops else 0.0,
            need_weights or need_head_weights, twice=query.size(2),
        )  # fmt: skip
        # Back to fairseq's order: (target tokens, sentences, beams, heads, head width)
        attended = attended.unflatten(2, (beams, length)).permute(3, 0, 2, 1, 4)
        output = self.out_proj(attended.reshape(length, rows, self.embed_dim))
        if weights is None:
            return output, None
        # -> (heads, sentences * beams, length, nodes)
        weights = weights.unflatten(2, (beams, length)).permute(1, 0, 2, 3, 4).flatten(1, 2)
        return output, weights if need_head_weights else weights.mean(0)

    def encoded(self, states: Tensor, tree: TreeBatch) -> dict[str, Any]:
        """Make the keys, the accumulated values and the mask that cross-attention needs.

        Returns:
            ``prev_key`` and ``prev_value``, of shape (sentences, heads, nodes, head width),
            ``prev_mask``, True where a node is not padding, of shape (sentences, 1, 1, nodes), and the
            number of ``leaves``.
        """
        projections = [self.k_proj, self.v_proj]
        if self.accumulation is not None:
            # The leaves' weights come from the same product; nonterminals' weights are not used.
            projections.append(self.accumulation.leaf_weight)
        # (nodes, sentences, width) -> (sentences, nodes, width)
        keys, values, *weights = (rows.transpose(0, 1) for rows in project(states, projections))
        # -> (sentences, nodes, heads, head width)
        keys, values = (rows.unflatten(-1, (self.num_heads, -1)) for rows in (keys, values))
        if self.accumulation is not None:
            values = self.accumulation.accumulate(values, weights[0][:, : tree.num_leaves], tree)
        keys, values = keys.transpose(1, 2), values.transpose(1, 2)
        return {
            "prev_key": keys,
            "prev_value": values,
            "prev_mask": tree.key_mask,
            "leaves": tree.num_leaves,
        }

    def reorder_incremental_state(
        self, incremental_state: IncrementalState | None, new_order: Tensor
    ) -> IncrementalState | None:
        """Reorder the kept keys and values of the source for beam search.

        Args:
            new_order: for each new row, the index of the old row. Shape: (new rows,), int64.
        """
        source = self._get_input_buffer(incremental_state)
        if "prev_key" in source:
            moves, beams = regroup(new_order, source["prev_key"].size(0), source["beams"])
            if moves is not None:
                for name in ("prev_key", "prev_value", "prev_mask"):
                    source[name] = source[name].index_select(0, moves)
            source["beams"] = beams
            self._set_input_buffer(incremental_state, source)
        return incremental_state


class TreeDecoderLayer(TransformerDecoderLayerBase):
    """fairseq's decoder layer whose cross-attention accumulates with its own parameters."""

    def build_encoder_attention(self, embed_dim: int, cfg: TransformerConfig) -> TreeCrossAttention:
        """Build the cross-attention."""
        heads = cfg.decoder.attention_heads
        return TreeCrossAttention(
            None if cfg.tree_encoder_only else build_accumulation(cfg, embed_dim, heads),
            cfg.neutral_start, embed_dim=embed_dim, num_heads=heads, kdim=cfg.encoder.embed_dim,
            vdim=cfg.encoder.embed_dim, dropout=cfg.attention_dropout, q_noise=self.quant_noise,
            qn_block_size=self.quant_noise_block_size,
        )  # fmt: skip


class TreeDecoder(SyntaxDecoder):
    """fairseq's Transformer decoder that attends to the nodes of source trees."""

    def build_decoder_layer(
        self, cfg: TransformerConfig, no_encoder_attn: bool = False
    ) -> nn.Module:
        """Build a layer, wrapped as fairseq wraps its own."""
        return wrap_layer(TreeDecoderLayer(cfg, no_encoder_attn), cfg)

    def upgrade_state_dict_named(
        self, state_dict: dict[str, Tensor], name: str
    ) -> dict[str, Tensor]:
        """Add the neutral parameters to a checkpoint of fairseq's Transformer; see fairseq."""
        super().upgrade_state_dict_named(state_dict, name)
        if self.cfg.neutral_start:
            add_neutral(self, NEUTRAL, state_dict, name)
        return state_dict

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Any]],
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, list[Any]]]:
        """Decode without the output projection, see :class:`SyntaxDecoder`.

        fairseq's function only passes ``encoder_padding_mask`` to the layers' cross-attention. Here it is
        the :class:`TreeBatch`.
        """
        of_trees = {**encoder_out, "encoder_padding_mask": encoder_out["tree"]}
        return super().extract_features(prev_output_tokens, of_trees, *args, **kwargs)


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
    check=check,
    parse_fields=["words", "spans"],
    decoder=TreeDecoder,
    variants={
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

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        num_labels = 1 if cfg.tree_one_label else cfg.labels.count("spans")
        self.embed_labels = Embedding(num_labels, embed_tokens.embedding_dim, None)

    def structure(self, src_tokens: Tensor, parse: ParseBatch) -> TreeBatch:
        """Make the trees of a batch."""
        sizes = parse.made("tree") or None
        return TreeBatch.from_words(parse["words"], parse["spans"], self.padding(src_tokens), sizes)

    @classmethod
    def batch_structure(
        cls, cfg: TransformerConfig, dictionary: Dictionary
    ) -> tuple[str, MakeStructure]:
        """Return the function that checks the trees and counts their paths."""
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

    def extra_outputs(self, structure: TreeBatch) -> dict[str, list[Any]]:
        """Return the padding of all nodes, the trees, and the number of decoder rows of each sentence."""
        padding = structure.node_padding_mask
        return {"encoder_padding_mask": [padding], "tree": [structure], "beams": [1]}

    def root_nodes(self, encoded: dict[str, list[Any]], parse: ParseBatch) -> Tensor:
        """Find each tree's root: the last nonterminal, because parents follow their children.

        The root of a sentence of one subword without nonterminals is its leaf.
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

        A sentence is kept once for all its rows, because the decoder accumulates it once. ``beams`` is
        the number of rows.

        On a GPU the host does not wait to read the order, and relies on the behaviour of fairseq's
        searches: the rows of a sentence are adjacent, all sentences have the same number of rows,
        and sentences keep their order, except that they may change it while each has one row. Any other
        order, as in a search of another package, ends in CUDA's ``device-side assert triggered``. On a
        CPU every order is right.
        """
        (tree,), (beams,) = encoder_out["tree"], encoder_out["beams"]
        moves, beams = regroup(new_order, tree.batch_size, beams)
        if moves is None:
            return {**encoder_out, "beams": [beams]}
        sentences = {
            name: values for name, values in encoder_out.items() if name not in ("tree", "beams")
        }
        reordered = super().reorder_encoder_out(sentences, moves)
        return {**reordered, "tree": [tree.index_select(moves)], "beams": [beams]}
