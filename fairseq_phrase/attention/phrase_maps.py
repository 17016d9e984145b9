"""Attention matrices over tokens and phrases, as in the PhraseTransformer paper's figure 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairseq_phrase.errors import UserError
from fairseq_phrase.figures import new_figure, save
from fairseq_phrase.models.phrase_transformer import PhraseEncoder


@dataclass(frozen=True)
class AttentionPicture:
    """The two attention matrices of a sentence.

    Attributes:
        labels: the text of each node, tokens first, then phrases.
        all_nodes: phase 1; row attends to column. Shape: ``(nodes, nodes)``.
        within_phrases: phase 2. Shape: ``(nodes, nodes)``.
        title: which layer and head they are of.
    """

    labels: list[str]
    all_nodes: np.ndarray
    within_phrases: np.ndarray
    title: str


def attention_picture(
    model: Any,
    net_input: dict[str, torch.Tensor],
    dictionary: Any,
    layer: int | None = None,
    head: int | None = None,
) -> AttentionPicture:
    """Compute a sentence's attention matrices.

    Args:
        model: a PhraseTransformer.
        net_input: the encoder's input, a batch of one sentence.
        dictionary: the source dictionary.
        layer: the layer, from 1; the mean over layers if None.
        head: the head, from 1; the mean over heads if None.

    Raises:
        UserError: the model has no such layer or head, or no phrases.
    """
    if not isinstance(model.encoder, PhraseEncoder):
        raise UserError("this model is no PhraseTransformer: it has no attention over phrases")
    with torch.no_grad():
        phrases, maps = model.encoder.attention_maps(**net_input)
    real = ~phrases.padding_mask[0]
    tokens = [dictionary[index] for index in net_input["src_tokens"][0].tolist()]
    members = [
        nodes for nodes, used in zip(phrases.members()[0], real.tolist(), strict=True) if used
    ]

    def matrix(phase: str) -> np.ndarray:
        # (layers, heads, nodes, nodes)
        weights = torch.stack([layer_maps[phase][0] for layer_maps in maps]).float()
        weights = _select(_select(weights, layer, "layer"), head, "head")
        return weights[real][:, real].cpu().numpy()

    return AttentionPicture(
        [_text(tokens, nodes) for nodes in members],
        matrix("all nodes"),
        matrix("within phrases"),
        f"{_name('layer', layer)}, {_name('head', head)}",
    )


def _select(weights: torch.Tensor, number: int | None, what: str) -> torch.Tensor:
    """Pick one entry of the first axis by its number from 1, or average over it."""
    if number is None:
        return weights.mean(0)
    if not 1 <= number <= len(weights):
        raise UserError(f"this model has {what}s 1 to {len(weights)}, not {number}")
    return weights[number - 1]


def _name(what: str, number: int | None) -> str:
    return f"mean over {what}s" if number is None else f"{what} {number}"


def _text(tokens: Sequence[str], members: Sequence[int]) -> str:
    """Spell a node; ``…`` stands where its tokens are not adjacent."""
    text, previous = "", None
    for index in members:
        if previous is not None and index != previous + 1:
            text += " … "
        text += tokens[index].replace("▁", " ")
        previous = index
    return " ".join(text.split()) or "▁"


def plot_attention(picture: AttentionPicture, path: Path) -> None:
    """Draw both matrices side by side.

    Args:
        picture: the matrices.
        path: where it goes; its suffix (``.png``, ``.svg``, ``.pdf``) is the format.

    Raises:
        UserError: matplotlib is missing or does not know the format.
    """
    nodes = len(picture.labels)
    side = max(4.0, 0.24 * nodes + 1.5)
    figure = new_figure(path, (2 * side + 1, side))
    panels = (
        ("attention over all nodes", picture.all_nodes),
        ("attention within phrases", picture.within_phrases),
    )
    for axes, (title, weights) in zip(figure.subplots(1, 2), panels, strict=True):
        image = axes.imshow(weights, cmap="viridis", vmin=0.0, vmax=float(weights.max()))
        axes.set_title(title)
        axes.set_xticks(range(nodes), picture.labels, rotation=90, fontsize=7)
        axes.set_yticks(range(nodes), picture.labels, fontsize=7)
        axes.set_xlabel("attended to")
        axes.set_ylabel("attending")
        figure.colorbar(image, ax=axes, shrink=0.8)
    figure.suptitle(picture.title)
    save(figure, path)
