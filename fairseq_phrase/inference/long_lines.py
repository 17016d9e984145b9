"""Lines that are longer than a model can read, in pieces."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

# A sentence ends at these marks, perhaps with a closing quote or bracket after them.
_SENTENCE_END = re.compile(r"""[.!?…][)\]"'”’»]*\s+|[。！？][」』）]*\s*""")
_SPACE = re.compile(r"\s+")


def cut_to_fit(line: str, encoded: Any, encode: Callable[[list[str]], list[Any]], limit: int):
    """Cut a line into pieces that a model can read.

    A piece that is too long is cut in two at the end of a sentence, at the one that is nearest to its
    middle; without one at a space, and without a space between two characters.

    Args:
        line: the line.
        encoded: its token indices. Shape: ``(tokens,)``.
        encode: a function that encodes lines.
        limit: the largest number of tokens.

    Returns:
        The pieces' token indices, in order; one if the line fits.
    """
    if len(encoded) <= limit or len(line) < 2:
        return [encoded]
    parts = halves(line)
    return [
        piece
        for part, own in zip(parts, encode(parts), strict=True)
        for piece in cut_to_fit(part, own, encode, limit)
    ]


def halves(text: str) -> list[str]:
    """Cut a text of two or more characters in two, where a reader would cut it.

    Examples:
        >>> halves("It rains. We stay at home.")
        ['It rains.', 'We stay at home.']
        >>> halves("abcd")
        ['ab', 'cd']
    """
    text = text.strip()
    for pattern in (_SENTENCE_END, _SPACE):
        ends = [found.end() for found in pattern.finditer(text) if found.end() < len(text)]
        if ends:
            middle = min(ends, key=lambda end: abs(2 * end - len(text)))
            return [text[:middle].rstrip(), text[middle:]]
    return [text[: len(text) // 2], text[len(text) // 2 :]]
