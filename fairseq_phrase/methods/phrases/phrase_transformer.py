"""PhraseTransformer: attention over phrases in the encoder of fairseq's Transformer."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import LayerNorm
from torch import Tensor, nn
from torch.nn.functional import pad

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.causal_window import CausalWindow
from fairseq_phrase.methods.common.parse_batch import MakeStructure, ParseBatch
from fairseq_phrase.methods.config import kept_layers, trained_layers
from fairseq_phrase.methods.encoder_method import NeutralOptions, option, register_encoder, size
from fairseq_phrase.methods.phrases.phrase_attention import (
    ACTIVATIONS,
    GATES,
    MASKS,
    PhraseAttention,
)
from fairseq_phrase.methods.phrases.phrase_batch import PhraseBatch
from fairseq_phrase.methods.phrases.phrase_nodes import (
    FIRST_STATES,
    CausalPhrases,
    EndsOfPhrases,
    PooledPhrases,
    with_phrases,
)
from fairseq_phrase.methods.phrases.phrase_sources import (
    SourceTokens,
    find_members,
    find_phrases,
    load_source,
)
from fairseq_phrase.methods.syntax_encoder import AttentionBlock, SyntaxEncoder, SyntaxEncoderLayer

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary

RESIDUALS = ("both", "each")


@dataclass
class PhraseOptions(NeutralOptions):
    """Options of phrases."""

    # fmt: off
    phrase_source: str = option("ngram",
        "source of phrases: spans of adjacent units (ngram); the edges and chains of the "
        "dependency tree (dependency); the constituents of the constituency tree (constituency), "
        "or only those that contain no others, which are what a chunker finds (chunk); no "
        "phrases, as a control (none); or a source of an installed package")
    phrase_max_length: int = option(2,
        "largest number of units (words, for trees) in a phrase: the paper's k")
    phrase_unit: ChoiceEnum(["token", "word"]) = option("token",  # type: ignore[valid-type]
        "unit of n-grams: subwords, or whole words with all their subwords")
    phrase_activation: ChoiceEnum(list(ACTIVATIONS)) = option("sigmoid",  # type: ignore[valid-type]
        "σ of eq. 5, on each head's output within phrases; identity is the paper's Linear "
        "PhraseTransformer")
    phrase_mask: ChoiceEnum(list(MASKS)) = option("subset",  # type: ignore[valid-type]
        "mask of attention within phrases: other nodes are excluded, as in the paper's text "
        "(subset); eq. 5 literally, where other nodes get some weight (hadamard); or A = 1, as a "
        "control (all)")
    phrase_init: ChoiceEnum(list(FIRST_STATES)) = option("zero",  # type: ignore[valid-type]
        "first states of phrases: zero (algorithm 1); the mean of their tokens (mean); a learned "
        "weighted mean of their tokens (attention); a learned projection of the first and the "
        "last token (ends)")
    phrase_residual: ChoiceEnum(list(RESIDUALS)) = option("both",  # type: ignore[valid-type]
        "one residual connection and layer norm around both phases (both), or one around each (each), "
        "as in checkpoints of before this option", before="each")
    phrase_gate: ChoiceEnum(list(GATES)) = option("none",  # type: ignore[valid-type]
        "how attention within phrases starts: as in the paper (none); with an output projection "
        "of zeros (zero); or multiplied by a learned number that starts at 0 (scalar)")
    phrase_relative_clip: int = option(0,
        "largest relative position of a part in its phrase; larger ones are clipped. Each "
        "position has a learned bias in each head of the attention within phrases; 0: no biases")
    phrase_layers: str = option("all",
        "the encoder layers with phrases, from 1: 'all', 2-4, or 2 for the first two; the other "
        "layers have tokens only")
    phrase_to_decoder: bool = option(False, "the decoder attends to phrases as it does to tokens")


def phrase_layers(cfg: Any) -> range:
    """Read ``--phrase-layers``: the layers with phrases, from 0.

    Raises:
        UserError: the option is not a range of the encoder's layers.
    """
    layers = trained_layers(cfg)
    text = str(cfg.phrase_layers).strip()
    if text == "all":
        return range(layers)
    first, dash, last = text.partition("-")
    try:
        layer_range = range(int(first) - 1, int(last)) if dash else range(int(first))
    except ValueError:
        layer_range = range(0)
    if not layer_range or layer_range.start < 0 or layer_range.stop > layers:
        raise UserError(
            f"--phrase-layers {cfg.phrase_layers}: expected 'all', a number of layers from the first, or "
            f"a range such as 1-2, within the encoder's {layers} layers"
        )
    return layer_range


def check(cfg: Any) -> None:
    """Check the options of phrases.

    Raises:
        UserError: the options contradict each other.
    """
    flag = f"--phrase-max-length {cfg.phrase_max_length}"
    if cfg.phrase_max_length < 2:
        raise UserError(f"{flag}: a phrase has at least 2 units")
    if (most := cfg.max_source_positions) < cfg.phrase_max_length:
        raise UserError(f"{flag} is more than any sentence has: --max-source-positions is {most}")
    if cfg.phrase_relative_clip < 0:
        raise UserError(f"--phrase-relative-clip {cfg.phrase_relative_clip}: expected 0 or more")
    if cfg.phrase_relative_clip and cfg.phrase_mask != "subset":
        raise UserError(
            "--phrase-relative-clip needs --phrase-mask subset: of two nodes, one must contain the other "
            "to have a relative position"
        )
    layers = phrase_layers(cfg)
    has_last = set(kept_layers(cfg)[-1:]) <= set(layers)
    if cfg.phrase_to_decoder and (not has_last or (layers.start and cfg.encoder.layerdrop)):
        raise UserError(
            f"--phrase-to-decoder needs phrases in the last layer, but --phrase-layers is "
            f"{cfg.phrase_layers}"
        )


def parse_fields(cfg: Any) -> list[str]:
    """Return the parse fields of the phrases; a source that cannot be made is refused."""
    try:
        return [*load_source(cfg.phrase_source).fields(cfg)]
    except ValueError as error:
        raise UserError(f"--phrase-source: {error}") from None


def _key(cfg: Any) -> str:
    return f"phrases:{cfg.phrase_source}:{cfg.phrase_unit}:{cfg.phrase_max_length}"


class NodeEncoderLayer(SyntaxEncoderLayer):
    """fairseq's encoder layer over nodes, as phase 1 of a layer with phrases. Batch-first."""

    time_first = False
    has_phrases = False

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> nn.Module:
        """Build phase 1, ordinary attention over all nodes (eq. 2-3)."""
        neutral = self.has_phrases and cfg.neutral_start
        return self._attention(cfg, activation="identity", mask="all", neutral=neutral)

    def _attention(self, cfg: TransformerConfig, **options: Any) -> nn.Module:
        return self.with_quant_noise(
            PhraseAttention(
                embed_dim=self.embed_dim,
                num_heads=cfg.encoder.attention_heads,
                dropout=cfg.attention_dropout,
                **options,
            )
        )


