"""PhraseTransformer: attention over phrases in the encoder of fairseq's Transformer."""

from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig

from fairseq_phrase.errors import UserError
from fairseq_phrase.models.config import PRESETS, register_presets, size
from fairseq_phrase.models.phrase_encoder import PhraseEncoder
from fairseq_phrase.models.structural_options import (
    StructuralPositionConfig,
    check_positions,
    needs_tree,
    relative_clips,
)
from fairseq_phrase.models.structural_phrase_encoder import StructuralPhraseEncoder
from fairseq_phrase.models.syntax_transformer import SyntaxTransformerModel


@dataclass
class PhraseTransformerConfig(StructuralPositionConfig):
    """Options of fairseq's Transformer, of positions and of phrases (``spec/phrase_transformer.md``)."""

    phrase_source: ChoiceEnum(  # type: ignore[valid-type]
        ["ngram", "dependency", "constituency", "none"]
    ) = field(
        default="ngram",
        metadata={
            "help": "what phrases are: spans of adjacent units; the edges (and chains) of the "
            "dependency tree; the constituents of the constituency tree; or none, as a control"
        },
    )
    phrase_max_length: int = field(
        default=2,
        metadata={"help": "most units (words, for trees) in a phrase: the paper's k"},
    )
    phrase_unit: ChoiceEnum(["token", "word"]) = field(  # type: ignore[valid-type]
        default="token",
        metadata={
            "help": "what n-grams are made of: subwords, or whole words with all their subwords"
        },
    )
    phrase_activation: ChoiceEnum(  # type: ignore[valid-type]
        ["sigmoid", "identity", "tanh", "relu", "gelu"]
    ) = field(
        default="sigmoid",
        metadata={
            "help": "σ of eq. 5, on each head's output within phrases; identity is the paper's Linear "
            "PhraseTransformer"
        },
    )
    phrase_mask: ChoiceEnum(["subset", "hadamard", "all"]) = field(  # type: ignore[valid-type]
        default="subset",
        metadata={
            "help": "attention within phrases: others excluded, as the paper's text says; eq. 5 to the "
            "letter, where they leak in; or A = 1, as a control"
        },
    )
    phrase_init: ChoiceEnum(["zero", "mean"]) = field(  # type: ignore[valid-type]
        default="zero",
        metadata={"help": "hypernodes' first states: zero (algorithm 1) or their tokens' mean"},
    )


# The paper gives d=512, 8 heads of 64 and 6 layers for Multi30k (section 4.1); its optimizer, dropout and
# feed-forward size are not given: those of the base Transformer stand here.
@register_presets(
    PhraseTransformerConfig,
    **{"phrase_transformer" + (f"_{name}" if name else ""): size for name, size in PRESETS.items()},
    phrase_transformer_multi30k=size(512, 2048, 8),
)
class PhraseTransformerModel(SyntaxTransformerModel):
    """fairseq's Transformer with phrases in its encoder.

    Source: *Attention over Phrases*, section 2; ``--arch phrase_transformer`` and its presets.
    """

    @classmethod
    def needed_parses(cls, cfg: Any) -> list[str]:
        """Name the fields of a parse that phrases and positions are made from.

        Raises:
            UserError: an option of phrases or positions makes no sense.
        """
        check_positions(cfg)
        needed = cls._needed_for_phrases(cfg)
        return [*dict.fromkeys([*needed, "words", "heads"])] if needs_tree(cfg) else needed

    @classmethod
    def _needed_for_phrases(cls, cfg: Any) -> list[str]:
        """Name the fields of a parse that the phrases are made from.

        Raises:
            UserError: phrases of fewer than two units, or of more than any sentence has, were asked
                for.
        """
        if cfg.phrase_max_length < 2:
            raise UserError(
                f"--phrase-max-length {cfg.phrase_max_length}: a phrase has at least 2 units"
            )
        if cfg.phrase_max_length > cfg.max_source_positions:
            raise UserError(
                f"--phrase-max-length {cfg.phrase_max_length} is more than any sentence has: "
                f"--max-source-positions is {cfg.max_source_positions}"
            )
        if cfg.phrase_source == "dependency":
            return ["words", "heads"]
        if cfg.phrase_source == "constituency":
            return ["words", "spans"]
        if cfg.phrase_source == "ngram" and cfg.phrase_unit == "word":
            return ["words"]
        return []

    @classmethod
    def build_encoder(
        cls, cfg: TransformerConfig, src_dict: Any, embed_tokens: torch.nn.Embedding
    ) -> PhraseEncoder:
        """Build the encoder."""
        has_positions = needs_tree(cfg) or relative_clips(cfg) or cfg.no_sequential_absolute
        encoder = StructuralPhraseEncoder if has_positions else PhraseEncoder
        return encoder(cfg, src_dict, embed_tokens)
