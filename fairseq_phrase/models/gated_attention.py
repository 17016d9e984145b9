"""fairseq's self-attention over tokens, behind a gate (``--attention-gate``)."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.modules import MultiheadAttention
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fairseq_phrase.modules.projections import gate_projection, head_gate


class GatedMultiheadAttention(MultiheadAttention):
    """fairseq's self-attention with :func:`~fairseq_phrase.modules.projections.head_gate`. Time-first.

    fairseq's function does not return the heads' outputs before they are projected, so the attended
    states are computed here. Weights do not depend on the gate and are computed by fairseq.
    """

    def __init__(self, embed_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(embed_dim, num_heads, self_attention=True, **options)
        noise, block = options.get("q_noise", 0.0), options.get("qn_block_size", 8)
        self.gate_proj = quant_noise(gate_projection(embed_dim), noise, block)

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        need_head_weights: bool = False,
        static_kv: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend once, as fairseq's function does for an encoder.

        Args:
            query: the states. Shape: (tokens, batch, width)
            key, value: the states again.
            key_padding_mask: True at padding. Shape: (batch, tokens)
            attn_mask: added to all scores. Shape: (tokens, tokens)

        Returns:
            The attended states, of shape (tokens, batch, width), and fairseq's weights or None.
        """
        heads = (
            # (tokens, batch, width) -> (batch, heads, tokens, head width)
            projection(query).unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0, 3)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        drops = self.training or self.dropout_module.apply_during_inference
        attended = scaled_dot_product_attention(
            *heads,
            attn_mask=_score_mask(key_padding_mask, attn_mask, query.dtype),
            dropout_p=self.dropout_module.p if drops else 0.0,
        )
        joined = attended.permute(2, 0, 1, 3).flatten(2)
        output: Tensor = self.out_proj(head_gate(joined, query, self.gate_proj))
        if not (need_weights or need_head_weights):
            return output, None
        _, weights = super().forward(
            query, key, value, key_padding_mask, None, need_weights, static_kv, attn_mask,
            need_head_weights=need_head_weights,
        )  # fmt: skip
        return output, weights


def _score_mask(
    key_padding_mask: Tensor | None, attn_mask: Tensor | None, dtype: torch.dtype
) -> Tensor | None:
    """Return what is added to scores: -inf at padded keys, and ``attn_mask``."""
    mask = None if attn_mask is None else attn_mask.to(dtype)
    if key_padding_mask is not None:
        padded = torch.zeros_like(key_padding_mask, dtype=dtype)
        # Shape: (batch, heads, queries, keys), the middle ones 1
        padded = padded.masked_fill(key_padding_mask.bool(), -torch.inf)[:, None, None]
        mask = padded if mask is None else mask + padded
    return mask
