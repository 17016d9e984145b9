"""Figures that are drawn into files, without a screen."""

from __future__ import annotations

import textwrap
import unicodedata
from pathlib import Path
from typing import Any

from fairseq_phrase.errors import UserError, named_in_errors
from fairseq_phrase.lab.pictures.fonts import use_fonts
from fairseq_phrase.optional_packages import optional_packages


def new_figure(path: Path, size: tuple[float, float]) -> Any:
    """Begin a figure.

    Args:
        path: its file; the suffix (``.png``, ``.svg``, ``.pdf``) is the format.
        size: width and height in inches.

    Raises:
        UserError: matplotlib is missing or does not know the format.
    """
    with optional_packages("plots need matplotlib", "matplotlib"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    figure = Figure(figsize=size, layout="constrained")
    formats = FigureCanvasAgg(figure).get_supported_filetypes()
    if path.suffix.lstrip(".") not in formats:
        raise UserError(
            f"cannot draw '{path.name}': its suffix must be one of {', '.join(formats)}"
        )
    return figure


def columns_of(text: str) -> int:
    """Count a text's columns: two for a wide character, none for a combining mark."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    marks = sum(unicodedata.category(character) == "Mn" for character in text)
    return len(text) + wide - marks


def wrapped(text: str, columns: int) -> str:
    """Divide a text into lines of about so many columns."""
    # textwrap counts characters: as many as fill the columns on average.
    return textwrap.fill(text, max(1, columns * len(text) // max(1, columns_of(text))))


def save(figure: Any, path: Path) -> None:
    """Write a figure to its file; make the folder if necessary; never leave a partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    use_fonts(figure)
    with named_in_errors(path):
        figure.savefig(path, dpi=150, bbox_inches="tight", pad_inches=0.1)
