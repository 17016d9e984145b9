"""Recurrent encoders, chosen by ``--encoder``: LSTM, Tree-LSTM and hierarchical attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import FairseqDropout
from torch import Tensor, nn
from torch.nn.functional import pad

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.methods.encoder_method import option, register_encoder
from fairseq_phrase.methods.recurrent.bidirectional import BidirectionalLayer
from fairseq_phrase.methods.recurrent.hierarchical_attention import (
    HierarchicalAttention,
    SentenceBatch,
    by_dependencies,
)
from fairseq_phrase.methods.recurrent.tree_lstm import (
    BinaryTreeLSTM,
    ChildSumTreeLSTM,
    constituency_trees,
    dependency_trees,
)
from fairseq_phrase.methods.syntax_encoder import TimeFirstEncoder, encoder_output

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary


class RecurrentEncoder(TimeFirstEncoder):
    """The base of recurrent encoders: embeddings, and the dictionary that fairseq's encoders return.

    All states have the width ``--encoder-embed-dim``. ``--encoder-layers`` is the number of recurrent
    layers. ``--dropout`` is applied to the embeddings and between layers. Embeddings are scaled as in the
    Transformer (``--no-scale-embedding``), but do not include positions.
    """

    #: Only the decoder has attention maps to draw.
    is_recurrent = True
    layers: nn.ModuleList

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
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
            padded nodes (shape (batch, nodes)), and additional outputs by name: batch-first tensors,
            which are reordered with the beams.

        Raises:
            ValueError: the batch does not carry the parse that the encoder needs.
        """
        raise NotImplementedError

    def run_layers(self, states: Tensor, structure: Any) -> list[Tensor]:
        """Return the states after each of ``self.layers``, with dropout between them."""
        of_layers = []
        for number, layer in enumerate(self.layers):
            states = layer(self.dropout_module(states) if number else states, structure)
            of_layers.append(states)
        return of_layers

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
        **parse: Tensor,
    ) -> dict[str, list[Any]]:
        """Encode a batch; arguments and output as in :meth:`SyntaxEncoder.forward`.

        ``encoder_states`` are the embeddings and each layer's states, 0 at nodes that a layer does not
        compute.
        """
        padding_mask = src_tokens.eq(self.padding_idx)
        embeddings = self.embed_tokens(src_tokens) if token_embeddings is None else token_embeddings
        embedding = self.embed_scale * embeddings
        inputs = self.dropout_module(embedding).masked_fill(padding_mask.unsqueeze(2), 0.0)
        layers, node_padding, outputs = self.encode(
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
                pad(states, (0, 0, 0, nodes - states.size(1))).transpose(0, 1) for states in hidden
            ],
            **outputs,
        )

    def root_nodes(self, encoded: dict[str, list[Any]], parse: ParseBatch) -> Tensor | None:
        """Find the node of each sentence, see :meth:`SyntaxEncoder.root_nodes`; None without one."""
        return encoded["roots"][0] if "roots" in encoded else None

    def max_positions(self) -> int:
        """Return the largest number of tokens, ``--max-source-positions``."""
        return int(self.cfg.max_source_positions)


def check(cfg: Any) -> None:
    """Check that the width can be divided between two directions.

    Raises:
        UserError: the width is odd.
    """
    if cfg.encoder.embed_dim % 2:
        raise UserError(
            f"--encoder-embed-dim {cfg.encoder.embed_dim}: the two directions of a recurrent layer "
            "have half of it each, so it must be even"
        )


@register_encoder("lstm", check=check, variants={"BiLSTM": {}}, translation=False)
class LSTMEncoder(RecurrentEncoder):
    """A bidirectional LSTM; each direction has half of ``--encoder-embed-dim``."""

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        width = cfg.encoder.embed_dim
        inputs = [embed_tokens.embedding_dim] + [width] * (cfg.encoder.layers - 1)
        self.layers = nn.ModuleList(
            BidirectionalLayer("lstm", input_dim=input_dim, output_dim=width)
            for input_dim in inputs
        )

    def encode(
        self, embedding: Tensor, src_tokens: Tensor, padding_mask: Tensor, parse: ParseBatch
    ) -> tuple[list[Tensor], Tensor, dict[str, list[Any]]]:
        """Compute the states of a batch, see the base class."""
        return self.run_layers(embedding, padding_mask), padding_mask, {}


