"""Structural-position Transformer: positions from the dependency tree in fairseq's encoder."""

from dataclasses import dataclass
from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig

from fairseq_phrase.models.config import PRESETS, register_presets, size
from fairseq_phrase.models.structural_encoder import StructuralEncoder
from fairseq_phrase.models.structural_options import (
    StructuralPositionConfig,
    check_positions,
    needs_tree,
)
from fairseq_phrase.models.syntax_transformer import SyntaxTransformerModel


@dataclass
class StructuralTransformerConfig(StructuralPositionConfig):
    """Options of fairseq's Transformer and of positions (``spec/structural_positions.md``)."""


# The paper's base and big sizes (section 5: 6+6 layers, d=512 or 1024, layer norms after the residual
# connections, as is fairseq's default). The paper gives no dropout: those of Vaswani et al. stand here.
@register_presets(
    StructuralTransformerConfig,
    **{
        "structural_transformer" + (f"_{name}" if name else ""): sizes
        for name, sizes in PRESETS.items()
    },
    structural_transformer_base=size(512, 2048, 8),
    structural_transformer_big=size(1024, 4096, 16, dropout=0.3),
)
class StructuralTransformerModel(SyntaxTransformerModel):
    """fairseq's Transformer with structural and relative positions in its encoder.

    Source: *Self-Attention with Structural Position Representations*; ``--arch
    structural_transformer`` and its presets. Without any option of positions it is fairseq's
    Transformer, and loads its checkpoints.
    """

    @classmethod
    def needed_parses(cls, cfg: Any) -> list[str]:
        """Name the fields of a parse that the positions are made from.

        Raises:
            UserError: an option of positions makes no sense.
        """
        check_positions(cfg)
        return ["words", "heads"] if needs_tree(cfg) else []

    @classmethod
    def build_encoder(
        cls, cfg: TransformerConfig, src_dict: Any, embed_tokens: torch.nn.Embedding
    ) -> StructuralEncoder:
        """Build the encoder."""
        return StructuralEncoder(cfg, src_dict, embed_tokens)
