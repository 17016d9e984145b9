"""The base of encoders with structural and relative positions: tree positions and embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import LearnedPositionalEmbedding
from torch import Tensor, nn

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.methods.common.tree_positions import (
    FUSIONS,
    RELATIONS,
    DepthEncoding,
    TreePositions,
)
from fairseq_phrase.methods.encoder_method import NeutralOptions, option
from fairseq_phrase.methods.positions.relative_attention import RelativeAttention
from fairseq_phrase.methods.positions.relative_positions import sequential_positions
from fairseq_phrase.methods.syntax_encoder import SyntaxEncoder

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary


@dataclass
class PositionOptions(NeutralOptions):
    """Options of structural and relative positions.

    All are off by default. A flag can switch a boolean option on but not off, so a preset must not
    switch one on.
    """

    # fmt: off
    no_sequential_absolute: bool = option(False, of_plain=True, help=
        "leave the absolute positions in the sentence out of the encoder (the decoder keeps its "
        "own)")
    sequential_relative: bool = option(False,
        "relative positions in the sentence in the encoder (Shaw et al. 2018)")
    structural_absolute: Any = option(False,
        "depths in the dependency tree in the encoder (eq. 5); with the value path, the path from the "
        "root (Shiv and Quirk 2019)", argparse_const=True)
    structural_relative: bool = option(False,
        "relative positions in the dependency tree in the encoder (eq. 6)")
    structural_fusion: ChoiceEnum(list(FUSIONS)) = option("tanh",  # type: ignore[valid-type]
        "how the two absolute positions are combined: tanh(W PE(seq) + W' PE(stru) + b) (eq. 7), "
        "or their sum", needs="structural_absolute")
    structural_relation: ChoiceEnum(list(RELATIONS)) = option("edge",  # type: ignore[valid-type]
        "relative position of two words in the tree: eq. 6 literally, where only the words of an "
        "edge have their difference of depths (edge); the difference of depths for all words "
        "above one another (path); or the length of the path between them, with the sign of their"
        " order (distance)", needs="structural_relative")
    relative_clip: int = option(16, needs="sequential_relative", help=
        "largest relative position in the sentence; larger ones are clipped")
    structural_clip: int = option(16, needs="structural_relative", help=
        "largest relative position in the tree; larger ones are clipped")
    relative_keys_only: bool = option(False, "add relative positions to keys only, not to values",
        needs="sequential_relative structural_relative")


def needs_tree(cfg: Any) -> bool:
    """Return whether the options ask for dependency trees."""
    return bool(cfg.structural_absolute or cfg.structural_relative)


def relative_clips(cfg: Any) -> dict[str, int]:
    """Return the kinds of relative positions that the options ask for, with their clips."""
    clips = {}
    if cfg.sequential_relative:
        clips["sequential"] = cfg.relative_clip
    if cfg.structural_relative:
        clips["structural"] = cfg.structural_clip
    return clips


def check_positions(cfg: Any) -> None:
    """Check the options of positions.

    Raises:
        UserError: a clip leaves only the relative position 0, or the options ask for an implementation
            of attention that does not support relative positions.
    """
    if (value := cfg.structural_absolute) not in (False, True, "path"):
        raise UserError(f"--structural-absolute {value}: expected path or no value (depths)")
    for kind, clip in (("relative", cfg.relative_clip), ("structural", cfg.structural_clip)):
        if clip < 1:
            raise UserError(f"--{kind}-clip {clip}: expected 1 or more")
    if relative_clips(cfg) and cfg.encoder.xformers_att_config:
        raise UserError(
            "--encoder-xformers-att-config does not support relative positions: leave it out"
        )


def build_relative_attention(
    kind: type[RelativeAttention], embed_dim: int, cfg: TransformerConfig
) -> RelativeAttention:
    """Build a layer's attention with relative positions, according to the options."""
    return kind(
        embed_dim=embed_dim, num_heads=cfg.encoder.attention_heads, clips=relative_clips(cfg),
        dropout=cfg.attention_dropout, use_values=not cfg.relative_keys_only,
        neutral=cfg.neutral_start,
    )  # fmt: skip