class PhraseEncoderLayer(NodeEncoderLayer):
    """fairseq's encoder layer whose self-attention has a second phase, within phrases. Batch-first.

    *Decision*: with ``--phrase-residual both`` there is one residual connection and one layer norm
    around both phases, x + MH'(MH(x), A), because algorithm 1 hands the result of line 4 to line 5 as it
    is. With ``each`` there is one around each phase. *Decision*: the two attentions have separate output
    projections, although eq. 3 and eq. 7 both write W^O.
    """

    has_phrases = True

    def __init__(self, cfg: TransformerConfig, return_fc: bool = False) -> None:
        super().__init__(cfg, return_fc)
        self.residual = str(cfg.phrase_residual)
        gate = "scalar" if cfg.neutral_start and cfg.phrase_gate == "none" else cfg.phrase_gate
        self.phrase_attn = self._attention(
            cfg,
            activation=cfg.phrase_activation,
            mask=cfg.phrase_mask,
            gate=gate,
            relative_clip=cfg.phrase_relative_clip,
        )
        if self.residual == "both":
            return
        self.phrase_attn_layer_norm: nn.Module = LayerNorm(self.embed_dim, export=cfg.export)
        if cfg.neutral_start and not self.normalize_before:
            # A layer norm of the sum would change the states of phase 1.
            self.phrase_attn_layer_norm = nn.Identity()

    def attention_blocks(self) -> Sequence[AttentionBlock]:
        """Attend over all nodes (phase 1, eq. 2), then within phrases (phase 2, eq. 5)."""
        first, second = {"all nodes": self.self_attn}, {"within phrases": self.phrase_attn}
        if self.residual == "both":
            return [({**first, **second}, self.self_attn_layer_norm)]
        return [(first, self.self_attn_layer_norm), (second, self.phrase_attn_layer_norm)]


