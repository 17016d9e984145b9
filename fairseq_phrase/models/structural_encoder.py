"""fairseq's Transformer encoder with structural and relative positions."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.quant_noise import quant_noise
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import Tensor, nn

from fairseq_phrase.models.structural_options import needs_tree, relative_clips
from fairseq_phrase.modules.depth_encoding import DepthEncoding
from fairseq_phrase.modules.relative_attention import RelativeAttention
from fairseq_phrase.modules.relative_positions import RelativePositions, sequential_positions
from fairseq_phrase.modules.tree_positions import TreePositions


def build_relative_attention(
    kind: type[RelativeAttention], embed_dim: int, cfg: TransformerConfig
) -> RelativeAttention:
    """Build a layer's attention with relative positions from fairseq's options and ours."""
    attention = kind(
        embed_dim=embed_dim,
        num_heads=cfg.encoder.attention_heads,
        clips=relative_clips(cfg),
        dropout=cfg.attention_dropout,
        use_values=not cfg.relative_keys_only,
    )
    for projection in attention.children():
        if isinstance(projection, nn.Linear):
            quant_noise(projection, cfg.quant_noise.pq, cfg.quant_noise.pq_block_size)
    return attention


def find_tree(
    cfg: Any, src_words: Tensor | None, src_heads: Tensor | None, padding_mask: Tensor
) -> TreePositions | None:
    """Place the tokens in their trees, if the options ask for it.

    Args:
        cfg: the options.
        src_words: the word of each token, -1 where there is none. Shape: ``(batch, tokens)``.
        src_heads: the head of each word, -1 at padding. Shape: ``(batch, words)``.
        padding_mask: True at padding. Shape: ``(batch, tokens)``.

    Raises:
        ValueError: the batch has no trees, or they are none.
    """
    if not needs_tree(cfg):
        return None
    if src_words is None or src_heads is None:
        raise ValueError(
            "the batch carries no parse: --task syntax_translation adds it, or pass src_words and "
            "src_heads"
        )
    return TreePositions(src_words, src_heads, padding_mask)


def relative_positions(
    cfg: Any, tree: TreePositions | None, num_tokens: int, device: torch.device
) -> dict[str, Tensor]:
    """Compute the relative positions that the options ask for.

    Args:
        cfg: the options.
        tree: where the tokens stand in their trees, if that is asked for.
        num_tokens: length of the padded batch.
        device: where to compute them.

    Returns:
        By kind, not clipped. Shape of each: ``(batch or 1, tokens, tokens)``, int64.
    """
    relative = {}
    if cfg.sequential_relative:
        relative["sequential"] = sequential_positions(num_tokens, device)
    if cfg.structural_relative:
        assert tree is not None
        relative["structural"] = tree.relative(cfg.structural_relation)
    return relative


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


class StructuralEncoder(TransformerEncoderBase):
    """fairseq's Transformer encoder with absolute and relative positions in sentence and tree.

    What the options do not ask for is fairseq's own code, with its parameters under its names: without
    any of them this is fairseq's encoder.

    Args:
        cfg: fairseq's options with those of positions.
        dictionary: the source dictionary.
        embed_tokens: the source embeddings.
    """

    def __init__(self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Embedding):
        super().__init__(cfg, dictionary, embed_tokens)
        if cfg.no_sequential_absolute:
            self.embed_positions = None
        self.depth_encoding: DepthEncoding | None = None
        if cfg.structural_absolute:
            self.depth_encoding = DepthEncoding(
                embed_tokens.embedding_dim,
                cfg.max_source_positions,
                fusion=None if self.embed_positions is None else cfg.structural_fusion,
            )

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """Build a layer, wrapped as fairseq wraps its own."""
        if not relative_clips(cfg):
            return super().build_encoder_layer(cfg)
        layer: nn.Module = StructuralEncoderLayer(cfg, return_fc=self.return_fc)
        if cfg.checkpoint_activations:
            layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
        return fsdp_wrap(
            layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
        )

    def forward(  # type: ignore[override]
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
        src_words: Tensor | None = None,
        src_heads: Tensor | None = None,
    ) -> dict[str, list[Tensor]]:
        """Encode a batch.

        Args:
            src_tokens: source, padded on either side. Shape: ``(batch, tokens)``.
            src_lengths: not used, as in fairseq.
            return_all_hiddens: also return every layer's states.
            token_embeddings: embeddings to use instead of the table's.
            src_words: the word of each token, -1 where there is none. Shape: ``(batch, tokens)``.
            src_heads: the head of each word, -1 at padding. Shape: ``(batch, words)``.

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
        tree = find_tree(self.cfg, src_words, src_heads, padding_mask)
        states, embedding = self.forward_embedding(src_tokens, token_embeddings, tree)
        states = states.masked_fill(padding_mask.unsqueeze(-1), 0.0).transpose(0, 1)
        attended: Any = padding_mask if bool(padding_mask.any()) else None
        if clips:
            relative = relative_positions(self.cfg, tree, src_tokens.size(1), src_tokens.device)
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

    def forward_embedding(
        self,
        src_tokens: Tensor,
        token_embedding: Tensor | None = None,
        tree: TreePositions | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Embed tokens, and add their absolute positions (eq. 7).

        Args:
            src_tokens: source. Shape: ``(batch, tokens)``.
            token_embedding: embeddings to use instead of the table's.
            tree: where the tokens stand in their trees.

        Returns:
            The first states and the scaled embeddings. Shape of each: ``(batch, tokens, width)``.
        """
        if self.depth_encoding is None or tree is None:
            return super().forward_embedding(src_tokens, token_embedding)
        if token_embedding is None:
            token_embedding = self.embed_tokens(src_tokens)
        embedded = self.embed_scale * token_embedding
        places = encodings = None
        if self.embed_positions is not None:
            # PE(seq) of all places that there are, by a sentence that fills the batch's length.
            longest = min(src_tokens.size(1), self.embed_positions.max_positions)
            filled = src_tokens.new_full((1, longest), self.padding_idx + 1)
            encodings = self.embed_positions(filled)[0]
            places = ((~tree.padding_mask).cumsum(1) - 1).clamp(min=0)
        states = embedded + self.depth_encoding(tree.depths, places, encodings)
        if self.layernorm_embedding is not None:
            states = self.layernorm_embedding(states)
        states = self.dropout_module(states)
        if self.quant_noise is not None:
            states = self.quant_noise(states)
        return states, embedded
