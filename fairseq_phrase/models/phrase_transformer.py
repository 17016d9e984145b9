"""PhraseTransformer: attention over phrases in the encoder of fairseq's Transformer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import LayerNorm
from torch import Tensor, nn
from torch.nn.functional import pad

from fairseq_phrase.errors import UserError
from fairseq_phrase.models.config import size
from fairseq_phrase.models.position_options import (
    PositionOptions,
    check_positions,
    needs_tree,
    relative_clips,
)
from fairseq_phrase.models.positioned_encoder import PositionedEncoder, build_relative_attention
from fairseq_phrase.models.registry import register_encoder
from fairseq_phrase.models.syntax_encoder import SyntaxEncoderLayer
from fairseq_phrase.modules.parse_batch import ParseBatch
from fairseq_phrase.modules.phrases.first_states import FIRST_STATES, with_phrases
from fairseq_phrase.modules.phrases.phrase_attention import ACTIVATIONS, MASKS, PhraseAttention
from fairseq_phrase.modules.phrases.phrase_batch import PhraseBatch
from fairseq_phrase.modules.phrases.positioned_phrases import PositionedPhrases
from fairseq_phrase.modules.phrases.sources import SourceTokens, find_phrases, load_source
from fairseq_phrase.modules.positions.relative_attention import RelativeAttention


@dataclass
class PhraseOptions(PositionOptions):
    """Options of phrases, and of positions."""

    phrase_source: str = field(
        default="ngram",
        metadata={
            "help": "what phrases are: spans of adjacent units (ngram); the edges and chains of the "
            "dependency tree (dependency); the constituents of the constituency tree (constituency); "
            "none, as a control; or a source of an installed package"
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
    phrase_activation: ChoiceEnum(list(ACTIVATIONS)) = field(  # type: ignore[valid-type]
        default="sigmoid",
        metadata={
            "help": "σ of eq. 5, on each head's output within phrases; identity is the paper's Linear "
            "PhraseTransformer"
        },
    )
    phrase_mask: ChoiceEnum(list(MASKS)) = field(  # type: ignore[valid-type]
        default="subset",
        metadata={
            "help": "attention within phrases: others excluded, as the paper's text says; eq. 5 to the "
            "letter, where they leak in; or A = 1, as a control"
        },
    )
    phrase_init: ChoiceEnum(list(FIRST_STATES)) = field(  # type: ignore[valid-type]
        default="zero",
        metadata={"help": "hypernodes' first states: zero (algorithm 1) or their tokens' mean"},
    )


class NodeAttention(RelativeAttention):
    """Attention over all nodes of a batch with relative positions. Batch-first."""

    def forward(  # type: ignore[override]
        self, states: Tensor, phrases: PositionedPhrases, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attend once, as :class:`PhraseAttention` does.

        Args:
            states: node states. Shape: ``(batch, nodes, width)``.
            phrases: the nodes, with relative positions.
            need_weights: also return the weights.
        """
        assert phrases.relative is not None
        attended, weights = super().forward(states.transpose(0, 1), phrases.relative, need_weights)
        return attended.transpose(0, 1), weights


class PhraseEncoderLayer(SyntaxEncoderLayer):
    """fairseq's encoder layer with attention within phrases between its two blocks. Batch-first.

    *Decision*: residual connections and layer norms are around all three blocks. Algorithm 1 shows
    none, and six such layers do not train without them. *Decision*: eq. 3 and eq. 7 write the same
    W^O; the two attentions have separate output projections.

    Args:
        cfg: fairseq's options with those of phrases.
        return_fc: see :class:`SyntaxEncoderLayer`.
    """

    time_first = False

    def __init__(self, cfg: TransformerConfig, return_fc: bool = False):
        super().__init__(cfg, return_fc)
        self.phrase_attn = self._attention(cfg, cfg.phrase_activation, cfg.phrase_mask)
        self.phrase_attn_layer_norm = LayerNorm(self.embed_dim, export=cfg.export)

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> nn.Module:
        """Build phase 1, ordinary attention over all nodes (eq. 2-3)."""
        if relative_clips(cfg):
            return self.with_quant_noise(build_relative_attention(NodeAttention, embed_dim, cfg))
        return self._attention(cfg, activation="identity", mask="all")

    def _attention(self, cfg: TransformerConfig, activation: str, mask: str) -> nn.Module:
        return self.with_quant_noise(
            PhraseAttention(
                embed_dim=self.embed_dim,
                num_heads=cfg.encoder.attention_heads,
                dropout=cfg.attention_dropout,
                activation=activation,
                mask=mask,
            )
        )

    def attention_blocks(self) -> Sequence[tuple[str, nn.Module, nn.Module]]:
        """Attend over all nodes (phase 1, eq. 2), then within phrases (phase 2, eq. 5)."""
        return [
            *super().attention_blocks(),
            ("within phrases", self.phrase_attn, self.phrase_attn_layer_norm),
        ]


