"""Structural-position Transformer: positions from the dependency tree in fairseq's encoder."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_phrase.methods.common.causal_window import CausalWindow, PerLayer
from fairseq_phrase.methods.common.parse_batch import MakeStructure, ParseBatch
from fairseq_phrase.methods.encoder_method import register_encoder, size
from fairseq_phrase.methods.positions.long_positions import folded
from fairseq_phrase.methods.positions.path_positions import PathEncoding, token_paths
from fairseq_phrase.methods.positions.positioned_encoder import (
    PositionedEncoder,
    PositionOptions,
    build_relative_attention,
    check_positions,
    needs_tree,
    relative_clips,
)
from fairseq_phrase.methods.positions.relative_attention import RelativeAttention
from fairseq_phrase.methods.positions.relative_positions import RelativePositions
from fairseq_phrase.methods.syntax_encoder import SourceStructure, SyntaxEncoderLayer

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary

logger = logging.getLogger(__name__)


#: With ``--structural-absolute path``, the most steps of a path, and the number of different steps.
PATH_SIZES = 16, 4


def path_sizes(width: int) -> tuple[int, int]:
    """Return :data:`PATH_SIZES`, with fewer steps if the encoder is too narrow for them."""
    levels, branches = PATH_SIZES
    return min(levels, width // branches), branches


@dataclass(frozen=True)
class SentencePositions(SourceStructure):
    """The positions of a batch's tokens.

    Attributes:
        depths: of each token in its tree; None without trees. Shape: (batch, tokens), int64.
        relative: of all pairs; None without relative positions.
    """

    depths: Tensor | None = None
    relative: RelativePositions | None = None


class PositionedAttention(RelativeAttention):
    """Relative attention, called as :class:`SyntaxEncoderLayer` calls attention. Time-first."""

    def forward(  # type: ignore[override]
        self, states: Tensor, structure: SentencePositions, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attend once; for the arguments see the layer."""
        assert structure.relative is not None
        return super().forward(states, structure.relative, need_weights)


class StructuralEncoderLayer(SyntaxEncoderLayer):
    """fairseq's encoder layer, whose attention has relative positions if the options ask for them."""

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> nn.Module:
        """Build attention with relative positions, or fairseq's own."""
        if not relative_clips(cfg):
            return super().build_self_attention(embed_dim, cfg)
        return self.with_quant_noise(build_relative_attention(PositionedAttention, embed_dim, cfg))


# The paper's base and big sizes (section 5: 6+6 layers, d=512 or 1024, layer norms after the residual
# connections, as fairseq's default). The paper does not give dropout: Vaswani et al.'s values are used.
@register_encoder(
    "structural_transformer",
    options=PositionOptions,
    check=check_positions,
    parse_fields=lambda cfg: ["words", "heads"] if needs_tree(cfg) else [],
    presets={"base": size(512, 2048, 8), "big": size(1024, 4096, 16, dropout=0.3)},
    variants={
        "structural absolute": {"structural_absolute": True},
        "structural absolute and relative": {
            "structural_absolute": True,
            "structural_relative": True,
        },
        "structural, both relative": {
            "structural_absolute": True,
            "structural_relative": True,
            "sequential_relative": True,
        },
        "structural, both relative, keys only": {
            "structural_absolute": True,
            "structural_relative": True,
            "sequential_relative": True,
            "relative_keys_only": True,
        },
        "structural, both relative, neutral": {
            "structural_absolute": True,
            "structural_fusion": "add",
            "structural_relative": True,
            "sequential_relative": True,
            "neutral_start": True,
        },
        "structural, paths": {
            "structural_absolute": "path",
            "sequential_relative": True,
        },
        "structural, paths, neutral": {
            "structural_absolute": "path",
            "structural_fusion": "add",
            "neutral_start": True,
        },
    },
)
class StructuralEncoder(PositionedEncoder):
    """fairseq's Transformer encoder with absolute and relative positions in sentence and tree.

    Source: *Self-Attention with Structural Position Representations*; ``--arch
    structural_transformer`` and its presets. Without any option of positions it is fairseq's
    Transformer and loads fairseq's checkpoints.
    """

    layer_class = StructuralEncoderLayer

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self._warned = False
        if cfg.structural_absolute == "path":
            self.depth_encoding = PathEncoding(
                embed_tokens.embedding_dim,
                *path_sizes(cfg.encoder.embed_dim),
                fusion=None if self.embed_positions is None else cfg.structural_fusion,
                neutral=cfg.neutral_start,
            )

    @classmethod
    def is_plain(cls, cfg: TransformerConfig) -> bool:
        """Return whether all options of positions are off, except ``--no-sequential-absolute``."""
        return not cfg.structural_absolute and not relative_clips(cfg)

    @classmethod
    def causal_obstacle(cls, cfg: TransformerConfig, window: CausalWindow) -> str | None:
        """Return the obstacle: trees, which span the future. Positions in the sentence do not."""
        return "its trees span the future" if needs_tree(cfg) else None

    def causal_structure(self, structure: SentencePositions, window: CausalWindow) -> PerLayer:
        """Mask positions outside the window."""
        relative = structure.relative
        assert relative is not None

        def masked(visible: Tensor) -> SentencePositions:
            pairs = window.masked_pairs(visible, structure.padding_mask)
            return replace(structure, relative=replace(relative, masked=pairs))

        return window.per_layer(len(self.layers), structure.padding_mask, masked)

    @classmethod
    def batch_structure(
        cls, cfg: TransformerConfig, dictionary: Dictionary
    ) -> tuple[str, MakeStructure] | None:
        """Return the function that finds paths and counts those that are too long."""
        if cfg.structural_absolute != "path":
            return None
        limits = path_sizes(cfg.encoder.embed_dim)
        return "paths:{}:{}".format(*limits), partial(token_paths, *limits)

    def _paths(self, src_tokens: Tensor, parse: ParseBatch) -> Tensor | None:
        """Find the tokens' paths; one message names the limits that the first batch exceeds."""
        if (batch_function := self.batch_structure(self.cfg, self.dictionary)) is None:
            return None
        paths: Tensor
        paths, deep, wide = parse.made(batch_function[0]) or batch_function[1](src_tokens, parse)
        if (deep or wide) and not self._warned:
            self._warned = True
            levels, branches = path_sizes(self.cfg.encoder.embed_dim)
            logger.warning(
                "In a batch, %d words are deeper than %d, so that the upper steps of their paths are "
                "left out, and %d have %d or more earlier siblings. Later batches are not reported.",
                deep, levels, wide, branches,
            )  # fmt: skip
        return paths

    def structure(self, src_tokens: Tensor, parse: ParseBatch) -> SentencePositions:
        """Find the positions that the options ask for."""
        tree = self.find_tree(src_tokens, parse)
        padding_mask, relative = self.padding(src_tokens), None
        clips = relative_clips(self.cfg)
        if clips:
            between = self.relative_positions(tree, src_tokens.size(1), src_tokens.device)
            relative = folded(RelativePositions.from_kinds(between, clips, padding_mask))
        absolute = self._paths(src_tokens, parse)
        if absolute is None and tree is not None:
            absolute = tree.depths
        return SentencePositions(padding_mask, absolute, relative)

    def first_states(
        self,
        src_tokens: Tensor,
        structure: SentencePositions,
        token_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Embed the tokens with their positions in sentence and tree (eq. 7)."""
        states, embedding = self.forward_embedding(src_tokens, token_embeddings, structure.depths)
        return states.masked_fill(self.padding(src_tokens).unsqueeze(-1), 0.0), embedding
