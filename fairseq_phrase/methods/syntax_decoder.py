"""fairseq's Transformer decoder, for encoders whose nodes are more than the source tokens."""

from __future__ import annotations

from typing import Any

from fairseq.models.transformer import TransformerConfig, TransformerDecoderBase
from torch import Tensor

from fairseq_phrase.methods.config import check_heads


def over_tokens(weights: Tensor, encoder_out: dict[str, list[Any]]) -> Tensor:
    """Keep the columns of attention to tokens; the encoder's other nodes follow the tokens.

    Args:
        weights: Shape: (..., nodes).
        encoder_out: from an encoder. fairseq's own encoders leave ``src_tokens`` empty; their nodes are
            the tokens.

    Returns:
        The weights, not renormalized: they sum to less than 1 where other nodes get weight.
        Shape: (..., tokens).
    """
    tokens = encoder_out["src_tokens"]
    return weights[..., : tokens[0].size(1)] if tokens else weights


class SyntaxDecoder(TransformerDecoderBase):
    """fairseq's Transformer decoder, for encoders whose nodes are more than the source tokens."""

    def build_decoder_layer(self, cfg: TransformerConfig, no_encoder_attn: bool = False) -> Any:
        """Build a layer, wrapped as fairseq wraps its own."""
        check_heads(cfg, "decoder")
        return super().build_decoder_layer(cfg, no_encoder_attn)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Any]],
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, list[Any]]]:
        """Decode without the output projection.

        Args:
            prev_output_tokens: target, shifted right. Shape: (rows, target tokens).

        Returns:
            fairseq's output. ``attn`` has one column for each source token, because its users expect
            it (alignments, unknown words, copying, coverage, ensembles); ``node_attn`` has one for each
            node. Shapes: (rows, target tokens, tokens) and (rows, target tokens, nodes).
        """
        features, extra = super().extract_features(prev_output_tokens, encoder_out, *args, **kwargs)
        extra["node_attn"] = extra["attn"]
        extra["attn"] = [
            weights if weights is None else over_tokens(weights, encoder_out)
            for weights in extra["attn"]
        ]
        return features, extra
