"""The recurrent decoder with attention, for any encoder."""

from __future__ import annotations

from typing import Any, cast

from fairseq.models import FairseqIncrementalDecoder
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import FairseqDropout
from torch import Tensor, nn
from torch.nn.functional import linear

from fairseq_phrase.models.seq2seq_encoder import encoder_width, mean_state
from fairseq_phrase.models.syntax_decoder import over_tokens
from fairseq_phrase.modules.recurrent_attention.attentive_layers import (
    AttentiveLayers,
    DecoderState,
    Readout,
)
from fairseq_phrase.modules.recurrent_attention.cells import CellState, InitialState, initialize
from fairseq_phrase.modules.recurrent_attention.source_attention import Source, SourceAttention

IncrementalState = dict[str, dict[str, Tensor | None]]
_KEPT = "recurrent_state"


class Seq2SeqDecoder(FairseqIncrementalDecoder):
    """Recurrent layers that attend to the encoder's nodes.

    Args:
        cfg: fairseq's nested options with
            :class:`~fairseq_phrase.models.seq2seq.Seq2SeqOptions`.
        dictionary: the target dictionary.
    """

    def __init__(self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(dictionary)
        self.embed_tokens = embed_tokens
        self.max_target_positions = cfg.max_target_positions
        self.dropout_module = FairseqDropout(cfg.dropout, module_name=type(self).__name__)
        cell, width, source_width = str(cfg.cell), cfg.decoder_hidden_size, encoder_width(cfg)
        embed_dim = embed_tokens.embedding_dim
        attention = readout = None
        if cfg.attention != "none":
            names = str(cfg.attention), str(cfg.attention_window)
            attention = SourceAttention(names[0], width, source_width, names[1], cfg.window_size)
            output_width = embed_dim if cfg.attention_output == "tanh" else None
            readout = Readout(source_width, width, output_width)
        self.initial_state = InitialState(cell, source_width, width, cfg.decoder.layers)
        self.layers = AttentiveLayers(
            cell,
            embed_dim,
            width,
            cfg.decoder.layers,
            attention,
            readout,
            before=cfg.attention_time == "before",
            input_feeding=cfg.input_feeding,
            dropout=cfg.dropout,
            source_width=source_width,
        )
        #: The width of features, which the output layer reads.
        self.output_embed_dim = self.layers.output_width
        self.output_projection: nn.Linear | None = None
        if not cfg.share_decoder_input_output_embed:
            self.output_projection = nn.Linear(self.output_embed_dim, len(dictionary))
            initialize(self.output_projection)

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Any]],
        incremental_state: IncrementalState | None = None,
        features_only: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Decode, as fairseq's Transformer decoder does.

        Args:
            prev_output_tokens: target, shifted right. Shape: (rows, target tokens).
            features_only: leave the output layer out.
            **kwargs: options of fairseq's Transformer decoder, not used.

        Returns:
            The scores of words, of shape (rows, target tokens, words), and ``attn``, a list of the
            attention weights, of shape (rows, target tokens, source tokens), or None without
            attention.
        """
        features, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state)
        return features if features_only else self.output_layer(features), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Any]],
        incremental_state: IncrementalState | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Decode without the output layer; for the arguments see :meth:`forward`."""
        rows, length = prev_output_tokens.shape
        source = _source_of(encoder_out, rows)
        state, keys = self._state(encoder_out, rows, incremental_state, length)
        if incremental_state is not None:
            prev_output_tokens = prev_output_tokens[:, state.step :]
        if keys is None and self.layers.attention is not None:
            keys = self.layers.attention.score.keys(source.states)
        inputs = self.dropout_module(self.embed_tokens(prev_output_tokens))
        features, weights, state = self.layers(inputs, source, state, keys)
        self._keep(incremental_state, state, keys)
        # fairseq's scorer of references adds up what an ensemble's lists hold, and leaves None out.
        attention = None if weights is None else [over_tokens(weights, encoder_out)]
        return features, {"attn": attention, "inner_states": []}

    def output_layer(self, features: Tensor, **kwargs: Any) -> Tensor:
        """Score words. Shape: (rows, target tokens, words)."""
        if self.output_projection is None:
            return linear(features, self.embed_tokens.weight)
        return cast(Tensor, self.output_projection(features))

    def _state(
        self,
        encoder_out: dict[str, list[Any]],
        rows: int,
        incremental_state: IncrementalState | None,
        length: int,
    ) -> tuple[DecoderState, Tensor | None]:
        """Return the state before the first new token, and the attention's keys if they are kept."""
        kept = self.get_incremental_state(incremental_state, _KEPT) if incremental_state else None
        if kept is None:
            return DecoderState(self.initial_state(_last_state(encoder_out, rows))), None
        hidden, memory = kept["hidden"], kept.get("cell")
        assert hidden is not None
        cells = CellState(
            hidden.transpose(0, 1), None if memory is None else memory.transpose(0, 1)
        )
        return DecoderState(cells, kept.get("fed"), length - 1), kept.get("keys")

    def _keep(
        self, incremental_state: IncrementalState | None, state: DecoderState, keys: Tensor | None
    ) -> None:
        """Keep what the next step needs; all tensors have one entry for each row."""
        if incremental_state is None:
            return
        memory = state.cells.cell
        kept = {
            "hidden": state.cells.hidden.transpose(0, 1),
            "cell": None if memory is None else memory.transpose(0, 1),
            "fed": state.fed,
            "keys": keys,
        }
        self.set_incremental_state(incremental_state, _KEPT, kept)

    def reorder_incremental_state(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Reorder the rows for beam search.

        Args:
            new_order: for each new row, the index of the old row. Shape: (new rows,), int64.
        """
        kept = self.get_incremental_state(incremental_state, _KEPT)
        if kept is not None:
            reordered = {
                name: None if value is None else value.index_select(0, new_order)
                for name, value in kept.items()
            }
            self.set_incremental_state(incremental_state, _KEPT, reordered)

    def max_positions(self) -> int:
        """Return the length of the longest target."""
        return int(self.max_target_positions)


def _rows(values: Tensor, rows: int) -> Tensor:
    """Repeat sentences for their rows: some encoders keep a sentence once for its beam."""
    return values if len(values) == rows else values.repeat_interleave(rows // len(values), 0)


def _source_of(encoder_out: dict[str, list[Any]], rows: int) -> Source:
    (states,), masks = encoder_out["encoder_out"], encoder_out["encoder_padding_mask"]
    # Time-first to batch-first: (nodes, batch, width) -> (batch, nodes, width)
    states = states.transpose(0, 1)
    padding = masks[0] if masks else states.new_zeros(states.shape[:2]).bool()
    return Source(_rows(states, rows), _rows(padding, rows))


def _last_state(encoder_out: dict[str, list[Any]], rows: int) -> CellState:
    """Return the encoder's last state; of one that is not recurrent, the mean over its nodes."""
    if "last_hidden" not in encoder_out:
        source = _source_of(encoder_out, rows)
        return mean_state(source.states, source.padding)
    hidden, memory = (
        [_rows(each, rows).transpose(0, 1) for each in encoder_out[name]]
        for name in ("last_hidden", "last_cell")
    )
    return CellState(hidden[0], memory[0] if memory else None)
