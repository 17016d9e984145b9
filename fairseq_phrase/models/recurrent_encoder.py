"""Recurrent encoders, chosen by ``--encoder``: what they share, and the bidirectional LSTM."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fairseq.models import FairseqEncoder
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import FairseqDropout
from torch import Tensor, nn
from torch.nn.functional import pad

from fairseq_phrase.errors import UserError
from fairseq_phrase.models.encoder_method import register_encoder
from fairseq_phrase.models.syntax_encoder import encoder_output
from fairseq_phrase.modules.parse_batch import ParseBatch
from fairseq_phrase.modules.recurrent.bidirectional import BidirectionalLayer

_TIME_FIRST = ("encoder_out", "encoder_states")


class TimeFirstEncoder(FairseqEncoder):
    """An encoder whose states are time-first, as fairseq's are. All else in its output is batch-first."""

    def reorder_encoder_out(
        self, encoder_out: dict[str, list[Any]], new_order: Tensor
    ) -> dict[str, list[Any]]:
        """Reorder the output of :meth:`forward`, see :meth:`SyntaxEncoder.reorder_encoder_out`."""
        return {
            name: [each.index_select(int(name in _TIME_FIRST), new_order) for each in values]
            for name, values in encoder_out.items()
        }


class RecurrentEncoder(TimeFirstEncoder):
    """What recurrent encoders share: embeddings, and the dictionary that fairseq's encoders return.

    All states have the width ``--encoder-embed-dim``. ``--encoder-layers`` is the number of recurrent
    layers. ``--dropout`` is applied to the embeddings and between layers. Embeddings are scaled as in the
    Transformer (``--no-scale-embedding``), but there are no positions.
    """

    #: There are no attention maps to draw, but those of a decoder.
    is_recurrent = True

    def __init__(self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(dictionary)
        self.cfg = cfg
        self.embed_tokens = embed_tokens
        self.padding_idx = dictionary.pad()
        self.num_layers = cfg.encoder.layers
        self.embed_scale = 1.0 if cfg.no_scale_embedding else math.sqrt(embed_tokens.embedding_dim)
        self.dropout_module = FairseqDropout(cfg.dropout, module_name=type(self).__name__)

    def encode(
        self, embedding: Tensor, src_tokens: Tensor, padding_mask: Tensor, parse: ParseBatch
    ) -> tuple[list[Tensor], Tensor, dict[str, list[Any]]]:
        """Compute the states of a batch.

        Args:
            embedding: the tokens' scaled embeddings with dropout. Shape: (batch, tokens, width).
            src_tokens, padding_mask: source, and True at padding. Shape of each: (batch, tokens).

        Returns:
            The nodes' states after each layer, tokens first (shape (batch, nodes, width)), True at
            padded nodes (shape (batch, nodes)), and what else the output has, by name: batch-first
            tensors, which are reordered with the beams.

        Raises:
            ValueError: the batch does not carry the parse that the encoder needs.
        """
        raise NotImplementedError

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
        **parse: Tensor,
    ) -> dict[str, list[Any]]:
        """Encode a batch; arguments and output are those of :meth:`SyntaxEncoder.forward`.

        ``encoder_states`` are the embeddings and each layer's states, 0 at nodes that a layer does not
        compute.
        """
        padding_mask = src_tokens.eq(self.padding_idx)
        found = self.embed_tokens(src_tokens) if token_embeddings is None else token_embeddings
        embedding = self.embed_scale * found
        inputs = self.dropout_module(embedding).masked_fill(padding_mask.unsqueeze(2), 0.0)
        layers, node_padding, further = self.encode(
            inputs, src_tokens, padding_mask, ParseBatch.from_net_input(parse)
        )
        hidden = [inputs, *layers] if return_all_hiddens else []
        nodes = node_padding.size(1)
        return encoder_output(
            src_tokens,
            padding_mask,
            encoder_out=[layers[-1].transpose(0, 1)],
            encoder_padding_mask=[node_padding],
            encoder_embedding=[embedding],
            # (batch, nodes so far, width) -> (nodes, batch, width)
            encoder_states=[
                pad(each, (0, 0, 0, nodes - each.size(1))).transpose(0, 1) for each in hidden
            ],
            **further,
        )

    def root_nodes(self, encoded: dict[str, list[Any]], parse: ParseBatch) -> Tensor | None:
        """Find the node of each sentence, see :meth:`SyntaxEncoder.root_nodes`; None without one."""
        return encoded["roots"][0] if "roots" in encoded else None

    def max_positions(self) -> int:
        """Return the largest number of tokens, ``--max-source-positions``."""
        return int(self.cfg.max_source_positions)


def check_width(cfg: Any) -> Sequence[str]:
    """Check that the width can be shared by two directions; no parse is needed.

    Raises:
        UserError: it is odd.
    """
    if cfg.encoder.embed_dim % 2:
        raise UserError(
            f"--encoder-embed-dim {cfg.encoder.embed_dim}: the two directions of a recurrent layer "
            "have half of it each, so it must be even"
        )
    return []


@register_encoder("lstm", parse_fields=check_width, rows={"BiLSTM": {}}, translation=False)
class LSTMEncoder(RecurrentEncoder):
    """A bidirectional LSTM; each direction has half of ``--encoder-embed-dim``."""

    def __init__(self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        width = cfg.encoder.embed_dim
        inputs = [embed_tokens.embedding_dim] + [width] * (cfg.encoder.layers - 1)
        self.layers = nn.ModuleList(
            BidirectionalLayer("lstm", input_dim=each, output_dim=width) for each in inputs
        )

    def encode(
        self, embedding: Tensor, src_tokens: Tensor, padding_mask: Tensor, parse: ParseBatch
    ) -> tuple[list[Tensor], Tensor, dict[str, list[Any]]]:
        """Compute the states of a batch, see the base class."""
        states, of_layers = embedding, []
        for number, layer in enumerate(self.layers):
            states = layer(self.dropout_module(states) if number else states, padding_mask)
            of_layers.append(states)
        return of_layers, padding_mask, {}
