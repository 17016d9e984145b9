"""Parent-scaled Transformer: attention drawn to each word's parent, in fairseq's encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.methods.common.tensors import masked_keys
from fairseq_phrase.methods.common.tree_positions import TreePositions
from fairseq_phrase.methods.encoder_method import NeutralOptions, option, register_encoder
from fairseq_phrase.methods.parents.parent_scaling import (
    SCALINGS,
    ParentDistances,
    ParentScaledAttention,
    parent_middles,
    parent_scales,
)
from fairseq_phrase.methods.syntax_encoder import SyntaxEncoder, SyntaxEncoderLayer


@dataclass
class ParentOptions(NeutralOptions):
    """Options of parent-scaled attention."""

    # fmt: off
    parent_scaling: ChoiceEnum(list(SCALINGS)) = option("multiply",  # type: ignore[valid-type]
        "multiply: softmax(S ⊙ D), as in the paper: far from the parent the score goes to 0; "
        "prior: softmax(S + log D): far from the parent the weight goes to 0")


def check(cfg: Any) -> None:
    """Check the options of scaled heads.

    Raises:
        UserError: an option of fairseq contradicts them.
    """
    if cfg.encoder.xformers_att_config:
        raise UserError("--encoder-xformers-att-config does not support scaled heads: leave it out")


class ParentEncoderLayer(SyntaxEncoderLayer):
    """fairseq's encoder layer with parent-scaled heads."""

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> nn.Module:
        """Build scaled attention."""
        return self.with_quant_noise(
            ParentScaledAttention(
                embed_dim=embed_dim,
                num_heads=cfg.encoder.attention_heads,
                scaling=cfg.parent_scaling,
                dropout=cfg.attention_dropout,
                neutral=cfg.neutral_start,
            )
        )


@register_encoder(
    "parent_scaled_transformer",
    options=ParentOptions,
    check=check,
    parse_fields=["words", "heads"],
    variants={
        "parent-scaled": {},
        "parent-scaled, prior": {"parent_scaling": "prior"},
        "parent-scaled, neutral": {"neutral_start": True},
        "parent-scaled, prior, neutral": {"parent_scaling": "prior", "neutral_start": True},
    },
)
class ParentEncoder(SyntaxEncoder):
    """fairseq's Transformer encoder with heads that attend mostly to each word's parent.

    Source: Bugliarello and Okazaki, *Enhancing Machine Translation with Dependency-Aware
    Self-Attention* (ACL 2020); ``--arch parent_scaled_transformer`` and its presets. It has the
    parameters of fairseq's Transformer. All heads of the first layer are scaled.
    """

    layer_class = ParentEncoderLayer
    neutral_parameters = ("gate",)

    def build_layer(self, cfg: TransformerConfig, index: int) -> nn.Module:
        """Build the first layer, with scaled heads, or a layer with fairseq's attention."""
        kind = SyntaxEncoderLayer if index else ParentEncoderLayer
        return kind(cfg, return_fc=self.return_fc)

    def structure(self, src_tokens: Tensor, parse: ParseBatch) -> ParentDistances:
        """Find the distances of all tokens from each token's parent."""
        padding_mask = self.padding(src_tokens)
        tree = TreePositions(parse["words"], parse["heads"], padding_mask)
        scales = parent_scales(parent_middles(tree), self.cfg.parent_scaling)
        return ParentDistances(padding_mask, scales, masked_keys(padding_mask))
