"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate


def markdown_table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Lay cells out as a Markdown table.

    Args:
        headings: the columns' names.
        lines: the rows' cells, as they are to be shown; a ``|`` in them is escaped.

    Returns:
        The table, without a newline at its end.
    """
    cells = [[cell.replace("|", "\\|") for cell in line] for line in (headings, *lines)]
    # Numbers are formatted already: tabulate would read "0.050" as 0.05.
    return tabulate(
        cells[1:], headers=cells[0], tablefmt="github", disable_numparse=True,
        colalign=["left"] * len(cells[0]),
    )  # fmt: skip
