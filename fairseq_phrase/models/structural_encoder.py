"""fairseq's Transformer encoder with structural and relative positions."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import Tensor, nn

from fairseq_phrase.models.layers import wrap_layer
from fairseq_phrase.models.positioned_encoder import PositionedEncoder, build_relative_attention
from fairseq_phrase.models.structural_options import relative_clips
from fairseq_phrase.modules.positions.relative_attention import RelativeAttention
from fairseq_phrase.modules.positions.relative_positions import RelativePositions


class _SelfAttention(RelativeAttention):
    """Relative attention that fairseq's layer can call: the positions stand for the padding mask."""

    def forward(  # type: ignore[override]
        self, query: Tensor, key_padding_mask: RelativePositions, **others: Any
    ) -> tuple[Tensor, Tensor | None]:
        return super().forward(query, key_padding_mask)


class StructuralEncoderLayer(TransformerEncoderLayerBase):
    """fairseq's encoder layer, whose attention has relative positions. Time-first.

    fairseq's ``forward`` hands its ``encoder_padding_mask`` on to the attention and looks at it nowhere
    else. Here it is the batch's :class:`RelativePositions`, which hold the padding mask.
    """

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> RelativeAttention:
        """Build attention with relative positions."""
        return build_relative_attention(_SelfAttention, embed_dim, cfg)


class StructuralEncoder(PositionedEncoder):
    """fairseq's Transformer encoder with absolute and relative positions in sentence and tree.

    What the options do not ask for is fairseq's own code, with its parameters under its names: without
    any of them this is fairseq's encoder.

    Args:
        cfg: fairseq's options with those of positions.
        dictionary: the source dictionary.
        embed_tokens: the source embeddings.
    """

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """Build a layer, wrapped as fairseq wraps its own."""
        if not relative_clips(cfg):
            return super().build_encoder_layer(cfg)
        return wrap_layer(StructuralEncoderLayer(cfg, return_fc=self.return_fc), cfg)

    def forward(  # type: ignore[override]
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
        src_words: Tensor | None = None,
        src_heads: Tensor | None = None,
        **_other_parses: Tensor,
    ) -> dict[str, list[Tensor]]:
        """Encode a batch.

        Args:
            src_tokens: source, padded on either side. Shape: ``(batch, tokens)``.
            src_lengths: not used, as in fairseq.
            return_all_hiddens: also return every layer's states.
            token_embeddings: embeddings to use instead of the table's.
            src_words: the word of each token, -1 where there is none. Shape: ``(batch, tokens)``.
            src_heads: the head of each word, -1 at padding. Shape: ``(batch, words)``.
            _other_parses: what other models of an ensemble need.

        Returns:
            What fairseq's encoder returns, time-first: ``encoder_out`` (shape
            ``(tokens, batch, width)``), ``encoder_padding_mask`` (``(batch, tokens)``) and so on.

        Raises:
            ValueError: trees are needed and there are none.
        """
        clips = relative_clips(self.cfg)
        if self.depth_encoding is None and not clips:
            return super().forward(src_tokens, src_lengths, return_all_hiddens, token_embeddings)
        padding_mask = src_tokens.eq(self.padding_idx)
        tree = self.find_tree(src_tokens, src_words, src_heads)
        depths = None if tree is None else tree.depths
        states, embedding = self.forward_embedding(src_tokens, token_embeddings, depths)
        states = states.masked_fill(padding_mask.unsqueeze(-1), 0.0).transpose(0, 1)
        attended: Any = padding_mask if bool(padding_mask.any()) else None
        if clips:
            relative = self.relative_positions(tree, src_tokens.size(1), src_tokens.device)
            attended = RelativePositions.of(relative, clips, attended)
        hidden, feed_forward = [states], []
        for layer in self.layers:
            output = layer(states, encoder_padding_mask=attended)
            states, last = output if isinstance(output, tuple) else (output, None)
            hidden.append(states)
            feed_forward.append(last)
        if self.layer_norm is not None:
            states = self.layer_norm(states)
        return {
            "encoder_out": [states],
            "encoder_padding_mask": [padding_mask],
            "encoder_embedding": [embedding],
            "encoder_states": hidden if return_all_hiddens else [],
            "fc_results": feed_forward if return_all_hiddens else [],
            "src_tokens": [],
            "src_lengths": [(~padding_mask).sum(1, keepdim=True, dtype=torch.int32)],
        }
