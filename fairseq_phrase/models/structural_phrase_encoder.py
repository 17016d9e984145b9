"""The PhraseTransformer's encoder with structural and relative positions.

The combination that no paper has. *Decisions*: a phrase stands where its highest word stands (see
:mod:`fairseq_phrase.modules.phrases.positioned_phrases`). The encoding of its depth is added to its first
state; it has no absolute position in the sentence, as in the PhraseTransformer. Relative positions take
part in the attention over all nodes (phase 1); the attention within phrases stays as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig
from torch import Tensor
from torch.nn.functional import pad

from fairseq_phrase.models.phrase_encoder import PhraseEncoder, PhraseEncoderLayer
from fairseq_phrase.models.positioned_encoder import PositionedEncoder, build_relative_attention
from fairseq_phrase.models.structural_options import relative_clips
from fairseq_phrase.modules.phrases.phrase_batch import PhraseBatch
from fairseq_phrase.modules.phrases.positioned_phrases import PositionedPhrases
from fairseq_phrase.modules.positions.relative_attention import RelativeAttention


class NodeAttention(RelativeAttention):
    """Attention over all nodes of a batch with relative positions. Batch-first."""

    def forward(  # type: ignore[override]
        self, states: Tensor, phrases: PositionedPhrases, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attend once.

        Args:
            states: node states. Shape: ``(batch, nodes, width)``.
            phrases: the nodes, with relative positions.
            need_weights: also return the weights.

        Returns:
            As :class:`fairseq_phrase.modules.phrases.phrase_attention.PhraseAttention` does.
        """
        assert phrases.relative is not None
        attended, weights = super().forward(states.transpose(0, 1), phrases.relative, need_weights)
        return attended.transpose(0, 1), weights


class StructuralPhraseEncoderLayer(PhraseEncoderLayer):
    """The PhraseTransformer's layer, whose attention over all nodes may have relative positions."""

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> Any:
        """Build phase 1."""
        if not relative_clips(cfg):
            return super().build_self_attention(embed_dim, cfg)
        return build_relative_attention(NodeAttention, embed_dim, cfg)


class StructuralPhraseEncoder(PhraseEncoder, PositionedEncoder):
    """The PhraseTransformer's encoder with absolute and relative positions in sentence and tree.

    Args:
        cfg: fairseq's options with those of phrases and of positions.
        dictionary: the source dictionary.
        embed_tokens: the source embeddings.
    """

    layer_class = StructuralPhraseEncoderLayer

    def phrases(
        self,
        src_tokens: Tensor,
        src_words: Tensor | None = None,
        src_heads: Tensor | None = None,
        src_spans: Tensor | None = None,
    ) -> PositionedPhrases:
        """Find the phrases of a batch, and where they stand.

        Args:
            src_tokens: source, padded on either side. Shape: ``(batch, tokens)``.
            src_words: the word of each token, -1 where there is none. Shape: ``(batch, tokens)``.
            src_heads: the head of each word, -1 at padding. Shape: ``(batch, words)``.
            src_spans: first word, one past the last and label of each constituent, -1 at padding.
                Shape: ``(batch, constituents, 3)``.

        Raises:
            ValueError: phrases or positions need a parse and there is none.
        """
        phrases = super().phrases(src_tokens, src_words, src_heads, src_spans)
        tree = self.find_tree(src_tokens, src_words, src_heads)
        depths = torch.zeros_like(src_tokens) if tree is None else tree.depths
        relative = self.relative_positions(tree, src_tokens.size(1), src_tokens.device)
        return PositionedPhrases(phrases, depths, relative, relative_clips(self.cfg))

    def _embed(
        self, src_tokens: Tensor, phrases: PhraseBatch, token_embeddings: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        assert isinstance(phrases, PositionedPhrases)
        num_tokens = phrases.num_tokens
        states, embedding = self.forward_embedding(
            src_tokens, token_embeddings, phrases.depths[:, :num_tokens]
        )
        states = states.masked_fill(src_tokens.eq(self.padding_idx).unsqueeze(-1), 0.0)
        nodes = phrases.extend(states, self.cfg.phrase_init)
        if self.depth_encoding is not None and phrases.num_nodes > num_tokens:
            is_padding = phrases.padding_mask[:, num_tokens:, None]
            encoded = self.depth_encoding(phrases.depths[:, num_tokens:], num_tokens)
            nodes = nodes + pad(encoded.masked_fill(is_padding, 0.0), (0, 0, num_tokens, 0))
        return nodes, embedding