#: Ours. In the paper's form all phrases start as one constant.
TUNED = {"phrase_init": "mean", "phrase_gate": "zero"}
VARIANTS: dict[str, dict[str, Any]] = {
    "phrase, k = 2": {"phrase_max_length": 2},
    "phrase, k = 2, two residuals": {"phrase_residual": "each"},
    "phrase, k = 3": {"phrase_max_length": 3},
    "phrase, dependency chains, k = 3": {"phrase_source": "dependency", "phrase_max_length": 3},
    "phrase, constituents": {"phrase_source": "constituency", "phrase_max_length": 4},
    "phrase, chunks": {"phrase_source": "chunk"},
    "phrase, tuned": TUNED,
    "phrase, tuned, first layer": {**TUNED, "phrase_layers": "1"},
    "phrase, tuned, last layer": {**TUNED, "phrase_layers": "2-2"},
    "phrase, neutral": {
        "phrase_source": "constituency", "phrase_init": "ends", "phrase_relative_clip": 1,
        "phrase_layers": "2-2", "phrase_residual": "each", "neutral_start": True},
    "phrase, dependency, neutral": {
        "phrase_source": "dependency", "phrase_gate": "zero", "phrase_residual": "each",
        "neutral_start": True},
    "phrase, attention pooled, scalar gate": {"phrase_init": "attention", "phrase_gate": "scalar"},
    "phrase, ends, parts, to decoder": {
        "phrase_max_length": 3, "phrase_init": "ends", "phrase_relative_clip": 2,
        "phrase_to_decoder": True},
}  # fmt: skip


