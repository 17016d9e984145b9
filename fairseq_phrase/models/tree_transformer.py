"""Tree Transformer: hierarchical accumulation over constituents, in encoder and decoder."""

from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig

from fairseq_phrase.errors import UserError
from fairseq_phrase.models.config import (
    PRESETS,
    FlatTransformerConfig,
    nested_config,
    register_presets,
)
from fairseq_phrase.models.syntax_transformer import SyntaxTransformerModel
from fairseq_phrase.models.tree_decoder import TreeDecoder
from fairseq_phrase.models.tree_encoder import TreeEncoder


@dataclass
class TreeTransformerConfig(FlatTransformerConfig):  # type: ignore[misc, valid-type]
    """Options of fairseq's Transformer and of trees (``spec/tree_attention.md``)."""

    tree_convention: ChoiceEnum(["paper", "released"]) = field(  # type: ignore[valid-type]
        default="paper",
        metadata={
            "help": "accumulate as the paper says, or as the authors' code does: the leaf is not "
            "counted in the average, vertical indices count from the root, leaf weights have a bias"
        },
    )
    tree_max_vertical: int = field(
        default=50, metadata={"help": "largest index of the vertical embeddings, in nonterminals"}
    )
    tree_max_horizontal: int = field(
        default=100, metadata={"help": "largest index of the horizontal embeddings, in tokens"}
    )
    no_hierarchical_embeddings: bool = field(
        default=False, metadata={"help": "accumulate without hierarchical embeddings"}
    )
    no_subtree_masking: bool = field(
        default=False,
        metadata={"help": "let every node of the encoder attend to all, not to its subtree alone"},
    )
    tree_encoder_only: bool = field(
        default=False,
        metadata={
            "help": "accumulate in the encoder alone: the decoder attends to all nodes, and takes "
            "their values as they are"
        },
    )
    tree_one_label: bool = field(
        default=False, metadata={"help": "one embedding for all constituents, whatever their label"}
    )


@register_presets(
    TreeTransformerConfig,
    **{
        "tree_transformer" + (f"_{name}" if name else ""): options
        for name, options in PRESETS.items()
    },
)
class TreeTransformerModel(SyntaxTransformerModel):
    """fairseq's Transformer over constituency trees of the source.

    Source: Nguyen et al., *Tree-structured Attention with Hierarchical Accumulation* (ICLR 2020);
    ``--arch tree_transformer`` and its presets.
    """

    @classmethod
    def needed_parses(cls, cfg: Any) -> list[str]:
        """Name the fields of a parse that trees are made from.

        Raises:
            UserError: the options make no sense with trees.
        """
        for side in ("encoder", "decoder"):
            width, heads = (
                getattr(getattr(cfg, side), n) for n in ("embed_dim", "attention_heads")
            )
            if width % (2 * heads):
                raise UserError(
                    f"--{side}-embed-dim {width} is not divisible into {heads} heads of an even width, "
                    "half for vertical and half for horizontal embeddings"
                )
        for option in ("tree_max_vertical", "tree_max_horizontal"):
            if getattr(cfg, option) < 1:
                flag = option.replace("_", "-")
                raise UserError(f"--{flag} {getattr(cfg, option)}: the smallest index is 1")
        if cfg.cross_self_attention:
            raise UserError("--cross-self-attention: trees have cross-attention of their own")
        return ["words", "spans"]

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "TreeTransformerModel":
        """Build the model, with an embedding for each label of the data's constituents.

        Raises:
            UserError: the task or its data have no constituents, or the options make no sense.
        """
        cfg = nested_config(cfg)
        cls.require_parses(cfg, task)
        cfg.num_labels = 1 if cfg.tree_one_label else len(task.constituent_dictionary)
        return super().build_model(cfg, task)

    @classmethod
    def build_encoder(
        cls, cfg: TransformerConfig, src_dict: Any, embed_tokens: torch.nn.Embedding
    ) -> TreeEncoder:
        """Build the encoder."""
        return TreeEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(
        cls, cfg: TransformerConfig, tgt_dict: Any, embed_tokens: torch.nn.Embedding
    ) -> TreeDecoder:
        """Build the decoder."""
        return TreeDecoder(cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention)
