"""Attention matrices drawn as heat maps, side by side."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_phrase.attention.encoder_maps import AttentionPicture, Panel
from fairseq_phrase.figures import new_figure, save

# In inches: a matrix of many nodes has sides of _SIDE, a matrix of few nodes has cells of _CELL.
_SIDE, _CELL, _SMALLEST_CELL = 9.0, 0.3, 0.072
_LONGEST_LABEL = 32  # characters
_MOST_NUMBERED = 40  # nodes: in larger matrices numbers do not fit into the cells


def plot_attention(picture: AttentionPicture, path: Path) -> None:
    """Draw all matrices of a sentence.

    Args:
        picture: the matrices.
        path: the file to write; its suffix (``.png``, ``.svg``, ``.pdf``) is the format.

    Raises:
        UserError: matplotlib is missing or does not know the format.
    """
    save(draw_attention(picture, path), path)


def draw_attention(picture: AttentionPicture, path: Path) -> Any:
    """Draw all matrices of a sentence into a figure that :func:`fairseq_phrase.figures.save` writes."""
    nodes = len(picture.labels)
    cell = max(_SMALLEST_CELL, min(_CELL, _SIDE / nodes))
    size = min(8.0, 0.8 * 72 * cell)  # of the labels, in points
    labels = [
        label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 1]}…"
        for label in picture.labels
    ]
    beside = max(map(len, labels)) * size * 0.55 / 72
    side = max(2.4, cell * nodes)
    width = len(picture.panels) * (side + beside + 1.2)
    figure = new_figure(path, (width, side + beside + 1.3))
    for axes, panel in zip(figure.subplots(1, len(picture.panels), squeeze=False)[0],
                           picture.panels, strict=True):  # fmt: skip
        _draw(axes, panel, picture, labels, size)
    title = textwrap.fill(picture.sentence, max(40, int(11 * width)))
    figure.suptitle(f"{title}\n{picture.subtitle}", fontsize=10, parse_math=False)
    return figure


def show_matrix(
    axes: Any, values: np.ndarray, columns: list[str], rows: list[str], size: float, **scale: Any
) -> Any:
    """Draw a matrix with labels of this size above and beside it; returns matplotlib's image."""
    image = axes.imshow(values, **scale)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    for axis, labels, turned in ((axes.xaxis, columns, 90), (axes.yaxis, rows, 0)):
        axis.set_ticks(range(len(labels)), labels, rotation=turned, fontsize=size, parse_math=False)
    axes.tick_params(length=0)
    return image


def _draw(
    axes: Any, panel: Panel, picture: AttentionPicture, labels: list[str], size: float
) -> None:
    """Draw one matrix with its labels, boundaries and colour bar."""
    nodes = len(labels)
    if panel.is_attention:
        scale = {"cmap": "Blues", "vmin": 0.0, "vmax": float(panel.values.max())}
    else:
        farthest = max(1, int(np.abs(panel.values).max()))
        scale = {"cmap": "RdBu_r", "vmin": -1.4 * farthest, "vmax": 1.4 * farthest}
    image = show_matrix(axes, panel.values, labels, labels, size, **scale)
    others = nodes - picture.num_tokens
    noun = picture.others.removesuffix("s") if others == 1 else picture.others
    parts = f": {picture.num_tokens} tokens | {others} {noun}" if others else ""
    axes.set_xlabel(f"attended to{parts}", fontsize=8)
    axes.set_ylabel("attending", fontsize=8)
    axes.set_title(panel.title, fontsize=10)
    _draw_boundaries(axes, picture)
    if panel.is_attention:
        axes.figure.colorbar(image, ax=axes, shrink=0.7, pad=0.02).ax.tick_params(labelsize=7)
    elif nodes <= _MOST_NUMBERED:
        for (row, column), value in np.ndenumerate(panel.values):
            axes.text(column, row, f"{value:d}", ha="center", va="center", fontsize=0.8 * size)
    else:
        bar = axes.figure.colorbar(image, ax=axes, shrink=0.7, pad=0.02)
        bar.ax.set_ylim(-farthest, farthest)
        bar.ax.tick_params(labelsize=7)


def _draw_boundaries(axes: Any, picture: AttentionPicture) -> None:
    """Draw thin lines between words, and a thick line after the tokens."""
    words, nodes = picture.words, len(picture.words)
    begins = (np.diff(words) != 0) | (words[1:] < 0)
    places = np.flatnonzero(begins) + 0.5
    end = picture.num_tokens - 0.5
    for lines, style in (
        (places[places != end], {"color": "0.8", "linewidth": min(0.5, 40 / nodes), "zorder": 2}),
        ([end] * (picture.num_tokens < nodes), {"color": "0.15", "linewidth": 1.4, "zorder": 3}),
    ):
        axes.hlines(lines, -0.5, nodes - 0.5, **style)
        axes.vlines(lines, -0.5, nodes - 0.5, **style)
