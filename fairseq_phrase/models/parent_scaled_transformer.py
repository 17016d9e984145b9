"""Parent-scaled Transformer: attention drawn to each word's parent, in fairseq's encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_phrase.errors import UserError
from fairseq_phrase.models.config import trained_layers
from fairseq_phrase.models.encoder_method import NeutralOptions, option, register_encoder
from fairseq_phrase.models.syntax_encoder import SyntaxEncoder, SyntaxEncoderLayer
from fairseq_phrase.modules.parse_batch import ParseBatch
from fairseq_phrase.modules.positions.parent_scaling import (
    SCALINGS,
    ParentDistances,
    ParentScaledAttention,
    parent_middles,
    parent_scales,
)
from fairseq_phrase.modules.positions.tree_positions import TreePositions
from fairseq_phrase.modules.tensors import masked_keys


@dataclass
class ParentOptions(NeutralOptions):
    """Options of parent-scaled attention."""

    # fmt: off
    parent_heads: str = option("all",
        "number of scaled heads of each encoder layer, from the first layer, such as 2,0,0; each "
        "is a number or 'all'. Layers that are not listed have no scaled heads")
    parent_scaling: ChoiceEnum(list(SCALINGS)) = option("multiply",  # type: ignore[valid-type]
        "multiply: softmax(S ⊙ D), as in the paper: far from the parent the score goes to 0; "
        "prior: softmax(S + log D): far from the parent the weight goes to 0")
    parent_std: float = option(1.0, "standard deviation of D, in subwords")
    parent_ignoring: float = option(0.0,
        "probability with which a token's scores are not scaled in training", identity="free")


def scaled_heads(cfg: Any) -> list[int]:
    """Read ``--parent-heads``: the number of scaled heads of each layer.

    Raises:
        UserError: there are more layers or heads than the encoder has.
    """
    heads, layers = cfg.encoder.attention_heads, trained_layers(cfg)
    option = f"--parent-heads {cfg.parent_heads}"
    try:
        counts = [
            heads if part.strip() == "all" else int(part)
            for part in str(cfg.parent_heads).split(",")
        ]
    except ValueError:
        raise UserError(
            f"{option}: expected a number of heads or 'all' for each layer, as in 2,0,0"
        ) from None
    if len(counts) > layers:
        raise UserError(f"{option} names {len(counts)} layers: the encoder has {layers}")
    for number, count in enumerate(counts, start=1):
        if not 0 <= count <= heads:
            raise UserError(f"{option}: layer {number} has {heads} heads, not {count}")
    return counts + [0] * (layers - len(counts))


def check(cfg: Any) -> None:
    """Check the options of scaled heads.

    Raises:
        UserError: a number is out of its range, or the options contradict each other.
    """
    has_scaled_heads = any(scaled_heads(cfg))
    if cfg.parent_std <= 0:
        raise UserError(f"--parent-std {cfg.parent_std}: expected more than 0")
    if not 0 <= cfg.parent_ignoring <= 1:
        raise UserError(f"--parent-ignoring {cfg.parent_ignoring}: expected a probability, 0 to 1")
    if has_scaled_heads and cfg.encoder.xformers_att_config:
        raise UserError("--encoder-xformers-att-config does not support scaled heads: leave it out")


class ParentEncoderLayer(SyntaxEncoderLayer):
    """fairseq's encoder layer with some parent-scaled heads."""

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> nn.Module:
        """Build scaled attention; :class:`ParentEncoder` sets how many heads are scaled."""
        return self.with_quant_noise(
            ParentScaledAttention(
                embed_dim=embed_dim,
                num_heads=cfg.encoder.attention_heads,
                scaled_heads=cfg.encoder.attention_heads,
                scaling=cfg.parent_scaling,
                ignoring=cfg.parent_ignoring,
                dropout=cfg.attention_dropout,
                neutral=cfg.neutral_start,
            )
        )


@register_encoder(
    "parent_scaled_transformer",
    options=ParentOptions,
    check=check,
    parse_fields=lambda cfg: ["words", "heads"] if any(scaled_heads(cfg)) else [],
    variants={
        "parent-scaled": {},
        "parent-scaled, prior": {"parent_scaling": "prior"},
        "parent-scaled, one head, ignoring": {"parent_heads": "1,all", "parent_ignoring": 0.3},
        "parent-scaled, neutral": {"parent_heads": "1,all", "neutral_start": True},
        "parent-scaled, prior, neutral": {"parent_scaling": "prior", "neutral_start": True},
    },
)
class ParentEncoder(SyntaxEncoder):
    """fairseq's Transformer encoder with heads that attend mostly to each word's parent.

    Source: Bugliarello and Okazaki, *Enhancing Machine Translation with Dependency-Aware
    Self-Attention* (ACL 2020); ``--arch parent_scaled_transformer`` and its presets. It has the
    parameters of fairseq's Transformer. With ``--parent-heads 0`` it is fairseq's Transformer.
    """

    layer_class = ParentEncoderLayer
    neutral_parameters = ("gate",)

    @classmethod
    def is_plain(cls, cfg: TransformerConfig) -> bool:
        """Return whether all heads are unscaled."""
        return not any(scaled_heads(cfg))

    def build_layer(self, cfg: TransformerConfig, index: int) -> nn.Module:
        """Build a layer with its number of scaled heads, or a layer with fairseq's attention."""
        count = scaled_heads(cfg)[index]
        if not count:
            return SyntaxEncoderLayer(cfg, return_fc=self.return_fc)
        layer = ParentEncoderLayer(cfg, return_fc=self.return_fc)
        layer.self_attn.scale_heads(count)
        return layer

    def structure(self, src_tokens: Tensor, parse: ParseBatch) -> ParentDistances:
        """Find the distances of all tokens from each token's parent."""
        padding_mask = self.padding(src_tokens)
        tree = TreePositions(parse["words"], parse["heads"], padding_mask)
        scales = parent_scales(parent_middles(tree), self.cfg.parent_std, self.cfg.parent_scaling)
        return ParentDistances(padding_mask, scales, masked_keys(padding_mask))
