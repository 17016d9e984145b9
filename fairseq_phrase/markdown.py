"""Tables in Markdown, and text that Markdown shows unchanged."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tabulate import tabulate

# Where Markdown reads a character as markup: "_" only at the end of a word, "<" only before a possible
# tag, "&" only before a possible entity.
_MARKUP = re.compile(r"[\\`*\[\]|]|~(?=~)|(?<!\w)_|_(?!\w)|<(?=[a-zA-Z/!?])|&(?=#?\w+;)")


def escaped(text: str) -> str:
    r"""Escape a text, such as a title, for unchanged display by Markdown, in one line.

    >>> print(escaped("a|b [c] <d>"))
    a\|b \[c\] \<d>
    """
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split("\n")))


def code(text: str) -> str:
    """Write a text as code, in one line."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if len(fence) > 1 else ""
    return fence + space + " ".join(text.split("\n")) + space + fence


def markdown_table(
    headings: Sequence[str], lines: Sequence[Sequence[str]], texts: int | None = None
) -> str:
    """Format cells as a Markdown table.

    >>> print(markdown_table(["model", "BLEU"], [["Transformer", "9.50"]], texts=1))
    | model       |   BLEU |
    |:------------|-------:|
    | Transformer |   9.50 |

    Args:
        lines: the rows' cells as text; they are escaped.
        texts: how many columns, from the left, are text; the others are numbers, aligned on the right.
            If None, all are text.

    Returns:
        The table, without a newline at its end.
    """
    cells = [list(map(escaped, line)) for line in (headings, *lines)]
    # Numbers are already formatted: tabulate would read "0.050" as 0.05.
    numbers = 0 if texts is None else len(headings) - texts
    table: str = tabulate(
        cells[1:], headers=cells[0], tablefmt="github" if texts is None else "pipe",
        disable_numparse=True, colalign=["left"] * (len(headings) - numbers) + ["right"] * numbers,
    )  # fmt: skip
    return table
