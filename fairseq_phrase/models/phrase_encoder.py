"""The PhraseTransformer's encoder: tokens and phrases as nodes, two phases of attention per layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase
from fairseq.modules import LayerNorm
from fairseq.modules.quant_noise import quant_noise
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import Tensor, nn

from fairseq_phrase.models.layers import wrap_layer
from fairseq_phrase.modules.phrases.phrase_attention import PhraseAttention
from fairseq_phrase.modules.phrases.phrase_batch import PhraseBatch


class AttentionMaps(NamedTuple):
    """One layer's attention weights, before dropout.

    Attributes:
        all_nodes: phase 1, over all node pairs (eq. 2). Shape: ``(batch, heads, nodes, nodes)``.
        within_phrases: phase 2 (eq. 5). Shape: ``(batch, heads, nodes, nodes)``.
    """

    all_nodes: Tensor
    within_phrases: Tensor


class PhraseEncoderLayer(TransformerEncoderLayerBase):
    """fairseq's encoder layer with the attention within phrases between its two blocks. Batch-first.

    Residual connections and layer norms stand around all three (*decision* in
    ``spec/phrase_transformer.md``), before or after them as ``--encoder-normalize-before`` says.

    Args:
        cfg: fairseq's options with those of phrases.
    """

    def __init__(self, cfg: TransformerConfig):
        super().__init__(cfg)
        self.phrase_attn = self._attention(cfg, cfg.phrase_activation, cfg.phrase_mask)
        self.phrase_attn_layer_norm = LayerNorm(self.embed_dim, export=cfg.export)

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> PhraseAttention:
        """Build phase 1, ordinary attention over all nodes (eq. 2-3)."""
        return self._attention(cfg, activation="identity", mask="all")

    def _attention(self, cfg: TransformerConfig, activation: str, mask: str) -> PhraseAttention:
        attention = PhraseAttention(
            embed_dim=self.embed_dim,
            num_heads=cfg.encoder.attention_heads,
            dropout=cfg.attention_dropout,
            activation=activation,
            mask=mask,
        )
        for projection in attention.children():
            quant_noise(projection, self.quant_noise, self.quant_noise_block_size)
        return attention

    def forward(  # type: ignore[override]
        self,
        states: Tensor,
        phrases: PhraseBatch,
        need_weights: bool = False,
        tokens_only: bool = False,
    ) -> tuple[Tensor, AttentionMaps | None]:
        """Update all nodes' states.

        Args:
            states: node states. Shape: ``(batch, nodes, width)``.
            phrases: the nodes.
            need_weights: also return the attention weights.
            tokens_only: return the tokens' states alone, which is all that a last layer's are used
                for, and spare the phrases the feed-forward block.

        Returns:
            The new states, and the weights if asked for.
        """
        maps: list[Any] = []

        def attend(attention: nn.Module) -> Callable[[Tensor], Tensor]:
            def block(inputs: Tensor) -> Tensor:
                outputs, weights = attention(inputs, phrases, need_weights)
                maps.append(weights)
                return outputs

            return block

        states = self._residual_block(states, self.self_attn_layer_norm, attend(self.self_attn))
        states = self._residual_block(states, self.phrase_attn_layer_norm, attend(self.phrase_attn))
        if tokens_only:
            states = states[:, : phrases.num_tokens]
        states = self._residual_block(states, self.final_layer_norm, self._feed_forward)
        return states, AttentionMaps(*maps) if need_weights else None

    def _residual_block(
        self, states: Tensor, layer_norm: nn.Module, block: Callable[[Tensor], Tensor]
    ) -> Tensor:
        residual = states
        if self.normalize_before:
            states = layer_norm(states)
        states = self.residual_connection(self.dropout_module(block(states)), residual)
        return states if self.normalize_before else layer_norm(states)

    def _feed_forward(self, states: Tensor) -> Tensor:
        return self.fc2(self.activation_dropout_module(self.activation_fn(self.fc1(states))))


class PhraseEncoder(TransformerEncoderBase):
    """fairseq's Transformer encoder over tokens and phrases (algorithm 1).

    Args:
        cfg: fairseq's options with those of phrases.
        dictionary: the source dictionary.
        embed_tokens: the source embeddings.
    """

    layer_class = PhraseEncoderLayer

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """Build a layer, wrapped as fairseq wraps its own."""
        return wrap_layer(self.layer_class(cfg), cfg)

    def phrases(
        self,
        src_tokens: Tensor,
        src_words: Tensor | None = None,
        src_heads: Tensor | None = None,
        src_spans: Tensor | None = None,
    ) -> PhraseBatch:
        """Find the phrases of a batch.

        Args:
            src_tokens: source, padded on either side. Shape: ``(batch, tokens)``.
            src_words: the word of each token, -1 where there is none. Shape: ``(batch, tokens)``.
            src_heads: the head of each word, -1 at padding. Shape: ``(batch, words)``.
            src_spans: first word, one past the last and label of each constituent, -1 at padding.
                Shape: ``(batch, constituents, 3)``.

        Raises:
            ValueError: the phrases need words, heads or constituents and there are none.
        """
        padding_mask = src_tokens.eq(self.padding_idx)
        source, longest = self.cfg.phrase_source, self.cfg.phrase_max_length
        if source == "none":
            return PhraseBatch.without_phrases(padding_mask)
        if source == "ngram" and self.cfg.phrase_unit == "token":
            is_unit = ~padding_mask
            for special in (self.dictionary.eos(), self.dictionary.bos()):
                is_unit &= src_tokens.ne(special)
            ends_with_eos = not bool(is_unit[:, -1].any())
            return PhraseBatch.token_ngrams(
                is_unit, padding_mask, longest, ends_with_eos=ends_with_eos
            )
        if src_words is not None and source == "ngram":
            return PhraseBatch.word_ngrams(src_words, padding_mask, longest)
        tree = src_spans if source == "constituency" else src_heads
        if src_words is None or tree is None:
            raise ValueError(
                "the batch carries no parse: --task syntax_translation adds it, or pass src_words "
                "and src_heads (src_spans for constituents)"
            )
        if source == "constituency":
            return PhraseBatch.constituency(src_words, tree, padding_mask, longest)
        return PhraseBatch.dependency(src_words, tree, padding_mask, longest)

    def forward(  # type: ignore[override]
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
        src_words: Tensor | None = None,
        src_heads: Tensor | None = None,
        src_spans: Tensor | None = None,
    ) -> dict[str, list[Tensor]]:
        """Encode a batch.

        Args:
            src_tokens: source, padded on either side. Shape: ``(batch, tokens)``.
            src_lengths: not used, as in fairseq.
            return_all_hiddens: also return every layer's token states.
            token_embeddings: embeddings to use instead of the table's.
            src_words: the word of each token, -1 where there is none. Shape: ``(batch, tokens)``.
            src_heads: the head of each word, -1 at padding. Shape: ``(batch, words)``.
            src_spans: first word, one past the last and label of each constituent, -1 at padding.
                Shape: ``(batch, constituents, 3)``.

        Returns:
            What fairseq's encoder returns, of the tokens alone and time-first: ``encoder_out`` (shape
            ``(tokens, batch, width)``), ``encoder_padding_mask`` (``(batch, tokens)``) and so on.
        """
        phrases = self.phrases(src_tokens, src_words, src_heads, src_spans)
        states, embedding = self._embed(src_tokens, phrases, token_embeddings)
        num_tokens = src_tokens.size(1)
        hidden = [states] if return_all_hiddens else []
        for layer in self.layers:
            states, _ = layer(states, phrases, tokens_only=layer is self.layers[-1])
            if return_all_hiddens:
                hidden.append(states)
        states = states[:, :num_tokens]
        if self.layer_norm is not None:
            states = self.layer_norm(states)
        padding_mask = src_tokens.eq(self.padding_idx)
        return {
            "encoder_out": [states.transpose(0, 1)],
            "encoder_padding_mask": [padding_mask],
            "encoder_embedding": [embedding],
            "encoder_states": [
                layer_states[:, :num_tokens].transpose(0, 1) for layer_states in hidden
            ],
            "fc_results": [],
            "src_tokens": [],
            "src_lengths": [(~padding_mask).sum(1, keepdim=True, dtype=torch.int32)],
        }

    def attention_maps(
        self,
        src_tokens: Tensor,
        src_words: Tensor | None = None,
        src_heads: Tensor | None = None,
        src_spans: Tensor | None = None,
    ) -> tuple[PhraseBatch, list[AttentionMaps]]:
        """Compute the attention weights of both phases in every layer.

        Args:
            src_tokens: source. Shape: ``(batch, tokens)``.
            src_words: see :meth:`forward`.
            src_heads: see :meth:`forward`.
            src_spans: see :meth:`forward`.

        Returns:
            The nodes, and each layer's weights.
        """
        phrases = self.phrases(src_tokens, src_words, src_heads, src_spans)
        states, _ = self._embed(src_tokens, phrases)
        maps = []
        for layer in self.layers:
            states, weights = layer(states, phrases, need_weights=True)
            maps.append(weights)
        return phrases, maps

    def _embed(
        self, src_tokens: Tensor, phrases: PhraseBatch, token_embeddings: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Embed tokens with their positions and add the phrases' first states."""
        states, embedding = self.forward_embedding(src_tokens, token_embeddings)
        states = states.masked_fill(src_tokens.eq(self.padding_idx).unsqueeze(-1), 0.0)
        return phrases.extend(states, self.cfg.phrase_init), embedding
