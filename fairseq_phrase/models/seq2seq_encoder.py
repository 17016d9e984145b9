"""The recurrent encoder: LSTM or GRU over the source, in one direction or both."""

from __future__ import annotations

from typing import Any

from fairseq.models.transformer import TransformerConfig
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from fairseq_phrase.models.recurrent_encoder import TimeFirstEncoder
from fairseq_phrase.models.syntax_encoder import encoder_output
from fairseq_phrase.modules.recurrent.bidirectional import run_packed
from fairseq_phrase.modules.recurrent_attention.cells import (
    CELLS,
    CellState,
    both_directions,
    initialize,
)
from fairseq_phrase.modules.recurrent_attention.self_attention import (
    BilinearSelfAttention,
    PlainSelfAttention,
)

_SELF_ATTENTION = {"plain": PlainSelfAttention, "bilinear": BilinearSelfAttention}


#: The value of ``--encoder`` for this encoder, the only one that is not registered.
RECURRENT = "recurrent"


def encoder_width(cfg: Any) -> int:
    """Return the width of the encoder's states."""
    if cfg.encoder_name != RECURRENT or not cfg.encoder.layers:
        return int(cfg.encoder.embed_dim)
    return int(cfg.encoder_hidden_size * (2 if cfg.encoder_bidirectional else 1))


class Seq2SeqEncoder(TimeFirstEncoder):
    """Recurrent layers, and self-attention over their states if the options ask for it.

    Args:
        cfg: fairseq's nested options with
            :class:`~fairseq_phrase.models.seq2seq.Seq2SeqOptions`.
        dictionary: the source dictionary.
    """

    #: There are no attention maps to draw, but those of the decoder.
    is_recurrent = True

    def __init__(self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Embedding) -> None:
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
        """Encode a batch, see :meth:`SyntaxEncoder.forward`. There are only the last layer's states.

        Returns:
            What fairseq's Transformer encoder returns, and ``last_hidden`` and ``last_cell``, the last
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
    """Make a last state of an encoder that is not recurrent: the mean over its tokens.

    Args:
        states: Shape: (batch, tokens, width)
        padding: True at padding. Shape: (batch, tokens)

    Returns:
        A state without memory, of shape (1, batch, width).
    """
    real = (~padding).to(states.dtype).unsqueeze(-1)
    return CellState(((states * real).sum(1) / real.sum(1)).unsqueeze(0))
