"""The attention on each node of a sentence's tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fairseq_phrase.data.batches.word_alignments import words_by_marks
from fairseq_phrase.errors import UserError
from fairseq_phrase.visualization.constituent_maps import cross_attention, self_attention, translate
from fairseq_phrase.visualization.encoder_maps import Choice, choose, named
from fairseq_phrase.visualization.source_sentence import SourceSentence, require_length, written

#: Sentences of more tokens than this are not drawn, because they would be unreadable.
MAX_LEAVES = 100


@dataclass(frozen=True)
class TreePicture:
    """A tree and the attention on its nodes, leaves first, then nonterminals, children before parents.

    Attributes:
        labels: the text of each node: its token, or its label.
        parents: the parent of each node; -1 without a parent. Shape: ``(nodes,)``.
        mass: the share of attention on each node; the shares sum to 1. Shape: ``(nodes,)``.
        title: the queries of this attention.
    """

    sentence: str
    labels: list[str]
    parents: np.ndarray
    leaves: int
    mass: np.ndarray
    title: str


def tree_picture(
    model: Any,
    task: Any,
    sentence: SourceSentence,
    layer: Choice = "last",
    word: str | None = None,
    encoder: bool = False,
) -> TreePicture:
    """Compute each node's share of attention in a sentence.

    Args:
        layer: the layer, from 1, the last, or the mean over all.
        word: the word of the model's translation whose attention is shown, or its number from 1. None for
            the mean over all words and the end of the sentence.
        encoder: show the encoder's attention, the mean over all nodes that attend.
    """
    leaves = len(sentence.tokens)
    require_length(leaves, MAX_LEAVES, "tokens")
    _, weights = self_attention(model, sentence.net_input)
    title = "the encoder"
    attending = torch.ones(weights.size(2), dtype=torch.bool)
    if not encoder:
        with torch.no_grad():
            tokens = translate(model, sentence.net_input, task.target_dictionary)
            previous = tokens.roll(1)  # the end of sentence comes first
            _, weights = cross_attention(model, sentence.net_input, previous.unsqueeze(0))
        pieces = written(tokens[:-1], task.target_dictionary, sentence.copied)
        attending, title = _attending(pieces, word)
    # (layers, 1, attending, nodes) -> (nodes,)
    mass = choose(weights[:, 0], layer, "layer")[attending].mean(0)
    names = [sentence.label([token]) for token in range(leaves)]
    return TreePicture(
        sentence.text,
        names + [label for _, _, label in sentence.constituents],
        _parents(sentence),
        leaves,
        mass.cpu().numpy(),
        f"{title}, {named(layer, len(weights), 'layer')}",
    )


def _parents(sentence: SourceSentence) -> np.ndarray:
    """Find the lowest constituent above each node; -1 without one. Shape: ``(nodes,)``."""
    spans = [(word, word + 1) for word in sentence.words.tolist()]
    spans += [(start, end) for start, end, _ in sentence.constituents]
    starts, ends = np.array(spans).T
    parents = np.full(len(spans), -1)
    # From the root down: the lowest constituent is written last, and stays.
    for node in reversed(range(len(sentence.words), len(spans))):
        inside = (starts[:node] >= starts[node]) & (ends[:node] <= ends[node])
        parents[:node][inside] = node
    return parents


def _attending(pieces: Sequence[str], word: str | None) -> tuple[torch.Tensor, str]:
    """Return the target positions whose attention is shown, and their description."""
    word_of = words_by_marks(pieces, ()) + 1
    words = [
        "".join(piece for piece, own in zip(pieces, word_of, strict=True) if own == number)
        for number in range(1, int(word_of.max(initial=0)) + 1)
    ]
    words = [text.replace("▁", "").replace("@@", "") for text in words]
    translation = " ".join(words)
    attending = torch.ones(len(pieces) + 1, dtype=torch.bool)
    if word is None:
        return attending, f"“{translation}”"
    number = words.index(word) + 1 if word in words else int(word) if word.isdecimal() else 0
    if not 1 <= number <= len(words):
        raise UserError(
            f"the translation is “{translation}”: name a word of it, or its number from 1 to "
            f"{len(words)}, not {word}"
        )
    attending[:-1] = torch.from_numpy(word_of == number)
    attending[-1] = False
    return attending, f"“{words[number - 1]}” in “{translation}”"
