"""The base classes of encoders: an encoder and a layer that extend fairseq's.

A method defines its *structure*, how nodes get their first states, and how a layer attends. The structure
(phrases, positions or a tree) is made once per batch from the batch's parse, and all layers share it. The
base classes define ``forward``, the dictionary that fairseq expects, attention maps, reordering for beams
and the wrapping of layers. :func:`fairseq_phrase.methods.encoder_method.register_encoder` makes a method
available.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models import FairseqEncoder
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase
from fairseq.modules import MultiheadAttention
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.quant_noise import quant_noise
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import Tensor, nn

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.biased_attention import biased_attention
from fairseq_phrase.methods.common.causal_window import CausalWindow, PerLayer
from fairseq_phrase.methods.common.parse_batch import MakeStructure, ParseBatch
from fairseq_phrase.methods.common.projections import HeadsAttention
from fairseq_phrase.methods.common.tensors import infinite, masked_keys
from fairseq_phrase.methods.config import check_heads, kept_layers
from fairseq_phrase.methods.encoder_method import AttentionOptions, neutral_obstacle

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SourceStructure:
    """The minimal structure, which a method extends with what its layers attend with.

    Attributes:
        padding_mask: True at padding, where an attention gives no weight. Shape: ``(batch, tokens)``.
    """

    padding_mask: Tensor


class TokenAttention(MultiheadAttention):
    """fairseq's self-attention over tokens, called as the layer calls attention. Time-first."""

    def forward(
        self, states: Tensor, structure: SourceStructure, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return attended states and, of shape (batch, heads, tokens, tokens), weights or None."""
        attended, weights = super().forward(
            *(states, states, states), key_padding_mask=structure.padding_mask,
            need_weights=need_weights, need_head_weights=need_weights,
            static_kv=need_weights,  # else fairseq calls torch's function, which averages the heads
        )  # fmt: skip
        # fairseq returns (heads, batch, queries, keys).
        return attended, weights.transpose(0, 1) if need_weights else None


def padded_scores(padding_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return -inf at padded keys, else 0. Shape: (batch, heads and queries, of which 1 each, keys)."""
    return infinite(masked_keys(padding_mask), dtype)[:, None, None]


class GatedTokenAttention(HeadsAttention):
    """:class:`TokenAttention` to which a gate can be added. A structure may be added to scores."""

    def forward(
        self, states: Tensor, structure: Any, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attend once, as :class:`TokenAttention`."""
        mask = structure
        if structure is not None and not isinstance(structure, Tensor):
            mask = padded_scores(structure.padding_mask, states.dtype)
        heads = self.split(states)
        attended, weights = biased_attention(*heads, mask, self.dropout_p, need_weights)
        return self.join(attended, states), weights


#: A block of a layer: its attentions by name, each of which reads the states that the one before it
#: returns; and the layer norm of the block, which has one residual connection.
AttentionBlock = tuple[Mapping[str, nn.Module], nn.Module]


class SyntaxEncoderLayer(TransformerEncoderLayerBase):
    """fairseq's encoder layer whose attention takes the batch's structure as an additional argument.

    Residual connections and layer norms are around each block. ``--encoder-normalize-before`` puts the
    norms before the blocks instead of after them. Parameters have fairseq's names.

    A method overrides :meth:`build_self_attention`. If it attends more than once, it also overrides
    :meth:`attention_blocks`, with one residual connection around several attentions, or around each. An
    attention is called as ``attention(states, structure, need_weights)``. It returns the attended states,
    and the weights (shape (batch, heads, queries, keys)) or None.

    Args:
        return_fc: also return the output of the feed-forward block, as fairseq's layer can.

    Attributes:
        time_first: whether the states have the shape (nodes, batch, width), as in fairseq, or
            ``(batch, nodes, width)``.
    """

    time_first: ClassVar[bool] = True

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> nn.Module:
        """Build the attention; by default fairseq's attention over tokens."""
        heads, dropout = cfg.encoder.attention_heads, cfg.attention_dropout
        if cfg.attention_gate:
            attention = GatedTokenAttention(embed_dim=embed_dim, num_heads=heads, dropout=dropout)
            attention.reset_parameters()
            return self.with_quant_noise(attention)
        return TokenAttention(
            embed_dim, heads, dropout=dropout, self_attention=True, q_noise=self.quant_noise,
            qn_block_size=self.quant_noise_block_size,
            xformers_att_config=cfg.encoder.xformers_att_config,
        )  # fmt: skip

    def with_quant_noise(self, attention: nn.Module) -> nn.Module:
        """Apply ``--quant-noise-pq`` to an attention's projections, as fairseq does."""
        for projection in attention.children():
            if isinstance(projection, nn.Linear):
                quant_noise(projection, self.quant_noise, self.quant_noise_block_size)
        return attention

    def attention_blocks(self) -> Sequence[AttentionBlock]:
        """Return the layer's attention blocks, in order."""
        return [({"all nodes": self.self_attn}, self.self_attn_layer_norm)]

    def forward(
        self, states: Tensor, structure: Any, need_weights: bool = False, keep: int | None = None
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor] | None]:
        """Update all nodes' states.

        Args:
            states: node states. Shape: (nodes, batch, width) or (batch, nodes, width), see
                ``time_first``.
            keep: return only the states of this number of first nodes. The other nodes skip the
                feed-forward block.

        Returns:
            The new states; the output of the feed-forward block, or None; and the weights of each
            attention block by name, each of shape (batch, heads, nodes, nodes), or None.
        """
        maps: dict[str, Tensor] = {}
        for attentions, layer_norm in self.attention_blocks():
            attended = layer_norm(states) if self.normalize_before else states
            for name, attention in attentions.items():
                attended, weights = attention(attended, structure, need_weights)
                if need_weights:
                    maps[name] = weights
            states = self._add(attended, states, layer_norm)
        if keep is not None:
            states = states.narrow(0 if self.time_first else 1, 0, keep)
        states, feed_forward = self.feed_forward_block(states)
        return states, feed_forward if self.return_fc else None, maps if need_weights else None

    def feed_forward_block(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new states, and the output of the two layers. Shape of each: as the states."""
        inputs = self.final_layer_norm(states) if self.normalize_before else states
        hidden = self.activation_dropout_module(self.activation_fn(self.fc1(inputs)))
        feed_forward = self.fc2(hidden)
        return self._add(feed_forward, states, self.final_layer_norm), feed_forward

    def _add(self, block: Tensor, states: Tensor, layer_norm: nn.Module) -> Tensor:
        """Add a block's output to the states that entered it."""
        states = self.residual_connection(self.dropout_module(block), states)
        return states if self.normalize_before else layer_norm(states)


class GatedEncoderLayer(SyntaxEncoderLayer):
    """The layer with a gate of an encoder that has fairseq's layers, called as these."""

    def forward(  # type: ignore[override]
        self, x: Tensor, encoder_padding_mask: Tensor | None, attn_mask: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """Update all tokens' states, see fairseq."""
        mask = None if attn_mask is None else infinite(attn_mask.bool(), x.dtype)
        if encoder_padding_mask is not None:
            padded = padded_scores(encoder_padding_mask, x.dtype)
            mask = padded if mask is None else padded + mask
        states, feed_forward, _ = super().forward(x, mask)
        return (states, feed_forward) if self.return_fc else states


def check_attention_options(cfg: TransformerConfig) -> None:
    """Check the options that :func:`adapt_attentions` applies."""
    if not 1e-6 <= (scale := cfg.attention_start_scale) <= 1e6:
        raise UserError(f"--attention-start-scale {scale}: expected a number from 1e-6 to 1e6")
    if cfg.attention_gate and cfg.encoder.xformers_att_config:
        raise UserError("--attention-gate does not support --encoder-xformers-att-config")


def adapt_attentions(layer: Any, cfg: TransformerConfig) -> None:
    """Apply ``--attention-gate`` and ``--attention-start-scale`` to all attentions of a new layer."""
    attentions = [layer.self_attn]
    if isinstance(layer, SyntaxEncoderLayer):
        attentions = [a for block, _ in layer.attention_blocks() for a in block.values()]
    for attention in attentions:
        if cfg.attention_gate:
            if not isinstance(attention, HeadsAttention):
                kind = type(attention).__name__
                raise UserError(f"--attention-gate: derive {kind} from HeadsAttention")
            attention.add_gate()
            quant_noise(attention.gate_proj, layer.quant_noise, layer.quant_noise_block_size)
        if cfg.attention_start_scale != 1.0:
            with torch.no_grad():
                attention.out_proj.weight.mul_(cfg.attention_start_scale)


def wrap_layer(layer: nn.Module, cfg: TransformerConfig) -> nn.Module:
    """Wrap a layer for checkpointed activations and sharding, as fairseq wraps its own."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    smallest = 0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
    return cast(nn.Module, fsdp_wrap(layer, min_num_params=smallest))


def encoder_output(
    src_tokens: Tensor, padding: Tensor, **outputs: list[Any]
) -> dict[str, list[Any]]:
    """Return the dictionary that fairseq's encoders return, with empty lists for missing entries.

    Args:
        padding: True at padding. It is also ``encoder_padding_mask`` by default. Shape: (batch, tokens).
    """
    return {
        "encoder_padding_mask": [padding],
        **{name: [] for name in ("encoder_embedding", "encoder_states", "fc_results")},
        "src_tokens": [src_tokens],
        "src_lengths": [(~padding).sum(1, keepdim=True, dtype=torch.int32)],
        **outputs,
    }


class TimeFirstEncoder(FairseqEncoder):
    """An encoder with time-first states, as fairseq's. Its other outputs are batch-first."""

    def reorder_encoder_out(
        self, encoder_out: dict[str, list[Any]], new_order: Tensor
    ) -> dict[str, list[Any]]:
        """Reorder the output of :meth:`forward` for beam search; as in fairseq, without ``fc_results``.

        Args:
            encoder_out: from :meth:`forward`; not changed.
            new_order: for each new row, the index of the old row. Shape: (new rows,), int64.
        """
        time_first = ("encoder_out", "encoder_states")
        return {
            name: [tensor.index_select(int(name in time_first), new_order) for tensor in values]
            for name, values in {**encoder_out, "fc_results": []}.items()
        }


def add_neutral(
    module: nn.Module, added: Sequence[str], state: dict[str, Tensor], name: str
) -> None:
    """Add parameters that a checkpoint of fairseq's Transformer lacks, with the values of the module.

    Args:
        module: an encoder or a decoder, as it is built.
        added: names of its modules and parameters that fairseq's Transformer lacks.
        state: the checkpoint's parameters, to which the others are added.
    """
    prefix = f"{name}." if name else ""
    new = {
        prefix + key: value.detach().clone()
        for key, value in module.state_dict().items()
        if prefix + key not in state and not set(added).isdisjoint(key.split("."))
    }
    if new:
        state.update(new)
        names = ", ".join(new)
        logger.info("%d tensors are not in the checkpoint and start neutrally: %s", len(new), names)


class SyntaxEncoder(TimeFirstEncoder, TransformerEncoderBase):
    """fairseq's Transformer encoder over a structure of the source sentence.

    A method overrides :meth:`structure` and, as needed, :meth:`first_states`,
    :meth:`build_layer`, :meth:`before_layer`, :meth:`after_layers`, :meth:`decoder_nodes`,
    :meth:`extra_outputs` and :meth:`root_nodes`.

    In all methods ``src_tokens``, of shape (batch, tokens), are the source, padded on either side, and
    ``structure`` is the result of :meth:`structure`.

    Args:
        cfg: fairseq's options and the method's options.
        dictionary: the source dictionary.
    """

    layer_class: ClassVar[type[SyntaxEncoderLayer]] = SyntaxEncoderLayer
    #: Names of modules and parameters that fairseq's encoder lacks. With their initial values, the
    #: encoder computes fairseq's, if :meth:`neutral_obstacle` returns None.
    neutral_parameters: ClassVar[Sequence[str]] = ()
    _num_built: int = 0

    # Methods that an encoder overrides.

    @classmethod
    def is_plain(cls, cfg: TransformerConfig) -> bool:
        """Return whether all options are off; then fairseq's own layers and ``forward`` run."""
        return False

    @classmethod
    def neutral_obstacle(cls, cfg: TransformerConfig) -> str | None:
        """Return why the new encoder does not compute fairseq's Transformer; None if it does.

        An encoder with :attr:`neutral_parameters` starts neutrally with ``--neutral-start``; an encoder
        without this option always does.
        """
        if cls.is_plain(cfg):
            return None
        if not cls.neutral_parameters:
            return "it has no neutral start"
        return None if getattr(cfg, "neutral_start", True) else "give --neutral-start"

    def structure(self, src_tokens: Tensor, parse: ParseBatch) -> Any:
        """Make the structure of a batch, which its layers use to attend."""
        return SourceStructure(self.padding(src_tokens))

    @classmethod
    def batch_structure(
        cls, cfg: TransformerConfig, dictionary: Dictionary
    ) -> tuple[str, MakeStructure] | None:
        """Return what the collater computes from a batch's parses, to avoid waiting for a device.

        :meth:`structure` takes the tensors from ``parse.made(key)``; without them it computes them
        itself.

        Returns:
            A key that names all options of the function, and the function, which can be pickled; or None.
        """
        return None

    def first_states(
        self, src_tokens: Tensor, structure: Any, token_embeddings: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Make the states that enter the first layer.

        Returns:
            The nodes' states, tokens first, 0 at padding (shape (batch, nodes, width)), and the
            tokens' scaled embeddings (shape (batch, tokens, width)).
        """
        states, embedding = self.forward_embedding(src_tokens, token_embeddings)
        return states.masked_fill(self.padding(src_tokens).unsqueeze(-1), 0.0), embedding

    def build_layer(self, cfg: TransformerConfig, index: int) -> nn.Module:
        """Build the layer of this number in training, from 0, before it is wrapped."""
        return self.layer_class(cfg, return_fc=self.return_fc)

    def before_layer(self, index: int, states: Tensor, structure: Any) -> tuple[Tensor, Any]:
        """Return the states that enter a layer, and its structure, if layers have different ones.

        Args:
            index: the layer's number in training, from 0; some may be omitted or pruned.
            states: the nodes' states, shaped as the layers take them.
        """
        return states, structure[index] if isinstance(structure, PerLayer) else structure

    @classmethod
    def causal_obstacle(cls, cfg: TransformerConfig, window: CausalWindow) -> str | None:
        """Return why it cannot be masked causally; None if it can, by :meth:`causal_structure`."""
        return None if cls.is_plain(cfg) else "its nodes depend on words on both sides"

    def causal_structure(self, structure: Any, window: CausalWindow) -> Any:
        """Return a structure without the future: one for all layers, or :class:`PerLayer`."""
        raise NotImplementedError

    def after_layers(self, states: Tensor, structure: Any) -> Tensor:
        """Change the states of the decoder's nodes before the last norm. Shape: as the states."""
        return states

    def decoder_nodes(self, src_tokens: Tensor, structure: Any) -> int | None:
        """Return how many of the first nodes the decoder attends to; None for all."""
        return None

    def extra_outputs(self, structure: Any) -> dict[str, list[Any]]:
        """Return additional decoder inputs; tensors are batch-first and reordered with the beams.

        ``encoder_padding_mask`` is True at padding of the decoder's nodes, if these are not the tokens.
        """
        return {}

    def root_nodes(self, encoded: dict[str, list[Any]], parse: ParseBatch) -> Tensor | None:
        """Find the root node of each sentence, for models that pool the sentence from it.

        By default it is the first token of the word that is its own head.

        Returns:
            Indices among the nodes of ``encoder_out``; None if the encoder does not read trees.
            Shape: (batch,), int64.
        """
        if "heads" not in parse:
            return None
        heads = parse["heads"]
        is_root = heads == torch.arange(heads.size(1), device=heads.device)
        return (parse["words"] == is_root.long().argmax(1, keepdim=True)).long().argmax(1)

    def node_members(self, src_tokens: Tensor, structure: Any) -> list[list[tuple[int, ...]]]:
        """List the tokens of each node of each sentence, for pictures; empty at padding."""
        is_token = (~self.padding(src_tokens)).tolist()
        return [[(i,) if real else () for i, real in enumerate(row)] for row in is_token]

    # What all encoders share. Options in addition to the method's:
    shared_options: ClassVar[type] = AttentionOptions

    def padding(self, src_tokens: Tensor) -> Tensor:
        """Return True at padding. Shape: (batch, tokens)."""
        return src_tokens.eq(self.padding_idx)

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """Build a layer, wrapped as fairseq wraps its own."""
        check_heads(cfg, "encoder")
        check_attention_options(cfg)
        if self.is_plain(cfg):
            kind = GatedEncoderLayer if cfg.attention_gate else TransformerEncoderLayerBase
            layer: nn.Module = kind(cfg, return_fc=self.return_fc)
        else:
            index, self._num_built = kept_layers(cfg)[self._num_built], self._num_built + 1
            layer = self.build_layer(cfg, index)
            layer.index = index  # type: ignore[assignment]
        adapt_attentions(layer, cfg)
        return wrap_layer(layer, cfg)

    def upgrade_state_dict_named(
        self, state_dict: dict[str, Tensor], name: str
    ) -> dict[str, Tensor]:
        """Add the neutral parameters to a checkpoint of fairseq's Transformer; see fairseq."""
        super().upgrade_state_dict_named(state_dict, name)
        # fairseq prunes later, so the names of a pruned encoder's layers differ from the checkpoint's.
        if neutral_obstacle(self, self.cfg) is None and not self.cfg.encoder.layers_to_keep:
            add_neutral(self, self.neutral_parameters, state_dict, name)
        return state_dict

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
        causal: CausalWindow | None = None,
        **parse: Tensor,
    ) -> dict[str, list[Any]]:
        """Encode a batch.

        Args:
            token_embeddings: embeddings to use instead of the table's.
            causal: the window of visible positions; None for all. Only for an encoder without
                :meth:`causal_obstacle`.
            **parse: the batch's parse, ``src_words``, ``src_heads``, …
                (:class:`~fairseq_phrase.methods.common.parse_batch.ParseBatch`). It may include
                fields that only another model of an ensemble needs.

        Returns:
            The output of fairseq's encoder, for the nodes that the decoder attends to: ``encoder_out``
            (shape (nodes, batch, width), time-first), ``encoder_padding_mask``
            (``(batch, nodes)``), ``encoder_states`` (as ``encoder_out``), ``encoder_embedding``
            (``(batch, tokens, width)``), ``src_tokens`` (which fairseq leaves out) and so on; and
            :meth:`extra_outputs`.
        """
        if self.is_plain(self.cfg):
            if causal is not None:
                return self._plain_causal(src_tokens, causal, token_embeddings)
            plain = super().forward(src_tokens, src_lengths, return_all_hiddens, token_embeddings)
            return {**plain, "src_tokens": [src_tokens]}
        structure = self.structure(src_tokens, self.cfg.labels.read(parse))
        of_layers = structure if causal is None else self.causal_structure(structure, causal)
        states, embedding = self.first_states(src_tokens, structure, token_embeddings)
        size = self.decoder_nodes(src_tokens, structure)
        time_first = self.layer_class.time_first
        states = states.transpose(0, 1) if time_first else states
        hidden, feed_forwards = [states] if return_all_hiddens else [], []
        # In the last layer, nodes that the decoder does not read skip the feed-forward block.
        last = self.layers[-1] if len(self.layers) else None
        for layer in self.layers:
            keep = size if layer is last else None
            states, of_layer = self.before_layer(layer.index, states, of_layers)
            states, feed_forward, _ = layer(states, of_layer, keep=keep)
            if return_all_hiddens:
                hidden.append(states)
                feed_forwards.append(feed_forward)

        def decoder_states(layer_states: Tensor) -> Tensor:
            """Shape: (nodes, batch, width), for the nodes that the decoder attends to."""
            layer_states = layer_states if time_first else layer_states.transpose(0, 1)
            return layer_states if size is None else layer_states[:size]

        # All nodes are left if there are no layers, or --encoder-layerdrop omits the last one.
        states = self.after_layers(states if size is None else self._first(states, size), structure)
        hidden[-1:] = [states][: len(hidden)]
        if self.layer_norm is not None:
            states = self.layer_norm(states)
        return encoder_output(
            src_tokens, self.padding(src_tokens), encoder_out=[decoder_states(states)],
            encoder_states=[decoder_states(layer_states) for layer_states in hidden],
            encoder_embedding=[embedding], fc_results=feed_forwards, **self.extra_outputs(structure),
        )  # fmt: skip

    def _first(self, states: Tensor, count: int) -> Tensor:
        return states.narrow(0 if self.layer_class.time_first else 1, 0, count)

    def _plain_causal(
        self, src_tokens: Tensor, causal: CausalWindow, token_embeddings: Tensor | None
    ) -> dict[str, list[Any]]:
        """Encode with fairseq's own layers and a causal mask, which fairseq's ``forward`` cannot take."""
        states, embedding = self.forward_embedding(src_tokens, token_embeddings)
        padding_mask = self.padding(src_tokens)
        states = states.masked_fill(padding_mask.unsqueeze(-1), 0.0).transpose(0, 1)
        dtype = states.dtype
        # Inverted: fairseq's layer masks the pairs with a value other than 0.
        masks = causal.per_layer(len(self.layers), src_tokens, lambda visible: (~visible).to(dtype))
        # --encoder-layerdrop omits layers, so masks may outnumber layers.
        for layer, mask in zip(self.layers, masks, strict=False):
            states = layer(states, encoder_padding_mask=padding_mask, attn_mask=mask)
            states = states[0] if isinstance(states, tuple) else states
        if self.layer_norm is not None:
            states = self.layer_norm(states)
        return encoder_output(
            src_tokens, padding_mask, encoder_out=[states], encoder_embedding=[embedding]
        )

    def attention_maps(
        self, src_tokens: Tensor, src_lengths: Tensor | None = None, **parse: Tensor
    ) -> tuple[Any, list[dict[str, Tensor]]]:
        """Compute the attention weights of every layer; for the arguments see :meth:`forward`.

        Returns:
            The structure; and for each layer the weights of its attentions by name, before dropout.
            Shape of each: (batch, heads, nodes, nodes).
        """
        if self.is_plain(self.cfg):
            return self._plain_attention_maps(src_tokens)
        structure = self.structure(src_tokens, self.cfg.labels.read(parse))
        states, _ = self.first_states(src_tokens, structure)
        states = states.transpose(0, 1) if self.layer_class.time_first else states
        maps = []
        for layer in self.layers:
            states, of_layer = self.before_layer(layer.index, states, structure)
            states, _, weights = layer(states, of_layer, need_weights=True)
            maps.append(weights)
        return structure, maps

    def _plain_attention_maps(self, src_tokens: Tensor) -> tuple[Any, list[dict[str, Tensor]]]:
        """Compute the weights of fairseq's own layers from the layers' input states."""
        padding_mask = self.padding(src_tokens)
        encoded = super().forward(src_tokens, return_all_hiddens=True)
        maps = []
        for layer, states in zip(self.layers, encoded["encoder_states"], strict=False):
            inputs = layer.self_attn_layer_norm(states) if layer.normalize_before else states
            if isinstance(layer, GatedEncoderLayer):
                _, weights = layer.self_attn(inputs, SourceStructure(padding_mask), True)
                maps.append({"all nodes": weights})
                continue
            # static_kv: else fairseq calls torch's function, which averages the heads.
            _, weights = layer.self_attn(
                inputs, inputs, inputs, padding_mask, need_head_weights=True, static_kv=True
            )
            # (heads, batch, queries, keys) -> (batch, heads, queries, keys)
            maps.append({"all nodes": weights.transpose(0, 1)})
        return SourceStructure(padding_mask), maps
