"""The attention on each node of a sentence's tree, and a picture of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairseq_phrase.data.batches.raw_tokens import ends_of
from fairseq_phrase.data.subwords.protected_tokens import words_by_marks
from fairseq_phrase.inference.encoder_maps import Choice, choose, name_of
from fairseq_phrase.inference.source_sentence import SourceSentence, require_length, written
from fairseq_phrase.lab.pictures.constituent_maps import cross_attention, self_attention, translate
from fairseq_phrase.lab.pictures.figures import new_figure, save, wrapped

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Task

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
    task: Task,
    sentence: SourceSentence,
    layer: Choice = "last",
    encoder: bool = False,
) -> TreePicture:
    """Compute each node's share of attention in a sentence.

    Args:
        layer: the layer, from 1, the last, or the mean over all.
        encoder: show the encoder's attention, the mean over all nodes that attend, instead of the
            decoder's, the mean over all subwords of the translation and its end.
    """
    leaves = len(sentence.tokens)
    require_length(leaves, MAX_LEAVES, "tokens")
    _, weights = self_attention(model, sentence.net_input)
    title = "the encoder"
    if not encoder:
        dictionary = task.target_dictionary
        with torch.no_grad():
            tokens = translate(model, sentence.net_input, dictionary)
            previous = tokens.roll(1)  # the end of sentence comes first
            _, weights = cross_attention(model, sentence.net_input, previous.unsqueeze(0))
        subwords = written(tokens[: -len(ends_of(dictionary))], dictionary, sentence.copied)
        translation = SourceSentence({}, subwords, words_by_marks(subwords, ()), [])
        title = f"“{translation.text}”"
    # (layers, 1, attending, nodes) -> (nodes,)
    mass = choose(weights[:, 0], layer, "layer").mean(0)
    return TreePicture(
        sentence.text,
        sentence.labels + [label for _, _, label in sentence.constituents],
        _parents(sentence),
        leaves,
        mass.cpu().numpy(),
        f"{title}, {name_of(layer, len(weights), 'layer')}",
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


def layout(parents: Sequence[int], leaves: int) -> np.ndarray:
    """Lay out a tree's nodes: leaves side by side at the bottom, parents above the middle of children.

    Args:
        parents: the parent of each node, -1 at the root; leaves first, children before parents.

    Returns:
        The horizontal and vertical coordinates. Shape: ``(nodes, 2)``.
    """
    positions = np.zeros((len(parents), 2))
    positions[:leaves, 0] = np.arange(leaves)
    for node in range(leaves, len(parents)):
        children = np.flatnonzero(np.equal(parents[:node], node))
        positions[node] = positions[children, 0].mean(), positions[children, 1].max() + 1
    return positions


def plot_tree(picture: TreePicture, path: Path) -> None:
    """Draw a tree; the more attention a node gets, the larger and darker it is.

    Args:
        path: the file to write; its suffix (``.png``, ``.svg``, ``.pdf``) is the format.
    """
    positions = layout(picture.parents.tolist(), picture.leaves)
    height = positions[:, 1].max()
    # Inches per leaf and per level; fewer in large trees.
    across = max(0.4, min(0.75, 24 / picture.leaves))
    up = max(0.3, min(0.75, 15 / max(height, 1)))
    width = max(5.0, across * picture.leaves)
    figure = new_figure(path, (width, 2.2 + up * height))
    axes = figure.subplots()
    for child, parent in enumerate(picture.parents.tolist()):
        if parent >= 0:
            (left, low), (middle, top) = positions[child], positions[parent]
            axes.plot([left, left, middle], [low, top, top], color="0.75", linewidth=1, zorder=1)
    largest = float(picture.mass.max())
    nodes = axes.scatter(
        positions[:, 0], positions[:, 1], s=40 + 600 * picture.mass / largest, c=100 * picture.mass,
        cmap="YlGnBu", vmin=0.0, vmax=100 * largest, edgecolors="0.4", zorder=2,
    )  # fmt: skip
    for node in range(len(picture.labels)):
        _annotate(axes, picture, node, positions[node], largest)
    axes.set_xlim(-0.7, picture.leaves - 0.3)
    axes.set_ylim(-1.1, height + 0.6)
    axes.axis("off")
    on_nonterminals = float(picture.mass[picture.leaves :].sum())
    caption = f"attention of {picture.title}: {on_nonterminals:.0%} on constituents"
    lines = [wrapped(text, max(60, int(11 * width))) for text in (picture.sentence, caption)]
    axes.set_title("\n".join(lines), fontsize=10, parse_math=False)
    figure.colorbar(nodes, ax=axes, shrink=0.7, label="% of attention")
    save(figure, path)


def _annotate(
    axes: Any, picture: TreePicture, node: int, position: np.ndarray, largest: float
) -> None:
    """Write a node's label next to it, and its share of attention into it."""
    is_leaf = node < picture.leaves
    axes.annotate(
        picture.labels[node], position, xytext=(0, -18 if is_leaf else 13),
        textcoords="offset points", ha="right" if is_leaf else "center",
        va="top" if is_leaf else "bottom", rotation=45 if is_leaf else 0,
        rotation_mode="anchor" if is_leaf else None, fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5}, parse_math=False,
    )  # fmt: skip
    share = picture.mass[node]
    axes.annotate(
        f"{share:.0%}", position, ha="center", va="center", fontsize=6, zorder=3,
        color="white" if share > 0.6 * largest else "0.2",
    )  # fmt: skip
