"""The variants of all encoders with this package's layers, and the attentions of a model's encoder."""

from __future__ import annotations

from typing import Any

from torch import nn

from fairseq_phrase.methods.encoder_method import translation_encoders
from fairseq_phrase.methods.syntax_encoder import SyntaxEncoder, SyntaxEncoderLayer

#: By title, the encoder and the options. Those that start neutrally have no gate.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    title: (name, dict(options))
    for name, method in translation_encoders().items()
    if issubclass(method.encoder, SyntaxEncoder)
    for title, options in method.variants.items()
    if not options.get("neutral_start")
}
#: Encoders whose layers are fairseq's own.
PLAIN: dict[str, tuple[str, dict[str, Any]]] = {
    "plain structural_transformer": ("structural_transformer", {}),
    "plain relation_transformer": ("relation_transformer", {"relation_bias": "none"}),
}


def attentions_of(model: Any) -> list[nn.Module]:
    """List all attention modules of an encoder's layers."""
    attentions = []
    for layer in model.encoder.layers:
        if isinstance(layer, SyntaxEncoderLayer):
            attentions += [
                attention for block, _ in layer.attention_blocks() for attention in block.values()
            ]
        else:
            attentions.append(layer.self_attn)
    return attentions
