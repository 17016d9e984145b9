"""What each word of a translation attends to in the source: alignments, of any decoder with attention."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairseq_phrase.attention.constituent_maps import translate
from fairseq_phrase.attention.heat_maps import show_matrix
from fairseq_phrase.batch.source_sentence import SourceSentence, require_length, written
from fairseq_phrase.errors import UserError
from fairseq_phrase.figures import new_figure, save

#: Longer sentences are not drawn, because the labels would be unreadable. Translations end there.
MAX_TOKENS = 100
_CELL, _LABELS = 0.3, 7  # inches, points


@dataclass(frozen=True)
class AlignmentPicture:
    """The attention of a translation.

    Attributes:
        sentence: the source's text.
        source: the source's tokens.
        target: the translation's tokens.
        weights: row attends to column. Shape: ``(target tokens, source tokens)``.
    """

    sentence: str
    source: list[str]
    target: list[str]
    weights: np.ndarray


def alignment_picture(model: Any, task: Any, sentence: SourceSentence) -> AlignmentPicture:
    """Translate a sentence, and compute what each token of the translation attends to.

    Args:
        model: a model whose decoder returns its attention, as fairseq's decoders do.
        task: its task.
        sentence: the sentence.

    Raises:
        UserError: the model does not translate, its decoder does not attend, or the sentence is too long.
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
    target = written(tokens, dictionary, sentence.copied)
    return AlignmentPicture(
        sentence.text, sentence.tokens, target, weights[0].float().cpu().numpy()
    )


def plot_alignment(picture: AlignmentPicture, path: Path) -> None:
    """Draw an alignment.

    Args:
        picture: the alignment.
        path: the file to write; its suffix (``.png``, ``.svg``, ``.pdf``) is the format.

    Raises:
        UserError: matplotlib is missing or does not know the format.
    """
    rows, columns = picture.weights.shape
    beside = max(map(len, picture.target)) * _LABELS * 0.55 / 72
    above = max(map(len, picture.source)) * _LABELS * 0.55 / 72
    width = max(2.4, _CELL * columns) + beside + 1.2
    figure = new_figure(path, (width, max(2.0, _CELL * rows) + above + 1.3))
    axes = figure.subplots()
    image = show_matrix(
        axes, picture.weights, picture.source, picture.target, _LABELS,
        cmap="Blues", vmin=0.0, vmax=float(picture.weights.max()),
    )  # fmt: skip
    axes.set_xlabel("source", fontsize=8)
    axes.set_ylabel("translation", fontsize=8)
    figure.colorbar(image, ax=axes, shrink=0.7, pad=0.02).ax.tick_params(labelsize=7)
    title = textwrap.fill(picture.sentence, max(40, int(11 * width)))
    figure.suptitle(title, fontsize=10, parse_math=False)
    save(figure, path)
