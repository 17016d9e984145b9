"""A Transformer with Transformer-XL's relative positions, which can learn with XLNet's two streams."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_phrase.methods.common.causal_window import CausalWindow, PerLayer
from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.methods.encoder_method import register_encoder
from fairseq_phrase.methods.syntax_encoder import SyntaxEncoder, SyntaxEncoderLayer
from fairseq_phrase.methods.xl.xl_attention import PairStructure, XLAttention, distance_encodings

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary


class XLEncoderLayer(SyntaxEncoderLayer):
    """fairseq's encoder layer whose attention may read a second stream of states. Time-first."""

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> nn.Module:
        """Build the attention."""
        return self.with_quant_noise(
            XLAttention(
                embed_dim=embed_dim,
                num_heads=cfg.encoder.attention_heads,
                dropout=cfg.attention_dropout,
                # The pre-trainer sets this option: only pairs of segments need segment encodings.
                segments=vars(cfg).get("relative_segments", False),
            )
        )

    def update(self, states: Tensor, contents: Tensor, structure: PairStructure) -> Tensor:
        """Update a stream. Shape: (queries, batch, width).

        Args:
            states: the stream. Shape: (queries, batch, width).
            contents: the states that it reads. Shape: (keys, batch, width).
        """
        norm = self.self_attn_layer_norm
        before = norm if self.normalize_before else nn.Identity()
        attended, _ = self.self_attn.attend(before(states), before(contents), structure)
        return self.feed_forward_block(self._add(attended, states, norm))[0]


@register_encoder("xl_transformer", variants={"Transformer-XL's positions": {}})
class XLEncoder(SyntaxEncoder):
    """fairseq's Transformer encoder with relative positions as in Transformer-XL and XLNet.

    It does not use absolute positions. ``--objective permutation`` trains :meth:`two_streams`; in
    other work the content stream is the encoder.
    """

    layer_class = XLEncoderLayer

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self.embed_positions = None

    def structure(self, src_tokens: Tensor, parse: ParseBatch) -> PairStructure:
        """Find the distances of all tokens; padding is not visible."""
        visible = ~self.padding(src_tokens)[:, None].expand(-1, src_tokens.size(1), -1)
        order = torch.arange(src_tokens.size(1), device=src_tokens.device)
        return self._pairs(order[None], order, visible)

    @classmethod
    def causal_obstacle(cls, cfg: TransformerConfig, window: CausalWindow) -> str | None:
        """Return None: positions in the sentence do not depend on the future."""
        return None

    def causal_structure(self, structure: PairStructure, window: CausalWindow) -> PerLayer:
        """Hide positions outside the window, for each layer."""

        def masked(visible: Tensor) -> PairStructure:
            return replace(structure, visible=visible & structure.visible)

        return window.per_layer(len(self.layers), structure.visible[:, 0], masked)

    def two_streams(
        self,
        src_tokens: Tensor,
        ranks: Tensor,
        predicted: Tensor,
        first_query: Tensor,
        memory_tokens: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Encode with XLNet's two streams.

        The content stream of a token sees the tokens up to its own rank, and the query stream sees the
        tokens below it and its own position. Both share all parameters. All tokens see the tokens of a
        memory; these see each other, and get no gradient. *Decision*: their states are computed with the
        batch instead of kept from the previous batch, so they depend only on the text.

        Args:
            src_tokens: source, padded on the right. Shape: (batch, tokens).
            ranks: each token's position in the order. Shape: (batch, tokens), int64.
            predicted: the positions of the query stream; padded with any position.
                Shape: (batch, queries), int64.
            first_query: the first state of all queries. Shape: (width,).
            memory_tokens: the tokens before the sample, padded on the left. Shape: (batch, memory).
            segments: 0 or 1. Shape: (batch, tokens).

        Returns:
            The states of the query stream (shape (batch, queries, width)) and of the content stream
            (shape (batch, tokens, width)).
        """
        num_tokens, device = src_tokens.size(1), src_tokens.device
        length = 0 if memory_tokens is None else memory_tokens.size(1)
        visible, position = ~self.padding(src_tokens), torch.arange(num_tokens, device=device)
        keys = torch.arange(-length, num_tokens, device=device)
        memory = remembered = None
        if memory_tokens is not None and length:
            visible = torch.cat([~self.padding(memory_tokens), visible], 1)
            remembered = self.structure(memory_tokens, ParseBatch({}))
            with torch.no_grad():
                memory = self._embedded(memory_tokens)
        # A rank below all others, so every token sees the memory.
        of_keys = torch.cat([ranks.new_full((len(ranks), length), -1), ranks], 1)
        of_queries = ranks.gather(1, predicted)
        content_pairs = self._pairs(
            position[None],
            keys,
            visible[:, None] & (of_keys[:, None] <= ranks[:, :, None]),
            _same_segment(segments, segments, length),
        )
        query_pairs = self._pairs(
            predicted,
            keys,
            visible[:, None] & (of_keys[:, None] < of_queries[:, :, None]),
            _same_segment(
                None if segments is None else segments.gather(1, predicted), segments, length
            ),
        )
        content = self._embedded(src_tokens)
        query = self.dropout_module(first_query.expand(predicted.size(1), len(predicted), -1))
        for layer in self.layers:
            contents = content if memory is None else torch.cat([memory, content])
            query = layer.update(query, contents, query_pairs)
            content = layer.update(content, contents, content_pairs)
            if memory is not None:
                with torch.no_grad():
                    memory = layer.update(memory, memory, remembered)
        if self.layer_norm is not None:
            query, content = self.layer_norm(query), self.layer_norm(content)
        return query.transpose(0, 1), content.transpose(0, 1)

    def _embedded(self, tokens: Tensor) -> Tensor:
        """Shape: (tokens, batch, width)."""
        return self.first_states(tokens, None)[0].transpose(0, 1)

    def _pairs(
        self,
        queries: Tensor,
        keys: Tensor,
        visible: Tensor,
        same_segment: Tensor | None = None,
    ) -> PairStructure:
        """Compute the relative positions of all pairs.

        Args:
            queries: Shape: (batch or 1, queries), int64.
            keys: in order. Shape: (keys,), int64.
        """
        last = keys.size(0)
        # Queries are among the last keys, so the distances are -(keys - 1)..keys - 1.
        width = self.embed_tokens.embedding_dim
        encodings = distance_encodings(1 - last, last - 1, width, keys.device)
        rows = queries[:, :, None] - keys + (last - 1)
        return PairStructure(encodings, rows, visible, same_segment)


def _same_segment(of_queries: Tensor | None, of_keys: Tensor | None, length: int) -> Tensor | None:
    """Compare segments. Shape: (batch, queries, keys)."""
    if of_queries is None or of_keys is None:
        return None
    assert not length, "pairs of segments have no memory"
    return of_queries[:, :, None] == of_keys[:, None]
