"""Structural-position Transformer: positions from the dependency tree in fairseq's encoder."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import LearnedPositionalEmbedding
from torch import Tensor, nn

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.causal_window import CausalWindow, PerLayer
from fairseq_phrase.methods.common.parse_batch import MakeStructure, ParseBatch
from fairseq_phrase.methods.common.tree_positions import (
    FUSIONS,
    RELATIONS,
    DepthEncoding,
    TreePositions,
)
from fairseq_phrase.methods.encoder_method import NeutralOptions, option, register_encoder, size
from fairseq_phrase.methods.positions.long_positions import folded
from fairseq_phrase.methods.positions.path_positions import PathEncoding, token_paths
from fairseq_phrase.methods.positions.relative_attention import RelativeAttention
from fairseq_phrase.methods.positions.relative_positions import (
    RelativePositions,
    sequential_positions,
)
from fairseq_phrase.methods.syntax_encoder import (
    SourceStructure,
    SyntaxEncoder,
    SyntaxEncoderLayer,
)

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary

logger = logging.getLogger(__name__)


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
        attention = PositionedAttention(
            embed_dim=embed_dim, num_heads=cfg.encoder.attention_heads, clips=relative_clips(cfg),
            dropout=cfg.attention_dropout, use_values=not cfg.relative_keys_only,
            neutral=cfg.neutral_start,
        )  # fmt: skip
        return self.with_quant_noise(attention)


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
class StructuralEncoder(SyntaxEncoder):
    """fairseq's Transformer encoder with absolute and relative positions in sentence and tree.

    Source: *Self-Attention with Structural Position Representations*; ``--arch
    structural_transformer`` and its presets. Without any option of positions it is fairseq's
    Transformer and loads fairseq's checkpoints.
    """

    layer_class = StructuralEncoderLayer
    neutral_parameters: ClassVar[tuple[str, ...]] = (
        "relative_keys", "relative_values", "depth_encoding",
    )  # fmt: skip

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        if cfg.no_sequential_absolute:
            self.embed_positions = None
        self._warned = False
        fusion = None if self.embed_positions is None else cfg.structural_fusion
        self.depth_encoding: DepthEncoding | None = None
        if cfg.structural_absolute:
            self.depth_encoding = DepthEncoding(
                embed_tokens.embedding_dim,
                cfg.max_source_positions,
                fusion=fusion,
                neutral=cfg.neutral_start,
            )
        if (
            cfg.structural_absolute == "path"
        ):  # after depths', for the random numbers of kept results
            self.depth_encoding = PathEncoding(
                embed_tokens.embedding_dim,
                *path_sizes(cfg.encoder.embed_dim),
                fusion=fusion,
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
        padding_mask, tree, relative = self.padding(src_tokens), None, {}
        if needs_tree(self.cfg):
            tree = TreePositions(parse["words"], parse["heads"], padding_mask)
        if self.cfg.sequential_relative:
            relative["sequential"] = sequential_positions(src_tokens.size(1), src_tokens.device)
        if self.cfg.structural_relative and tree is not None:
            relative["structural"] = tree.relative(self.cfg.structural_relation)
        absolute = self._paths(src_tokens, parse)
        if absolute is None and tree is not None:
            absolute = tree.depths
        if not relative:
            return SentencePositions(padding_mask, absolute)
        clips = relative_clips(self.cfg)
        pairs = folded(RelativePositions.from_kinds(relative, clips, padding_mask))
        return SentencePositions(padding_mask, absolute, pairs)

    def first_states(
        self,
        src_tokens: Tensor,
        structure: SentencePositions,
        token_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Embed the tokens with their positions in sentence and tree (eq. 7)."""
        states, embedding = self.forward_embedding(src_tokens, token_embeddings, structure.depths)
        return states.masked_fill(self.padding(src_tokens).unsqueeze(-1), 0.0), embedding

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
