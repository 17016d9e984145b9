"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate


def markdown_table(
    headings: Sequence[str], lines: Sequence[Sequence[str]], texts: int | None = None
) -> str:
    """Format cells as a Markdown table.

    >>> print(markdown_table(["model", "BLEU"], [["Transformer", "9.50"]], texts=1))
    | model       |   BLEU |
    |:------------|-------:|
    | Transformer |   9.50 |

    Args:
        lines: the rows' cells as text; a ``|`` in them is escaped.
        texts: how many columns, from the left, are texts; the others are numbers, aligned on the right.
            All are texts if None.

    Returns:
        The table, without a newline at its end.
    """
    cells = [[cell.replace("|", "\\|") for cell in line] for line in (headings, *lines)]
    # Numbers are already formatted: tabulate would read "0.050" as 0.05.
    numbers = 0 if texts is None else len(headings) - texts
    table: str = tabulate(
        cells[1:], headers=cells[0], tablefmt="github" if texts is None else "pipe",
        disable_numparse=True, colalign=["left"] * (len(headings) - numbers) + ["right"] * numbers,
    )  # fmt: skip
    return table