class PositionedEncoder(SyntaxEncoder):
    """An encoder that encodes the tokens' positions in their dependency trees."""

    neutral_parameters: ClassVar[tuple[str, ...]] = (
        "relative_keys", "relative_values", "depth_encoding",
    )  # fmt: skip

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        if cfg.no_sequential_absolute:
            self.embed_positions = None
        self.depth_encoding: DepthEncoding | None = None
        if cfg.structural_absolute:
            self.depth_encoding = DepthEncoding(
                embed_tokens.embedding_dim,
                cfg.max_source_positions,
                fusion=None if self.embed_positions is None else cfg.structural_fusion,
                neutral=cfg.neutral_start,
            )

    @classmethod
    def neutral_obstacle(cls, cfg: TransformerConfig) -> str | None:
        """Return the obstacle to a neutral start: positions without a factor that starts at 0."""
        if cfg.no_sequential_absolute:
            return "leave out --no-sequential-absolute, because fairseq's Transformer has them"
        if cfg.structural_absolute and cfg.structural_fusion == "tanh":
            return "--structural-fusion tanh (eq. 7) has no neutral start; give --structural-fusion add"
        if cfg.structural_absolute and cfg.no_token_positional_embeddings:
            return (
                "--structural-absolute has no neutral start with --no-token-positional-embeddings: leave "
                "one of them out"
            )
        return super().neutral_obstacle(cfg)

    def find_tree(self, src_tokens: Tensor, parse: ParseBatch) -> TreePositions | None:
        """Find the tokens' positions in their trees, if the options ask for them."""
        if not needs_tree(self.cfg):
            return None
        return TreePositions(parse["words"], parse["heads"], self.padding(src_tokens))

    def relative_positions(
        self, tree: TreePositions | None, num_tokens: int, device: torch.device
    ) -> dict[str, Tensor]:
        """Compute the relative positions that the options ask for.

        Returns:
            By kind, not clipped. Shape of each: (batch or 1, tokens, tokens), int64.
        """
        relative = {}
        if self.cfg.sequential_relative:
            relative["sequential"] = sequential_positions(num_tokens, device)
        if self.cfg.structural_relative and tree is not None:
            relative["structural"] = tree.relative(self.cfg.structural_relation)
        return relative

    def forward_embedding(
        self,
        src_tokens: Tensor,
        token_embedding: Tensor | None = None,
        depths: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return first states (eq. 7) and scaled embeddings. Shape of each: (batch, tokens, width).

        Args:
            depths: of each token in its tree, if its encoding is to be added.
                Shape: (batch, tokens).
        """
        if self.depth_encoding is None or depths is None:
            return cast(
                tuple[Tensor, Tensor], super().forward_embedding(src_tokens, token_embedding)
            )
        if token_embedding is None:
            token_embedding = self.embed_tokens(src_tokens)
        embedded = self.embed_scale * token_embedding
        positions = encodings = None
        if self.embed_positions is not None:
            encodings = self._position_encodings(src_tokens)
            # Tokens count from 0, whether padding is left or right; padding gets any position.
            positions = (src_tokens.ne(self.padding_idx).cumsum(1) - 1).clamp(min=0)
        states = embedded + self.depth_encoding(depths, depths.size(1), positions, encodings)
        if self.layernorm_embedding is not None:
            states = self.layernorm_embedding(states)
        states = self.dropout_module(states)
        if self.quant_noise is not None:
            states = self.quant_noise(states)
        return states, embedded

    def _position_encodings(self, src_tokens: Tensor) -> Tensor:
        """Return PE(seq) of all positions in the batch. Shape: (positions, width)."""
        positions: Any = self.embed_positions
        longest = min(src_tokens.size(1), positions.max_positions)
        is_learned = isinstance(positions, LearnedPositionalEmbedding)
        table = positions.weight if is_learned else positions.weights
        # fairseq counts positions from one past the padding index.
        first = self.padding_idx + 1
        if first + longest > len(table):
            # fairseq computes sinusoids for more positions when they are needed.
            filled = src_tokens.new_full((1, longest), first)
            return cast(Tensor, positions(filled)[0])
        return cast(Tensor, table[first : first + longest])
