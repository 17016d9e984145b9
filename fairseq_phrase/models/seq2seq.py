"""``--arch seq2seq``: a recurrent decoder with attention, after a recurrent or any registered encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from fairseq.models import FairseqEncoderDecoderModel, FairseqIncrementalDecoder
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from fairseq.modules import FairseqDropout
from torch import Tensor, nn
from torch.nn.functional import linear

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.config import nested_config
from fairseq_phrase.methods.copying.copying_decoder import copies, copying_class
from fairseq_phrase.methods.recurrent.attentive_layers import (
    CELLS,
    AttentiveLayers,
    CellState,
    DecoderState,
    InitialState,
    Readout,
    both_directions,
    initialize,
)
from fairseq_phrase.methods.recurrent.bidirectional import run_packed
from fairseq_phrase.methods.recurrent.source_attention import (
    BilinearSelfAttention,
    PlainSelfAttention,
    SourceAttention,
    SourceStates,
)
from fairseq_phrase.methods.syntax_decoder import over_tokens
from fairseq_phrase.methods.syntax_encoder import TimeFirstEncoder, encoder_output
from fairseq_phrase.models.named_encoder import (
    NamedEncoderModel,
    build_named_encoder,
    register_named_model,
    report_other_encoders,
)
from fairseq_phrase.models.seq2seq_options import (
    RECURRENT,
    Seq2SeqOptions,
    check_options,
    encoder_width,
)
from fairseq_phrase.models.syntax_task import SyntaxTask

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary

_SELF_ATTENTION = {"plain": PlainSelfAttention, "bilinear": BilinearSelfAttention}


class Seq2SeqEncoder(TimeFirstEncoder):
    """Recurrent layers, and self-attention over their states if the options ask for it."""

    #: Only the decoder has attention maps to draw.
    is_recurrent = True

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        super().__init__(dictionary)
        self.embed_tokens = embed_tokens
        self.padding_idx = dictionary.pad()
        self.max_source_positions = cfg.max_source_positions
        self.dropout_module = FairseqDropout(cfg.dropout, module_name=type(self).__name__)
        self.output_width = encoder_width(cfg)
        self.layers: nn.RNNBase | None = None
        if cfg.encoder.layers:
            self.layers = CELLS[str(cfg.cell)](
                cfg.encoder.embed_dim,
                cfg.encoder_hidden_size,
                cfg.encoder.layers,
                dropout=cfg.dropout if cfg.encoder.layers > 1 else 0.0,
                bidirectional=cfg.encoder_bidirectional,
                batch_first=True,
            )
            initialize(self.layers)
        self.self_attention: nn.Module | None = None
        if cfg.self_attention != "none":
            kind = _SELF_ATTENTION[str(cfg.self_attention)]
            self.self_attention = kind(self.output_width, cfg.encoder.attention_heads)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        **parse: Tensor,
    ) -> dict[str, list[Any]]:
        """Encode a batch, see :meth:`SyntaxEncoder.forward`. Its states are only the last layer's.

        Returns:
            The output of fairseq's Transformer encoder, and ``last_hidden`` and ``last_cell``, the last
            state of each layer, of shape (batch, layers, width).
        """
        padding = src_tokens.eq(self.padding_idx)
        embedding = self.dropout_module(self.embed_tokens(src_tokens))
        states, last = embedding, None
        if self.layers is not None:
            states, last = self._recurrent(embedding, padding)
            states = self.dropout_module(states)
        if self.self_attention is not None:
            states = self.self_attention(states, padding)
        if last is None:
            last = mean_state(states, padding)
        return encoder_output(
            src_tokens,
            padding,
            encoder_out=[states.transpose(0, 1)],
            encoder_embedding=[embedding],
            last_hidden=[last.hidden.transpose(0, 1)],
            last_cell=[] if last.cell is None else [last.cell.transpose(0, 1)],
        )

    def _recurrent(self, embedding: Tensor, padding: Tensor) -> tuple[Tensor, CellState]:
        """Run the layers over unpadded tokens.

        Returns:
            The last layer's states, of shape (batch, tokens, width), and every layer's last state.
        """
        assert self.layers is not None
        if bool(padding.any()):
            states, last = run_packed(self.layers, embedding, padding)
        else:
            states, last = self.layers(embedding)
        state = CellState(*last) if isinstance(last, tuple) else CellState(last)
        return states, both_directions(state) if self.layers.bidirectional else state

    def max_positions(self) -> int:
        """Return the length of the longest source."""
        return int(self.max_source_positions)


def mean_state(states: Tensor, padding: Tensor) -> CellState:
    """Return the mean over tokens as a last state without memory. Shape: (1, batch, width).

    Args:
        states: Shape: (batch, tokens, width)
        padding: True at padding. Shape: (batch, tokens)
    """
    real = (~padding).to(states.dtype).unsqueeze(-1)
    return CellState(((states * real).sum(1) / real.sum(1)).unsqueeze(0))


IncrementalState = dict[str, dict[str, Tensor | None]]
_KEPT = "recurrent_state"


class Seq2SeqDecoder(FairseqIncrementalDecoder):
    """Recurrent layers that attend to the encoder's nodes."""

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        super().__init__(dictionary)
        self.embed_tokens = embed_tokens
        self.max_target_positions = cfg.max_target_positions
        self.dropout_module = FairseqDropout(cfg.dropout, module_name=type(self).__name__)
        cell, width, source_width = str(cfg.cell), cfg.decoder_hidden_size, encoder_width(cfg)
        embed_dim = embed_tokens.embedding_dim
        attention = readout = None
        if cfg.attention != "none":
            names = str(cfg.attention), str(cfg.attention_window)
            attention = SourceAttention(names[0], width, source_width, names[1])
            readout = Readout(source_width, width, embed_dim)
        self.initial_state = InitialState(cell, source_width, width, cfg.decoder.layers)
        self.layers = AttentiveLayers(
            cell, embed_dim, width, cfg.decoder.layers, attention, readout,
            before=cfg.attention_time == "before", input_feeding=cfg.input_feeding,
            dropout=cfg.dropout, source_width=source_width,
        )  # fmt: skip
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
        # The encoder's states, once for each row of a beam.
        source = _source_of(encoder_out, rows)
        # A search continues from the state kept by its last step, and reads only the new tokens.
        state = self._state(encoder_out, rows, incremental_state, length)
        if incremental_state is not None:
            prev_output_tokens = prev_output_tokens[:, state.step :]
        # The recurrent layers attend at each token, before or after the recurrent step.
        inputs = self.dropout_module(self.embed_tokens(prev_output_tokens))
        features, weights, state = self.layers(inputs, source, state)
        self._keep(incremental_state, state)
        # fairseq's scorer of references sums the items of an ensemble's lists, and skips None.
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
    ) -> DecoderState:
        """Return the state before the first new token."""
        buffer = self.get_incremental_state(incremental_state, _KEPT) if incremental_state else None
        if buffer is None:
            return DecoderState(self.initial_state(_last_state(encoder_out, rows)))
        hidden, memory = buffer["hidden"], buffer.get("cell")
        assert hidden is not None
        cells = CellState(
            hidden.transpose(0, 1), None if memory is None else memory.transpose(0, 1)
        )
        # Each step of a search reads one token: length - 1 are read already.
        return DecoderState(cells, buffer.get("fed"), length - 1, buffer.get("keys"))

    def _keep(self, incremental_state: IncrementalState | None, state: DecoderState) -> None:
        """Store the state for the next step; all tensors have one entry for each row."""
        if incremental_state is None:
            return
        # Rows become the first dimension, along which beam search reorders.
        memory = state.cells.cell
        buffer = {
            "hidden": state.cells.hidden.transpose(0, 1),
            "cell": None if memory is None else memory.transpose(0, 1),
            "fed": state.fed,
            "keys": state.keys,
        }
        self.set_incremental_state(incremental_state, _KEPT, buffer)

    def reorder_incremental_state(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Reorder the rows for beam search.

        Args:
            new_order: for each new row, the index of the old row. Shape: (new rows,), int64.
        """
        buffer = self.get_incremental_state(incremental_state, _KEPT)
        if buffer is not None:
            reordered = {
                name: None if value is None else value.index_select(0, new_order)
                for name, value in buffer.items()
            }
            self.set_incremental_state(incremental_state, _KEPT, reordered)

    def max_positions(self) -> int:
        """Return the length of the longest target."""
        return int(self.max_target_positions)


def _rows(values: Tensor, rows: int) -> Tensor:
    """Repeat sentences for the rows of their beams: some encoders keep each sentence only once."""
    return values if len(values) == rows else values.repeat_interleave(rows // len(values), 0)


def _source_of(encoder_out: dict[str, list[Any]], rows: int) -> SourceStates:
    (states,), masks = encoder_out["encoder_out"], encoder_out["encoder_padding_mask"]
    # Time-first to batch-first: (nodes, batch, width) -> (batch, nodes, width)
    states = states.transpose(0, 1)
    # As in fairseq, an encoder may return an empty list of masks if nothing is padded.
    padding = masks[0] if masks else states.new_zeros(states.shape[:2]).bool()
    return SourceStates(_rows(states, rows), _rows(padding, rows))


def _last_state(encoder_out: dict[str, list[Any]], rows: int) -> CellState:
    """Return the last state of a recurrent encoder, or the mean over the nodes of another."""
    if "last_hidden" not in encoder_out:
        source = _source_of(encoder_out, rows)
        return mean_state(source.states, source.padding)
    hidden, memory = (
        [_rows(states, rows).transpose(0, 1) for states in encoder_out[name]]
        for name in ("last_hidden", "last_cell")
    )
    return CellState(hidden[0], memory[0] if memory else None)


def _sizes(width: int, **options: Any) -> dict[str, Any]:
    names = ("embed_dim", "hidden_size")
    return {f"{side}_{name}": width for side in ("encoder", "decoder") for name in names} | options


@register_named_model(
    "seq2seq",
    options=Seq2SeqOptions,
    presets={
        "tiny": _sizes(128),
        # As fairseq's lstm_luong_wmt_en_de.
        "luong_wmt_en_de": _sizes(
            1000, encoder_layers=4, decoder_layers=4, input_feeding=True, attention_window="local-p"
        ),
    },
)
class Seq2SeqModel(NamedEncoderModel, FairseqEncoderDecoderModel):
    """A recurrent translation model, with options from no attention to local attention.

    The mathematics is in ``docs/models/recurrent.md``.
    """

    def __init__(self, cfg: TransformerConfig, encoder: Any, decoder: Any) -> None:
        super().__init__(encoder, decoder)
        self.cfg = cfg

    @classmethod
    def build_model(cls, cfg: Any, task: SyntaxTask) -> Seq2SeqModel:
        """Build the model, and ask the task for the parses that its encoder needs."""
        cfg = nested_config(cfg)
        check_options(cfg)
        source_embedding, target_embedding = _embeddings(cfg, task)
        if cfg.encoder_name == RECURRENT:
            report_other_encoders(cfg, RECURRENT)
            encoder = Seq2SeqEncoder(cfg, task.source_dictionary, source_embedding)
        else:
            encoder = build_named_encoder(cfg, task, task.source_dictionary, source_embedding)
        target = task.target_dictionary
        if not copies(cfg, is_recurrent=True):
            return cls(cfg, encoder, Seq2SeqDecoder(cfg, target, target_embedding))
        decoder = copying_class(Seq2SeqDecoder)(cfg, target, target_embedding)
        from fairseq_phrase.data.store.data_directory import check_copying

        check_copying(task)
        decoder.start_copying(str(cfg.copy), encoder_width(cfg), task)
        return cls(cfg, encoder, decoder)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None,
        prev_output_tokens: Tensor,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        **parses: Tensor,
    ) -> tuple[Tensor, dict[str, list[Any]]]:
        """Encode, and decode the whole target; for the arguments see :class:`SyntaxTransformerModel`."""
        encoder_out = self.encoder(
            src_tokens, src_lengths=src_lengths, return_all_hiddens=return_all_hiddens, **parses
        )
        return cast(
            tuple[Tensor, dict[str, list[Any]]],
            self.decoder(prev_output_tokens, encoder_out=encoder_out, features_only=features_only),
        )


def _embeddings(cfg: TransformerConfig, task: SyntaxTask) -> tuple[nn.Embedding, nn.Embedding]:
    """Make source and target embeddings; with ``--share-all-embeddings`` both are one module."""
    build = TransformerModelBase.build_embedding
    source = build(cfg, task.source_dictionary, cfg.encoder.embed_dim, cfg.encoder.embed_path)
    if not cfg.share_all_embeddings:
        path = cfg.decoder.embed_path
        return source, build(cfg, task.target_dictionary, cfg.decoder.embed_dim, path)
    if task.source_dictionary != task.target_dictionary:
        raise UserError(
            "--share-all-embeddings needs one dictionary of both languages: make the data with "
            "--joined-dictionary"
        )
    if cfg.encoder.embed_dim != cfg.decoder.embed_dim:
        raise UserError(
            f"--share-all-embeddings needs one width: --encoder-embed-dim {cfg.encoder.embed_dim} and "
            f"--decoder-embed-dim {cfg.decoder.embed_dim}"
        )
    cfg.share_decoder_input_output_embed = True
    return source, source