#: By value of ``--tree-lstm-kind``, the parse fields from which trees are built.
KINDS = {
    "child_sum": ["words", "heads"],
    "binary": ["words", "spans"],
    "child_sum_constituents": ["words", "spans"],
}


@dataclass
class TreeLSTMOptions:
    """Options of Tree-LSTMs."""

    # fmt: off
    tree_lstm_kind: ChoiceEnum(list(KINDS)) = option("child_sum",  # type: ignore[valid-type]
        "child_sum: sums over dependents; binary: left and right children of constituents, which "
        "are binarized to the right; child_sum_constituents: sums over the children of "
        "constituents as they are")


@register_encoder(
    "tree_lstm",
    options=TreeLSTMOptions,
    parse_fields=lambda cfg: KINDS[str(cfg.tree_lstm_kind)],
    variants={
        "Tree-LSTM": {},
        "Tree-LSTM, binary": {"tree_lstm_kind": "binary"},
        "Tree-LSTM, constituents": {"tree_lstm_kind": "child_sum_constituents"},
    },
    translation=False,
)
class TreeLSTMEncoder(RecurrentEncoder):
    """A Tree-LSTM (Tai et al. 2015) over dependencies, or over constituents, which follow the tokens.

    Tokens have their embeddings as inputs. Constituents lack inputs, as in the paper, so their labels
    are not used. The inputs of each other layer are the states of the layer below, at all nodes.
    """

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self.kind = str(cfg.tree_lstm_kind)
        width = cfg.encoder.embed_dim
        inputs = [embed_tokens.embedding_dim] + [width] * (cfg.encoder.layers - 1)
        network = BinaryTreeLSTM if self.kind == "binary" else ChildSumTreeLSTM
        self.layers = nn.ModuleList(
            network(input_dim=input_dim, hidden_dim=width) for input_dim in inputs
        )

    def encode(
        self, embedding: Tensor, src_tokens: Tensor, padding_mask: Tensor, parse: ParseBatch
    ) -> tuple[list[Tensor], Tensor, dict[str, list[Any]]]:
        """Compute the states of a batch, see the base class."""
        if self.kind == "child_sum":
            trees = dependency_trees(parse["words"], parse["heads"], padding_mask)
        else:
            binary = self.kind == "binary"
            trees = constituency_trees(parse["words"], parse["spans"], padding_mask, binary=binary)
        # (batch, tokens, width) -> (batch, tokens and constituents, width)
        states = pad(embedding, (0, 0, 0, trees.padding_mask.size(1) - embedding.size(1)))
        layers = self.run_layers(states, trees.levels)
        return layers, trees.padding_mask, {"roots": [trees.roots]}


@register_encoder(
    "han",
    check=check,
    parse_fields=["words", "heads", "deprels"],
    variants={"HAN": {}},
    translation=False,
)
class HierarchicalEncoder(RecurrentEncoder):
    """Hierarchical attention (Yang et al. 2016): over words, then over sentences; a line is a document.

    Every root that the parser found begins a sentence.

    Its nodes are the tokens (the words' GRU), the sentences (the sentences' GRU), and the document, which
    is the root. ``--pooling root`` of labelling is thus the paper's classifier.
    """

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self.network = HierarchicalAttention(
            input_dim=embed_tokens.embedding_dim,
            hidden_dim=cfg.encoder.embed_dim,
            num_layers=cfg.encoder.layers,
            dropout=cfg.dropout,
        )

    def encode(
        self, embedding: Tensor, src_tokens: Tensor, padding_mask: Tensor, parse: ParseBatch
    ) -> tuple[list[Tensor], Tensor, dict[str, list[Any]]]:
        """Compute the states of a batch, see the base class."""
        numbers = by_dependencies(parse["words"], parse["heads"], parse["deprels"], padding_mask)
        sentences = SentenceBatch.from_numbers(numbers)
        of_layers, summaries, documents = self.network(embedding, sentences)
        of_layers[-1] = torch.cat([of_layers[-1], summaries, documents.unsqueeze(1)], 1)
        # The document is the last node, and its root. It is never padding.
        is_document = padding_mask.new_zeros(len(documents), 1)
        padding = torch.cat([padding_mask, sentences.sentence_padding, is_document], 1)
        roots = torch.full_like(numbers[:, 0], padding.size(1) - 1)
        return of_layers, padding, {"roots": [roots]}
