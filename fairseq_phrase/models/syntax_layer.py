"""The base class of encoder layers, which extends fairseq's: its attention gets a batch's structure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import MultiheadAttention
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.quant_noise import quant_noise
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import Tensor, nn


@dataclass(frozen=True)
class SourceStructure:
    """The minimal structure; a method's own structure may be any object.

    Attributes:
        padding_mask: True at padding; None without padding. Shape: (batch, tokens).
    """

    padding_mask: Tensor | None


class TokenAttention(MultiheadAttention):
    """fairseq's self-attention over tokens, called as :class:`SyntaxEncoderLayer` calls attention.

    Time-first.
    """

    def forward(  # type: ignore[override]
        self, states: Tensor, structure: SourceStructure, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attend once.

        Args:
            states: token states. Shape: (tokens, batch, width).
            structure: has the padding mask.
            need_weights: also return the weights, which is slower.

        Returns:
            The attended states and the weights, of shape (batch, heads, tokens, tokens), or None.
        """
        attended, weights = super().forward(
            states,
            states,
            states,
            key_padding_mask=structure.padding_mask,
            need_weights=need_weights,
            need_head_weights=need_weights,
            static_kv=need_weights,  # or fairseq calls torch's function, which averages the heads
        )
        # fairseq returns (heads, batch, queries, keys).
        return attended, weights.transpose(0, 1) if need_weights else None


class SyntaxEncoderLayer(TransformerEncoderLayerBase):
    """fairseq's encoder layer whose attention takes the batch's structure as an additional argument.

    Residual connections and layer norms are around each block, before or after it as
    ``--encoder-normalize-before`` says. Parameters have fairseq's names.

    A method overrides :meth:`build_self_attention`. If it attends more than once, it also overrides
    :meth:`attention_blocks`. An attention is called as ``attention(states, structure, need_weights)``.
    It returns the attended states, and the weights (shape (batch, heads, queries, keys)) or None.

    Args:
        cfg: fairseq's options with those of the method.
        return_fc: also return the output of the feed-forward block, as fairseq's layer can.

    Attributes:
        time_first: whether the states have the shape (nodes, batch, width), as in fairseq, or
            ``(batch, nodes, width)``.
    """

    time_first: ClassVar[bool] = True

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> nn.Module:
        """Build the attention; fairseq's own over tokens unless a method overrides this."""
        return TokenAttention(
            embed_dim,
            cfg.encoder.attention_heads,
            dropout=cfg.attention_dropout,
            self_attention=True,
            q_noise=self.quant_noise,
            qn_block_size=self.quant_noise_block_size,
            xformers_att_config=cfg.encoder.xformers_att_config,
        )

    def with_quant_noise(self, attention: nn.Module) -> nn.Module:
        """Apply ``--quant-noise-pq`` to an attention's projections, as fairseq does."""
        for projection in attention.children():
            if isinstance(projection, nn.Linear):
                quant_noise(projection, self.quant_noise, self.quant_noise_block_size)
        return attention

    def attention_blocks(self) -> Sequence[tuple[str, nn.Module, nn.Module]]:
        """Return the layer's attention blocks, in order: name, attention, layer norm."""
        return [("all nodes", self.self_attn, self.self_attn_layer_norm)]

    def forward(  # type: ignore[override]
        self,
        states: Tensor,
        structure: Any,
        need_weights: bool = False,
        keep: int | None = None,
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor] | None]:
        """Update all nodes' states.

        Args:
            states: node states. Shape: (nodes, batch, width) or (batch, nodes, width), see
                ``time_first``.
            structure: the batch's structure, made by the encoder.
            need_weights: also return the attention weights.
            keep: return only the states of this number of first nodes. The other nodes skip the
                feed-forward block.

        Returns:
            The new states; the output of the feed-forward block, or None; and the weights of each
            attention block by name, each of shape (batch, heads, nodes, nodes), or None.
        """
        maps: dict[str, Tensor] = {}
        for name, attention, layer_norm in self.attention_blocks():
            inputs = layer_norm(states) if self.normalize_before else states
            attended, weights = attention(inputs, structure, need_weights)
            states = self._add(attended, states, layer_norm)
            if need_weights:
                maps[name] = weights
        if keep is not None:
            states = states.narrow(0 if self.time_first else 1, 0, keep)
        states, feed_forward = self.feed_forward_block(states)
        return states, feed_forward if self.return_fc else None, maps if need_weights else None

    def feed_forward_block(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new states, and what the two layers added. Shape of each: as the states."""
        inputs = self.final_layer_norm(states) if self.normalize_before else states
        hidden = self.activation_dropout_module(self.activation_fn(self.fc1(inputs)))
        feed_forward = self.fc2(hidden)
        return self._add(feed_forward, states, self.final_layer_norm), feed_forward

    def _add(self, block: Tensor, states: Tensor, layer_norm: nn.Module) -> Tensor:
        """Add a block's output to the states that entered it."""
        states = self.residual_connection(self.dropout_module(block), states)
        return states if self.normalize_before else layer_norm(states)


def wrap_layer(layer: nn.Module, cfg: TransformerConfig) -> nn.Module:
    """Wrap a layer for checkpointed activations and sharding, as fairseq wraps its own."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    return fsdp_wrap(
        layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
    )