# The paper gives d=512, 8 heads of 64 and 6 layers for Multi30k (section 4.1). It does not give its
# optimizer, dropout and feed-forward size, so the base Transformer's values are used.
@register_encoder(
    "phrase_transformer",
    options=PhraseOptions,
    check=check,
    parse_fields=parse_fields,
    presets={"multi30k": size(512, 2048, 8), "tuned": TUNED},
    variants=VARIANTS,
)
class PhraseEncoder(SyntaxEncoder):
    """fairseq's Transformer encoder over tokens and phrases (algorithm 1).

    Source: *Attention over Phrases*, section 2; ``--arch phrase_transformer`` and its presets.
    """

    layer_class: ClassVar[type[NodeEncoderLayer]] = PhraseEncoderLayer
    token_layer_class: ClassVar[type[NodeEncoderLayer]] = NodeEncoderLayer
    neutral_parameters = (
        "node_gate", "phrase_attn", "phrase_attn_layer_norm", "first_phrase_states",
    )  # fmt: skip

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self._source = load_source(cfg.phrase_source)
        self._layers_with_phrases = phrase_layers(cfg)
        self.first_phrase_states: nn.Module | None = None
        if cfg.phrase_init == "attention":
            heads = cfg.encoder.attention_heads
            self.first_phrase_states = PooledPhrases(embed_tokens.embedding_dim, heads)
        elif cfg.phrase_init == "ends":
            self.first_phrase_states = EndsOfPhrases(embed_tokens.embedding_dim)

    @classmethod
    def neutral_obstacle(cls, cfg: TransformerConfig) -> str | None:
        """Return the obstacle to a neutral start."""
        if cfg.phrase_to_decoder:
            return "leave out --phrase-to-decoder, which has no neutral start"
        if cfg.phrase_residual == "both":
            return "give --phrase-residual each, because both phases have one residual connection"
        return super().neutral_obstacle(cfg)

    def build_layer(self, cfg: TransformerConfig, index: int) -> nn.Module:
        """Build a layer with phrases, or a layer over tokens only."""
        kind = self.layer_class if index in phrase_layers(cfg) else self.token_layer_class
        return kind(cfg, return_fc=self.return_fc)

    def structure(self, src_tokens: Tensor, parse: ParseBatch) -> PhraseBatch:
        """Find the phrases of a batch."""
        padding_mask = self.padding(src_tokens)
        if members := parse.made(_key(self.cfg)):
            return PhraseBatch(padding_mask, *members)
        tokens = SourceTokens.of(src_tokens, padding_mask, self.dictionary)
        return find_phrases(self._source, tokens, parse, self.cfg)

    @classmethod
    def batch_structure(
        cls, cfg: TransformerConfig, dictionary: Dictionary
    ) -> tuple[str, MakeStructure] | None:
        """Return the function that finds the phrases; None for n-grams of tokens, which need no parse."""
        if cfg.phrase_source == "ngram" and cfg.phrase_unit == "token":
            return None
        phrase_options = Namespace(
            phrase_max_length=cfg.phrase_max_length, phrase_unit=str(cfg.phrase_unit)
        )
        return _key(cfg), partial(find_members, cfg.phrase_source, phrase_options, dictionary)

    @classmethod
    def causal_obstacle(cls, cfg: TransformerConfig, window: CausalWindow) -> str | None:
        """Return why phrases cannot be masked; only n-grams of tokens do not depend on the future.

        The end of a word, for example, is known only from the subword after it.
        """
        if cfg.phrase_source not in ("ngram", "none") or cfg.phrase_unit != "token":
            return (
                f"--phrase-source {cfg.phrase_source} of {cfg.phrase_unit}s depends on later tokens; "
                "n-grams of tokens do not"
            )
        if cfg.phrase_mask == "hadamard":
            return "--phrase-mask hadamard gives every node some weight"
        if window.context:
            return "a phrase sees more than a window (--context) allows"
        return None

    def causal_structure(self, structure: PhraseBatch, window: CausalWindow) -> CausalPhrases:
        """Hide phrases that end in the future."""
        return CausalPhrases(structure, window)

    def first_states(
        self, src_tokens: Tensor, structure: PhraseBatch, token_embeddings: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Embed tokens, and add the phrases' first states."""
        states, embedding = super().first_states(src_tokens, structure, token_embeddings)
        if self._layers_with_phrases.start == 0:
            states = self._add_phrases(states, structure)
        return states, embedding

    def _add_phrases(self, states: Tensor, structure: PhraseBatch) -> Tensor:
        """Append the phrases' first states to the tokens'. Shape: (batch, nodes, width)."""
        return with_phrases(states, structure, self.first_phrase_states or self.cfg.phrase_init)

    def before_layer(
        self, index: int, states: Tensor, structure: PhraseBatch
    ) -> tuple[Tensor, PhraseBatch]:
        """Add phrases before the first layer with phrases; remove them after the last such layer."""
        num_tokens = structure.num_tokens
        if index not in self._layers_with_phrases:
            return states[:, :num_tokens], structure.tokens
        # The first layer with phrases that --encoder-layerdrop does not omit.
        if states.size(1) < structure.num_nodes:
            states = self._add_phrases(states, structure)
        return states, structure

    def attention_maps(
        self, src_tokens: Tensor, src_lengths: Tensor | None = None, **parse: Tensor
    ) -> tuple[Any, list[dict[str, Tensor]]]:
        """Compute the attention weights; in layers without phrases, a phrase attends only to itself."""
        structure, maps = super().attention_maps(src_tokens, src_lengths, **parse)
        extra = structure.num_nodes - structure.num_tokens
        itself = torch.eye(structure.num_nodes, device=structure.device)
        for index, layer in zip(kept_layers(self.cfg), maps, strict=False):
            if index in self._layers_with_phrases:
                continue
            for name in ("all nodes", "within phrases"):
                weights = layer.get(name)
                if weights is None:
                    layer[name] = itself.expand_as(layer["all nodes"])
                    continue
                # This layer has tokens only. Each phrase gets the weight 1 to itself and 0 elsewhere.
                weights = pad(weights, (0, extra, 0, extra))
                weights.diagonal(dim1=2, dim2=3)[..., structure.num_tokens :] = 1.0
                layer[name] = weights
        return structure, maps

    def decoder_nodes(self, src_tokens: Tensor, structure: PhraseBatch) -> int | None:
        """Let the decoder attend to the tokens, as in the paper, or to tokens and phrases."""
        return None if self.cfg.phrase_to_decoder else structure.num_tokens

    def extra_outputs(self, structure: PhraseBatch) -> dict[str, list[Any]]:
        """Return the padding of tokens and phrases, if the decoder attends to both."""
        to_both = self.cfg.phrase_to_decoder
        return {"encoder_padding_mask": [structure.padding_mask]} if to_both else {}

    def node_members(
        self, src_tokens: Tensor, structure: PhraseBatch
    ) -> list[list[tuple[int, ...]]]:
        """List the tokens of each token and phrase."""
        return structure.members()
