"""Attention of methods that change queries and keys by positions, such as rotations.

class MyAttention(TransformedAttention):
    def add_parameters(self, cfg): ...
    def transform(self, query, key, structure): ...

class MyLayer(TransformedLayer):
    attention_class = MyAttention
"""

from __future__ import annotations

from typing import Any, ClassVar

from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_phrase.methods.common.biased_attention import biased_attention
from fairseq_phrase.methods.syntax_encoder import (
    GatedTokenAttention,
    SourceStructure,
    SyntaxEncoderLayer,
    padded_scores,
)


class TransformedAttention(GatedTokenAttention):
    """Self-attention over tokens whose queries and keys a method changes."""

    def add_parameters(self, cfg: TransformerConfig) -> None:
        """Add the method's own parameters, after the projections have their initial values."""

    def transform(self, query: Tensor, key: Tensor, structure: Any) -> tuple[Tensor, Tensor]:
        """Change queries and keys. Shape of each: (batch, heads, tokens, head width)."""
        raise NotImplementedError

    def forward(
        self, states: Tensor, structure: SourceStructure, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attend once, as :class:`~fairseq_phrase.methods.syntax_encoder.TokenAttention`."""
        query, key, value = self.split(states)
        query, key = self.transform(query, key, structure)
        mask = padded_scores(structure.padding_mask, states.dtype)
        attended, weights = biased_attention(query, key, value, mask, self.dropout_p, need_weights)
        return self.join(attended, states), weights


class TransformedLayer(SyntaxEncoderLayer):
    """A layer of fairseq with the attention of ``attention_class``."""

    attention_class: ClassVar[type[TransformedAttention]]

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> nn.Module:
        """Build the attention."""
        heads, dropout = cfg.encoder.attention_heads, cfg.attention_dropout
        attention = self.attention_class(embed_dim=embed_dim, num_heads=heads, dropout=dropout)
        attention.reset_parameters()
        attention.add_parameters(cfg)
        return self.with_quant_noise(attention)
