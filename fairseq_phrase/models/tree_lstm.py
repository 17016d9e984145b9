"""``--encoder tree_lstm``: Tree-LSTMs over dependencies or constituents (Tai et al. 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn
from torch.nn.functional import pad

from fairseq_phrase.models.encoder_method import option, register_encoder
from fairseq_phrase.models.recurrent_encoder import RecurrentEncoder
from fairseq_phrase.modules.parse_batch import ParseBatch
from fairseq_phrase.modules.recurrent.tree_lstm import (
    BatchTrees,
    BinaryTreeLSTM,
    ChildSumTreeLSTM,
    constituency_trees,
    dependency_trees,
)

#: What ``--tree-lstm-kind`` chooses: the parse fields that its trees are made from.
KINDS = {
    "child_sum": ["words", "heads"],
    "binary": ["words", "spans"],
    "child_sum_constituents": ["words", "spans"],
}


@dataclass
class TreeLSTMOptions:
    """Options of Tree-LSTMs."""

    tree_lstm_kind: ChoiceEnum(list(KINDS)) = option(  # type: ignore[valid-type]
        "child_sum",
        "child_sum: sums over dependents; binary: left and right children of constituents, which "
        "are binarized to the right; child_sum_constituents: sums over the children of "
        "constituents as they are",
    )


@register_encoder(
    "tree_lstm",
    options=TreeLSTMOptions,
    parse_fields=lambda cfg: KINDS[str(cfg.tree_lstm_kind)],
    rows={
        "Tree-LSTM": {},
        "Tree-LSTM, binary": {"tree_lstm_kind": "binary"},
        "Tree-LSTM, constituents": {"tree_lstm_kind": "child_sum_constituents"},
    },
    translation=False,
)
class TreeLSTMEncoder(RecurrentEncoder):
    """A Tree-LSTM; its nodes are the tokens, then the constituents if it is over constituents.

    Tokens have their embeddings as inputs. Constituents have no input, as in the paper, so their labels
    are not used. A further layer has the states of the layer below as its inputs, at all nodes.
    """

    def __init__(self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self.kind = str(cfg.tree_lstm_kind)
        width = cfg.encoder.embed_dim
        inputs = [embed_tokens.embedding_dim] + [width] * (cfg.encoder.layers - 1)
        network = BinaryTreeLSTM if self.kind == "binary" else ChildSumTreeLSTM
        self.layers = nn.ModuleList(network(input_dim=each, hidden_dim=width) for each in inputs)

    def trees(self, parse: ParseBatch, padding_mask: Tensor) -> BatchTrees:
        """Make the trees of a batch.

        Raises:
            ValueError: the batch does not carry them, or they are not trees.
        """
        if self.kind == "child_sum":
            return dependency_trees(parse["words"], parse["heads"], padding_mask)
        return constituency_trees(
            parse["words"], parse["spans"], padding_mask, binary=self.kind == "binary"
        )

    def encode(
        self, embedding: Tensor, src_tokens: Tensor, padding_mask: Tensor, parse: ParseBatch
    ) -> tuple[list[Tensor], Tensor, dict[str, list[Any]]]:
        """Compute the states of a batch, see the base class."""
        trees = self.trees(parse, padding_mask)
        # (batch, tokens, width) -> (batch, tokens and constituents, width)
        states = pad(embedding, (0, 0, 0, trees.padding_mask.size(1) - embedding.size(1)))
        of_layers = []
        for number, layer in enumerate(self.layers):
            states = layer(self.dropout_module(states) if number else states, trees.levels)
            of_layers.append(states)
        return of_layers, trees.padding_mask, {"roots": [trees.roots]}
