"""fairseq's attention in training: one product for queries, keys and values, and no weights for nobody.

In training fairseq 0.12.3 computes cross-attention by separate operations (``static_kv``), keeps the
weights of the last layer's heads and averages them, even if nothing reads them.
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerDecoderBase
from fairseq.modules import MultiheadAttention
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from fairseq_phrase.models.model_parts import decoder_of
from fairseq_phrase.modules.tensors import infinite


def take_fused_attention(model: Any, *, reads_weights: bool, left_pad_target: bool) -> str | None:
    """Let the attention of fairseq's layers run in few operations in training.

    Args:
        model: not wrapped. The classes of its attentions change.
        reads_weights: whether something in training reads the weights of cross-attention.
        left_pad_target: whether targets are padded on the left.

    Returns:
        Why it stays fairseq's own; None if it does not.
    """
    if not isinstance(model, BaseFairseqModel):
        return f"{type(model).__name__} has the parameters in parts"
    decoder = decoder_of(model)
    if not isinstance(decoder, TransformerDecoderBase):
        return "the model has no Transformer decoder"
    kind, base = type(decoder), TransformerDecoderBase
    if (
        kind.extract_features_scriptable is not base.extract_features_scriptable
        or kind.buffered_future_mask is not base.buffered_future_mask
    ):
        return f"{kind.__name__} has masks of its own"
    if left_pad_target:
        return "targets are padded on the left"
    changed = 0
    # In training, iterating over ``decoder.layers`` may leave layers out.
    for layer in model.modules():
        if isinstance(layer, TransformerDecoderLayerBase) and not layer.cross_self_attention:
            changed += _change(layer.self_attn, reads_weights=reads_weights, is_causal=True)
            changed += _change(layer.encoder_attn, reads_weights=reads_weights)
        elif isinstance(layer, TransformerEncoderLayerBase):
            changed += _change(layer.self_attn)
    return None if changed else "no layer has fairseq's plain attention"


def _change(attention: Any, *, reads_weights: bool = True, is_causal: bool = False) -> bool:
    """Change the class of an attention; return whether it is fairseq's plain attention."""
    if not is_plain(attention):
        return False
    attention.__class__ = TrainedAttention
    attention.reads_weights, attention.is_causal = reads_weights, is_causal
    return True


def is_plain(attention: Any, *others: type) -> bool:
    """Return whether an attention is fairseq's, without options that change what is computed.

    Args:
        others: other classes that an attention may have.
    """
    return (
        type(attention) in (MultiheadAttention, TrainedAttention, *others)
        and not (attention.use_xformers or attention.add_zero_attn or attention.onnx_trace)
        and not attention.skip_embed_dim_check
        and attention.bias_k is None
        and all(
            type(projection) is nn.Linear
            and projection.bias is not None
            and not projection._forward_pre_hooks  # of quantization noise
            and not projection._forward_hooks
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
    )


class TrainedAttention(MultiheadAttention):
    """fairseq's attention; in training without weights it runs in few operations."""

    #: Whether something in training reads the weights that the layer asks for.
    reads_weights = True
    #: Whether the mask of the layer is that of the future.
    is_causal = False

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        incremental_state: Any = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend, as fairseq's attention does. Time-first.

        Args:
            attn_mask: added to the scores.
        """
        has_other_mask = attn_mask is not None and not self.is_causal
        wants_weights = (need_weights or need_head_weights) and self.reads_weights
        if (
            not self.training
            or incremental_state is not None
            or has_other_mask
            or wants_weights
            or before_softmax
        ):
            attended: tuple[Tensor, Tensor | None] = super().forward(
                query, key, value, key_padding_mask, incremental_state, need_weights, static_kv,
                attn_mask, before_softmax, need_head_weights,
            )  # fmt: skip
            return attended
        if self.self_attention:
            queries, keys, values = self._heads(query, self.q_proj, self.k_proj, self.v_proj)
        else:
            (queries,) = self._heads(query, self.q_proj)
            assert key is not None
            keys, values = self._heads(key, self.k_proj, self.v_proj)
        mask = None
        # With the future, padding on the right is masked for every token that is not padding itself.
        if key_padding_mask is not None and attn_mask is None:
            mask = infinite(key_padding_mask.bool(), queries.dtype)[:, None, None]
        heads = scaled_dot_product_attention(
            queries, keys, values, mask, self.dropout_module.p, is_causal=attn_mask is not None
        )
        # (batch, heads, tokens, head width) -> (tokens, batch, width)
        return self.out_proj(heads.permute(2, 0, 1, 3).flatten(2)), None

    def _heads(self, states: Tensor, *projections: nn.Module) -> tuple[Tensor, ...]:
        """Project states by one product. Shape of each: (batch, heads, tokens, head width)."""
        parts: list[Any] = list(projections)
        weight = torch.cat([part.weight for part in parts]) if len(parts) > 1 else parts[0].weight
        bias = torch.cat([part.bias for part in parts]) if len(parts) > 1 else parts[0].bias
        joined = linear(states, weight, bias).unflatten(-1, (len(parts), self.num_heads, -1))
        # One copy makes them contiguous, which products over heads need.
        heads: tuple[Tensor, ...] = joined.permute(2, 1, 3, 0, 4).contiguous().unbind()
        return heads