def _parse_fields(cfg: Any) -> Sequence[str]:
    check_positions(cfg)
    if cfg.phrase_max_length < 2:
        raise UserError(
            f"--phrase-max-length {cfg.phrase_max_length}: a phrase has at least 2 units"
        )
    if cfg.phrase_max_length > cfg.max_source_positions:
        raise UserError(
            f"--phrase-max-length {cfg.phrase_max_length} is more than any sentence has: "
            f"--max-source-positions is {cfg.max_source_positions}"
        )
    try:
        needed = load_source(cfg.phrase_source).fields(cfg)
    except ValueError as error:
        raise UserError(f"--phrase-source: {error}") from None
    return [*dict.fromkeys([*needed, *(["words", "heads"] if needs_tree(cfg) else [])])]


# The paper gives d=512, 8 heads of 64 and 6 layers for Multi30k (section 4.1); its optimizer, dropout and
# feed-forward size are not given: those of the base Transformer are taken.
@register_encoder(
    "phrase_transformer",
    options=PhraseOptions,
    parse_fields=_parse_fields,
    presets={"multi30k": size(512, 2048, 8)},
    rows={
        "phrase, k = 2": {"phrase_max_length": 2},
        "phrase, k = 3": {"phrase_max_length": 3},
        "phrase, dependency chains, k = 3": {
            "phrase_source": "dependency",
            "phrase_max_length": 3,
        },
        "phrase, constituents": {"phrase_source": "constituency", "phrase_max_length": 4},
        "phrase, structural positions": {
            "structural_absolute": True,
            "structural_relative": True,
            "sequential_relative": True,
        },
    },
)
class PhraseEncoder(PositionedEncoder):
    """fairseq's Transformer encoder over tokens and phrases (algorithm 1).

    Source: *Attention over Phrases*, section 2; ``--arch phrase_transformer`` and its presets.

    With structural and relative positions it is the combination that no paper has. *Decisions*: a
    phrase has the position of its highest word (see
    :mod:`fairseq_phrase.modules.phrases.positioned_phrases`). The encoding of its depth is added to its
    first state; it has no absolute position in the sentence. Relative positions take part in the
    attention over all nodes (phase 1); the attention within phrases is as without them.

    Args:
        cfg: fairseq's options with those of phrases and of positions.
        dictionary: the source dictionary.
        embed_tokens: the source embeddings.
    """

    layer_class = PhraseEncoderLayer

    def __init__(self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Embedding):
        super().__init__(cfg, dictionary, embed_tokens)
        self._source = load_source(cfg.phrase_source)
        self._has_positions = needs_tree(cfg) or bool(relative_clips(cfg))

    def structure(self, src_tokens: Tensor, parse: ParseBatch) -> PhraseBatch:
        """Find the phrases of a batch and, if the options ask for them, their positions.

        Args:
            src_tokens: source, padded on either side. Shape: ``(batch, tokens)``.
            parse: the batch's parse.

        Raises:
            ValueError: phrases or positions need a parse that the batch does not carry.
        """
        padding_mask = self.padding(src_tokens)
        is_unit = ~padding_mask
        for special in (self.dictionary.eos(), self.dictionary.bos()):
            is_unit &= src_tokens.ne(special)
        tokens = SourceTokens(padding_mask, is_unit)
        phrases = find_phrases(self._source, tokens, parse, self.cfg)
        if not self._has_positions:
            return phrases
        tree = self.find_tree(src_tokens, parse)
        depths = torch.zeros_like(src_tokens) if tree is None else tree.depths
        relative = self.relative_positions(tree, src_tokens.size(1), src_tokens.device)
        return PositionedPhrases(phrases, depths, relative, relative_clips(self.cfg))

    def first_states(
        self, src_tokens: Tensor, structure: PhraseBatch, token_embeddings: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Embed tokens with their positions, and add the phrases' first states."""
        num_tokens = structure.num_tokens
        depths = None
        if isinstance(structure, PositionedPhrases):
            depths = structure.depths[:, :num_tokens]
        states, embedding = self.forward_embedding(src_tokens, token_embeddings, depths)
        states = states.masked_fill(self.padding(src_tokens).unsqueeze(-1), 0.0)
        nodes = with_phrases(states, structure, self.cfg.phrase_init)
        if (
            isinstance(structure, PositionedPhrases)
            and self.depth_encoding is not None
            and structure.num_nodes > num_tokens
        ):
            is_padding = structure.padding_mask[:, num_tokens:, None]
            encoded = self.depth_encoding(structure.depths[:, num_tokens:], num_tokens)
            nodes = nodes + pad(encoded.masked_fill(is_padding, 0.0), (0, 0, num_tokens, 0))
        return nodes, embedding

    def decoder_nodes(self, src_tokens: Tensor, structure: PhraseBatch) -> int:
        """Let the decoder attend to the tokens: to it nothing has changed."""
        return structure.num_tokens

    def node_members(
        self, src_tokens: Tensor, structure: PhraseBatch
    ) -> list[list[tuple[int, ...]]]:
        """List the tokens of each token and phrase."""
        return structure.members()
