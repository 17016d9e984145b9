"""Fonts for the characters of a figure that matplotlib's font lacks."""

from __future__ import annotations

import logging
import unicodedata
from functools import cache
from typing import Any

logger = logging.getLogger(__name__)

#: Fonts that draw all characters as boxes, or that matplotlib cannot draw.
_USELESS = ("Last Resort", "LastResort", "Color Emoji", "Adobe Blank")
_SHOWN = 5


def use_fonts(figure: Any) -> None:
    """Let a figure's texts use installed fonts for characters that matplotlib's font lacks.

    If no installed font has a character, a warning names it.
    """
    from matplotlib.font_manager import FontProperties, findfont
    from matplotlib.text import Text

    texts = figure.findobj(Text)
    families = texts[0].get_fontfamily() if texts else []
    drawn = {character for text in texts for character in text.get_text()}
    missing = {character for character in drawn if _is_drawn(character)}
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


def _is_drawn(character: str) -> bool:
    """Return whether a character has a glyph: spaces, and control and format characters, do not."""
    return unicodedata.category(character)[0] not in "CZ"


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
