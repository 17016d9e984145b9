"""Figures that are drawn into files, without a screen, with fonts for all characters."""

from __future__ import annotations

import logging
import textwrap
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

from fairseq_phrase.errors import UserError, named_in_errors
from fairseq_phrase.optional_packages import optional_packages

logger = logging.getLogger(__name__)

#: Fonts that draw all characters as boxes, or that matplotlib cannot draw.
_USELESS = ("Last Resort", "LastResort", "Color Emoji", "Adobe Blank")
_SHOWN = 5


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


def use_fonts(figure: Any) -> None:
    """Let a figure's texts use installed fonts for characters that matplotlib's font lacks; or warn."""
    from matplotlib.font_manager import FontProperties, findfont
    from matplotlib.text import Text

    texts = figure.findobj(Text)
    families = texts[0].get_fontfamily() if texts else []
    drawn = {character for text in texts for character in text.get_text()}
    # Spaces, and control and format characters, have no glyph.
    missing = {character for character in drawn if unicodedata.category(character)[0] not in "CZ"}
    for family in families:
        missing -= _characters(findfont(FontProperties(family=[family])))
    fallbacks = []
    for name, path in installed_fonts() if missing else ():
        if missing & _characters(path):
            fallbacks.append(name)
            missing -= _characters(path)
    for text in texts if fallbacks else ():
        text.set_fontfamily([*families, *fallbacks])
    if missing:
        some = ", ".join(
            f"{character} (U+{ord(character):04X})" for character in sorted(missing)[:_SHOWN]
        )
        logger.warning(
            "no installed font has %d characters of a picture, such as %s: they are boxes. Install fonts "
            "for them; on Debian and Ubuntu: apt install fonts-noto",
            *(len(missing), some),
        )


@cache
def installed_fonts() -> list[tuple[str, str]]:
    """List the installed fonts, name and file: upright fonts of ordinary weight without serifs first.

    matplotlib's list may be older than a font.
    """
    from matplotlib.font_manager import findSystemFonts, fontManager

    listed = {entry.fname for entry in fontManager.ttflist}
    for path in sorted({*findSystemFonts()} - listed):
        try:
            fontManager.addfont(path)
        except (OSError, RuntimeError, ValueError):  # a damaged font
            continue

    def rank(entry: Any) -> tuple[Any, ...]:
        weight = abs(entry.weight - 400) if isinstance(entry.weight, int) else 0
        return entry.style != "normal", weight, "Sans" not in entry.name, entry.name, entry.fname

    fonts = sorted(fontManager.ttflist, key=rank)
    return [
        (font.name, font.fname) for font in fonts if not any(name in font.name for name in _USELESS)
    ]


@cache
def _characters(path: str) -> frozenset[str]:
    """Return the characters of a font's file; none of a damaged one."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(map(chr, FT2Font(path).get_charmap()))
    except (OSError, RuntimeError, ValueError):
        return frozenset()
