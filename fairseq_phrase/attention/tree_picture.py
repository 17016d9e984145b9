"""A sentence's tree, with the attention that each of its nodes gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairseq_phrase.attention.constituent_maps import (
    cross_attention,
    require_tree_transformer,
    self_attention,
    translate,
)
from fairseq_phrase.errors import UserError
from fairseq_phrase.figures import new_figure, save


@dataclass(frozen=True)
class TreePicture:
    """A tree and the attention on its nodes, leaves first, then nonterminals, children before parents.

    Attributes:
        labels: the text of each node: its token, or its label.
        parents: the parent of each node, -1 at the top. Shape: ``(nodes,)``.
        leaves: number of leaves.
        mass: the share of attention on each node; 1 in sum. Shape: ``(nodes,)``.
        title: what attends.
    """

    labels: list[str]
    parents: np.ndarray
    leaves: int
    mass: np.ndarray
    title: str


def tree_picture(
    model: Any,
    task: Any,
    net_input: dict[str, torch.Tensor],
    layer: int | None = None,
    word: str | None = None,
    encoder: bool = False,
) -> TreePicture:
    """Compute how much attention each node of a sentence gets.

    Args:
        model: a tree Transformer.
        task: its task.
        net_input: the encoder's input, a batch of one sentence.
        layer: the layer, from 1; the mean over layers if None.
        word: the word of the model's translation that attends, or its number from 1; the mean over
            all of them, and the end of the sentence, if None.
        encoder: take the encoder's attention, the mean over all nodes that attend.

    Raises:
        UserError: the model is no tree Transformer, or has no such layer, or its translation has no
            such word.
    """
    require_tree_transformer(model)
    with torch.no_grad():
        if encoder:
            tree, weights = self_attention(model, net_input)
            attending, title = ~tree.node_padding_mask[0], "the encoder"
        else:
            tokens = translate(model, net_input, task.target_dictionary)
            previous = tokens.roll(1)  # the end of sentence stands in front
            tree, weights = cross_attention(model, net_input, previous.unsqueeze(0))
            attending, title = _attending(tokens, task.target_dictionary, word)
    real = ~tree.node_padding_mask[0]
    mass = _of_layer(weights[:, 0], layer)[attending][:, real].mean(0)
    real_leaves = int((~tree.padding_mask).sum())
    # The lowest nonterminal above a node is the first that holds it.
    holds = torch.cat([tree.membership, tree.subtrees.tril(-1)], 2)[0, :, real][
        tree.is_nonterminal[0]
    ]
    parents = np.full(len(mass), -1, dtype=np.int64)
    for node in range(len(mass)):
        above = holds[:, node].nonzero().flatten().tolist()
        if above:
            parents[node] = real_leaves + above[0]
    words = [task.source_dictionary[index] for index in net_input["src_tokens"][0].tolist()]
    names = [
        task.label_dictionary("spans")[index] for index in net_input["src_spans"][0, :, 2].tolist()
    ]
    labels = [label for label, used in zip(words + names, real.tolist(), strict=True) if used]
    where = "mean over layers" if layer is None else f"layer {layer}"
    return TreePicture(labels, parents, real_leaves, mass.cpu().numpy(), f"{title}, {where}")


def _of_layer(weights: torch.Tensor, layer: int | None) -> torch.Tensor:
    if layer is None:
        return weights.mean(0)
    if not 1 <= layer <= len(weights):
        raise UserError(f"this model has layers 1 to {len(weights)}, not {layer}")
    return weights[layer - 1]


def _attending(tokens: torch.Tensor, dictionary: Any, word: str | None) -> tuple[torch.Tensor, str]:
    """Find the target positions that attend, and say which they are."""
    pieces = [dictionary[index] for index in tokens.tolist()[:-1]]
    begins = [number == 0 or piece.startswith("▁") for number, piece in enumerate(pieces)]
    word_of = np.cumsum(begins)  # from 1
    words = [
        "".join(piece for piece, own in zip(pieces, word_of, strict=True) if own == number)
        for number in range(1, (word_of[-1] if pieces else 0) + 1)
    ]
    words = [text.replace("▁", "") for text in words]
    translation = " ".join(words)
    attending = torch.ones(len(tokens), dtype=torch.bool)
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


def layout(parents: Sequence[int], leaves: int) -> np.ndarray:
    """Place a tree's nodes: leaves side by side on the ground, parents above the middle of children.

    Args:
        parents: the parent of each node, -1 at the top; leaves first, children before parents.
        leaves: number of leaves.

    Returns:
        Across and up. Shape: ``(nodes, 2)``.
    """
    places = np.zeros((len(parents), 2))
    places[:leaves, 0] = np.arange(leaves)
    for node in range(leaves, len(parents)):
        children = [child for child in range(node) if parents[child] == node]
        places[node] = places[children, 0].mean(), places[children, 1].max() + 1
    return places


def plot_tree(picture: TreePicture, path: Path) -> None:
    """Draw a tree; the more attention a node gets, the larger and darker it is.

    Args:
        picture: the tree and its attention.
        path: where it goes; its suffix (``.png``, ``.svg``, ``.pdf``) is the format.

    Raises:
        UserError: matplotlib is missing or does not know the format.
    """
    places = layout(picture.parents.tolist(), picture.leaves)
    height = places[:, 1].max()
    figure = new_figure(path, (max(5.0, 0.75 * picture.leaves), 2.0 + 0.75 * height))
    axes = figure.subplots()
    for child, parent in enumerate(picture.parents.tolist()):
        if parent >= 0:
            (across, up), (over, top) = places[child], places[parent]
            axes.plot([across, across, over], [up, top, top], color="0.75", linewidth=1, zorder=1)
    largest = float(picture.mass.max())
    nodes = axes.scatter(
        places[:, 0], places[:, 1], s=40 + 600 * picture.mass / largest, c=100 * picture.mass,
        cmap="YlGnBu", vmin=0.0, vmax=100 * largest, edgecolors="0.4", zorder=2,
    )  # fmt: skip
    for node, label in enumerate(picture.labels):
        is_leaf = node < picture.leaves
        axes.annotate(
            label.replace("▁", "") or "▁",
            places[node],
            xytext=(0, -18 if is_leaf else 13),
            textcoords="offset points",
            ha="center",
            va="top" if is_leaf else "bottom",
            rotation=45 if is_leaf else 0,
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )
        axes.annotate(
            f"{picture.mass[node]:.0%}", places[node], ha="center", va="center", fontsize=6, zorder=3,
            color="white" if picture.mass[node] > 0.6 * largest else "0.2",
        )  # fmt: skip
    axes.set_xlim(-0.7, picture.leaves - 0.3)
    axes.set_ylim(-1.1, height + 0.6)
    axes.axis("off")
    on_nonterminals = float(picture.mass[picture.leaves :].sum())
    axes.set_title(
        f"attention of {picture.title}: {on_nonterminals:.0%} on constituents",
        fontsize=9,
        wrap=True,
    )
    figure.colorbar(nodes, ax=axes, shrink=0.7, label="% of attention")
    save(figure, path)
