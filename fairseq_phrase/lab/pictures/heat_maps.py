"""Attention matrices drawn as heat maps, side by side, and alignments of translations.

An alignment is the attention to the source of any decoder with attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairseq_phrase.data.batches.raw_tokens import ends_of
from fairseq_phrase.data.subwords.protected_tokens import words_by_marks
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.encoder_maps import AttentionPicture, Panel
from fairseq_phrase.inference.source_sentence import SourceSentence, require_length, written
from fairseq_phrase.lab.pictures.constituent_maps import translate
from fairseq_phrase.lab.pictures.figures import columns_of, new_figure, save, wrapped

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Task

#: Longer sentences are not drawn: labels would be unreadable. Translations end at this length.
MAX_TOKENS = 100


@dataclass(frozen=True)
class AlignmentPicture:
    """The attention of a translation.

    Attributes:
        source: the label of each token of the source.
        target: the label of each token of the translation.
        weights: row attends to column. Shape: ``(target tokens, source tokens)``.
    """

    sentence: str
    source: list[str]
    target: list[str]
    weights: np.ndarray


def alignment_picture(model: Any, task: Task, sentence: SourceSentence) -> AlignmentPicture:
    """Translate a sentence, and compute the attention of each token of the translation.

    Args:
        model: a model whose decoder returns its attention, as fairseq's decoders do.

    Raises:
        UserError: the model does not translate, its decoder lacks attention, or the sentence is too long.
    """
    require_length(len(sentence.tokens), MAX_TOKENS, "tokens")
    dictionary = task.target_dictionary
    with torch.no_grad():
        tokens = translate(model, sentence.net_input, dictionary, longest=MAX_TOKENS)
        encoded = model.encoder(**sentence.net_input)
        previous = tokens.roll(1).unsqueeze(0)  # the end of sentence comes first
        _, extra = model.decoder(previous, encoder_out=encoded)
    weights = extra["attn"][0] if extra["attn"] else None
    if weights is None:
        raise UserError(
            f"{type(model.decoder).__name__} returns no attention, so there is nothing to draw: the "
            "model was trained with --attention none"
        )
    subwords = written(tokens, dictionary, sentence.copied)
    special = {dictionary[index] for index in (dictionary.bos(), *ends_of(dictionary))}
    translation = SourceSentence({}, subwords, words_by_marks(subwords, special), [])
    return AlignmentPicture(
        sentence.text, sentence.labels, translation.labels, weights[0].float().cpu().numpy()
    )


# In inches: a matrix of many nodes has sides of _SIDE, a matrix of few nodes has cells of _CELL.
_SIDE, _CELL, _SMALLEST_CELL = 9.0, 0.3, 0.072
_LONGEST_LABEL = 32  # characters
#: A colour map, and the values of its ends.
_Scale = tuple[str, float, float]
_MOST_NUMBERED = 40  # nodes: in larger matrices numbers do not fit into the cells


def plot_attention(picture: AttentionPicture, path: Path) -> None:
    """Draw all matrices of a sentence.

    Args:
        path: the file to write; its suffix (``.png``, ``.svg``, ``.pdf``) is the format.
    """
    save(draw_attention(picture, path), path)


def plot_alignment(picture: AlignmentPicture, path: Path) -> None:
    """Draw an alignment, as :func:`plot_attention` does."""
    columns, rows = picture.source, picture.target
    figure = _new_figure(path, columns, rows, picture.sentence)
    axes = figure.subplots()
    largest = float(picture.weights.max())
    image = _show_matrix(axes, picture.weights, columns, rows, 7, ("Blues", 0.0, largest))
    axes.set_xlabel("source", fontsize=8)
    axes.set_ylabel("translation", fontsize=8)
    _colour_bar(axes, image)
    save(figure, path)


def draw_attention(picture: AttentionPicture, path: Path) -> Any:
    """Draw all matrices of a sentence into a figure of this format."""
    cell = max(_SMALLEST_CELL, min(_CELL, _SIDE / len(picture.labels)))
    size = min(8.0, 0.8 * 72 * cell)  # of the labels, in points
    labels = [
        label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 1]}…"
        for label in picture.labels
    ]
    count = len(picture.panels)
    figure = _new_figure(
        path, labels, labels, picture.sentence, picture.subtitle, cell, size, count
    )
    for axes, panel in zip(
        figure.subplots(1, count, squeeze=False)[0], picture.panels, strict=True
    ):
        _draw(axes, panel, picture, labels, size)
    return figure


def _new_figure(
    path: Path,
    columns: list[str],
    rows: list[str],
    title: str,
    subtitle: str = "",
    cell: float = _CELL,
    size: float = 7,
    panels: int = 1,
) -> Any:
    """Begin a figure that has room for matrices of these columns and rows, side by side."""
    left, above = (max(map(columns_of, labels)) * size * 0.55 / 72 for labels in (rows, columns))
    width = panels * (max(2.4, cell * len(columns)) + left + 1.2)
    figure = new_figure(path, (width, max(2.0, cell * len(rows)) + above + 1.3))
    title = wrapped(title, max(40, int(11 * width)))
    figure.suptitle(f"{title}\n{subtitle}".strip(), fontsize=10, parse_math=False)
    return figure


def _show_matrix(
    axes: Any, values: np.ndarray, columns: list[str], rows: list[str], size: float, scale: _Scale
) -> Any:
    """Draw a matrix with labels of this size; returns matplotlib's image."""
    colours, least, largest = scale
    image = axes.imshow(values, cmap=colours, vmin=least, vmax=largest)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    for axis, labels, turned in ((axes.xaxis, columns, 90), (axes.yaxis, rows, 0)):
        axis.set_ticks(range(len(labels)), labels, rotation=turned, fontsize=size, parse_math=False)
    axes.tick_params(length=0)
    return image


