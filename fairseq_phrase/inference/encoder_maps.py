"""The attention of any encoder in one sentence.

The encoder must have two methods (:class:`fairseq_phrase.methods.syntax_encoder.SyntaxEncoder` has both).
``attention_maps`` returns the batch's structure and each layer's weights. ``node_members`` returns the
tokens of each node. The tokens are the first nodes. Relative positions in the structure are added.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.source_sentence import SourceSentence, require_length
from fairseq_phrase.methods.common.tree_batch import TreeBatch
from fairseq_phrase.methods.phrases.phrase_batch import PhraseBatch
from fairseq_phrase.methods.positions.relative_positions import RelativePositions
from fairseq_phrase.models.source_factors import reading

#: Sentences with more nodes than this are not drawn, because the labels would be unreadable.
MAX_NODES = 200
_TITLES = {
    "all nodes": "attention over all nodes",
    "sequential": "relative position in the sentence",
    "structural": "relative position in the tree",
}
Choice = int | Literal["mean", "last"]


@dataclass(frozen=True)
class Panel:
    """One matrix of a picture.

    Attributes:
        values: row attends to column. Shape: ``(nodes, nodes)``.
        is_attention: whether the values are weights, whose rows sum to 1, or numbers around 0, such as
            relative positions.
    """

    title: str
    values: np.ndarray
    is_attention: bool = True


@dataclass(frozen=True)
class Nodes:
    """The nodes of a sentence, tokens first.

    Attributes:
        words: the word of each node, -1 at nodes that are not part of a word; adjacent nodes of one word
            are subwords. Shape: ``(nodes,)``.
        other_kind: the name of the other nodes: ``phrases``, ``constituents``, ``other nodes``; empty if
            there are none.
    """

    sentence: str
    labels: list[str]
    words: np.ndarray
    num_tokens: int
    other_kind: str


@dataclass(frozen=True)
class AttentionPicture(Nodes):
    """The matrices of a sentence.

    Attributes:
        subtitle: the layer and the head of the weights.
    """

    subtitle: str
    panels: list[Panel]


@dataclass(frozen=True)
class SentenceAttention(Nodes):
    """An encoder's attention in one sentence.

    Attributes:
        weights: by attention block (``all nodes``…), the weights. Row attends to column.
            Shape: ``(layers, heads, nodes, nodes)``.
        positions: relative positions of nodes by kind (``sequential``, ``structural``), if the encoder
            uses them. Shape: ``(nodes, nodes)``.
    """

    weights: dict[str, np.ndarray]
    positions: dict[str, np.ndarray]


def attention_maps(model: Any, net_input: dict[str, Tensor]) -> tuple[Any, list[dict[str, Tensor]]]:
    """Return the structure of a model's encoder and its layers' weights, by attention block.

    Raises:
        UserError: the encoder does not have attention maps.
    """
    compute = getattr(model.encoder, "attention_maps", None)
    if compute is None:
        raise UserError(
            f"{type(model.encoder).__name__} gives no attention maps: only encoders that have a method "
            "attention_maps, as this package's Transformers do, can be drawn (fairseq-phrase-plot "
            "alignment draws the attention of any decoder)"
        )
    with torch.no_grad(), reading(model.encoder, net_input):
        structure, maps = compute(**net_input)
    return structure, maps


def sentence_attention(model: Any, sentence: SourceSentence) -> SentenceAttention:
    """Compute a sentence's attention in every layer and head.

    Raises:
        UserError: the encoder's ``node_members`` are not the nodes of its attention.
    """
    structure, layers = attention_maps(model, sentence.net_input)
    attending = next(iter(layers[0].values())).size(-1)
    labels, indices, other_kind = _nodes(model.encoder, structure, sentence, attending)
    pairs: tuple[Any, ...] = np.ix_(indices, indices)  # without padding
    of_nodes = (..., *pairs)
    weights = {
        # (layers, heads, nodes, nodes)
        block: torch.stack([maps[block][0] for maps in layers]).float().cpu().numpy()[of_nodes]
        for block in layers[0]
    }
    relative = getattr(structure, "relative", None)
    kinds = relative.by_kind() if isinstance(relative, RelativePositions) else {}
    positions = {kind: values[0].cpu().numpy()[pairs] for kind, values in kinds.items()}
    words = np.full(len(labels), -1, dtype=np.int64)
    words[: len(sentence.words)] = sentence.words
    return SentenceAttention(
        sentence.text, labels, words, len(sentence.tokens), other_kind, weights, positions
    )


def attention_picture(
    model: Any, sentence: SourceSentence, layer: Choice = "last", head: Choice = "mean"
) -> AttentionPicture:
    """Compute the matrices of a picture of a sentence's attention.

    Args:
        layer: the layer, from 1, the last, or the mean over all.
        head: the head, likewise.
    """
    require_length(len(sentence.tokens), MAX_NODES, "tokens")
    computed = sentence_attention(model, sentence)
    other_kind = computed.other_kind
    noun = f"nodes (tokens and {other_kind})" if other_kind else "tokens"
    require_length(len(computed.labels), MAX_NODES, noun)
    panels = [
        Panel(_TITLES[kind], positions, is_attention=False)
        for kind, positions in computed.positions.items()
    ]
    num_layers, num_heads = next(iter(computed.weights.values())).shape[:2]
    for block, weights in computed.weights.items():
        matrix = choose(choose(weights, layer, "layer"), head, "head")
        title = _TITLES.get(block, f"attention {block}") if other_kind else "attention"
        panels.append(Panel(title, matrix))
    subtitle = f"{name_of(layer, num_layers, 'layer')}, {name_of(head, num_heads, 'head')}"
    nodes = {field.name: vars(computed)[field.name] for field in fields(Nodes)}
    return AttentionPicture(**nodes, subtitle=subtitle, panels=panels)


def _nodes(
    encoder: Any, structure: Any, sentence: SourceSentence, attending: int
) -> tuple[list[str], np.ndarray, str]:
    """Return each node's label and its index among the batch's nodes, and the kind of the others."""
    (members,) = encoder.node_members(sentence.net_input["src_tokens"], structure)
    if len(members) != attending:
        raise UserError(
            f"{type(encoder).__name__} attends to {attending} nodes of this sentence, and its method "
            f"node_members lists {len(members)}: it must list the tokens of every node"
        )
    indices = np.flatnonzero([bool(tokens) for tokens in members])  # padding has no tokens
    labels = [sentence.label(members[index]) for index in indices]
    num_tokens = len(sentence.tokens)
    if len(labels) == num_tokens:
        return labels, indices, ""
    if isinstance(structure, TreeBatch):
        names = [f"{label}: " for _, _, label in sentence.constituents]
        named_nodes = map(str.__add__, names, labels[num_tokens:])
        return [*labels[:num_tokens], *named_nodes], indices, "constituents"
    return labels, indices, "phrases" if isinstance(structure, PhraseBatch) else "other nodes"


def choose(weights: Any, choice: Choice, noun: str) -> Any:
    """Take one entry of the first axis by its number from 1, the last, or the mean of all.

    Raises:
        UserError: the entry does not exist.
    """
    if choice == "mean":
        return weights.mean(0)
    number = len(weights) if choice == "last" else choice
    if not 1 <= number <= len(weights):
        raise UserError(f"this model has {noun}s 1 to {len(weights)}, not {number}")
    return weights[number - 1]


def name_of(choice: Choice, count: int, noun: str) -> str:
    """Return the name of the entry that :func:`choose` takes."""
    if choice == "mean":
        return f"mean over {count} {noun}s"
    return f"{noun} {count if choice == 'last' else choice} of {count}"
