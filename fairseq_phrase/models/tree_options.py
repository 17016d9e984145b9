"""The options of trees, for the tree Transformer's encoder and decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig

from fairseq_phrase.errors import UserError
from fairseq_phrase.models.encoder_method import option
from fairseq_phrase.modules.trees.hierarchical_accumulation import (
    CONVENTIONS,
    HierarchicalAccumulation,
)


@dataclass
class TreeOptions:
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


def build_accumulation(
    cfg: TransformerConfig, embed_dim: int, num_heads: int
) -> HierarchicalAccumulation:
    """Build a layer's accumulation as the options say."""
    return HierarchicalAccumulation(
        embed_dim=embed_dim,
        num_heads=num_heads,
        # The decoder's leaves are those of the encoder.
        leaf_dim=cfg.encoder.embed_dim,
        embeddings=not cfg.no_hierarchical_embeddings,
        max_vertical=cfg.tree_max_vertical,
        max_horizontal=cfg.tree_max_horizontal,
        convention=cfg.tree_convention,
    )


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