def _draw(
    axes: Any, panel: Panel, picture: AttentionPicture, labels: list[str], size: float
) -> None:
    nodes = len(labels)
    if panel.is_attention:
        scale = ("Blues", 0.0, float(panel.values.max()))
    else:
        farthest = float(np.abs(panel.values).max()) or 1.0
        scale = ("RdBu_r", -1.4 * farthest, 1.4 * farthest)
    image = _show_matrix(axes, panel.values, labels, labels, size, scale)
    other_nodes = nodes - picture.num_tokens
    noun = picture.other_kind.removesuffix("s") if other_nodes == 1 else picture.other_kind
    parts = f": {picture.num_tokens} tokens | {other_nodes} {noun}" if other_nodes else ""
    axes.set_xlabel(f"attended to{parts}", fontsize=8)
    axes.set_ylabel("attending", fontsize=8)
    axes.set_title(panel.title, fontsize=10)
    _draw_boundaries(axes, picture)
    if panel.is_attention:
        _colour_bar(axes, image)
    elif nodes <= _MOST_NUMBERED and np.issubdtype(panel.values.dtype, np.integer):
        for (row, column), value in np.ndenumerate(panel.values):
            axes.text(column, row, f"{value:d}", ha="center", va="center", fontsize=0.8 * size)
    else:
        _colour_bar(axes, image).ax.set_ylim(-farthest, farthest)


def _colour_bar(axes: Any, image: Any) -> Any:
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.7, pad=0.02)
    bar.ax.tick_params(labelsize=7)
    return bar


def _draw_boundaries(axes: Any, picture: AttentionPicture) -> None:
    """Draw thin lines between words, and a thick line after the tokens."""
    words, nodes = picture.words, len(picture.words)
    begins = (np.diff(words) != 0) | (words[1:] < 0)
    boundaries = np.flatnonzero(begins) + 0.5
    end = picture.num_tokens - 0.5
    after = [end] if picture.num_tokens < nodes else []
    thin = {"color": "0.8", "linewidth": min(0.5, 40 / nodes), "zorder": 2}
    thick = {"color": "0.15", "linewidth": 1.4, "zorder": 3}
    for lines, style in ((boundaries[boundaries != end], thin), (after, thick)):
        axes.hlines(lines, -0.5, nodes - 0.5, **style)
        axes.vlines(lines, -0.5, nodes - 0.5, **style)
