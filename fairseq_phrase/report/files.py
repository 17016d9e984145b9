"""The files of a report, with a single, self-contained HTML page."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment

from fairseq_phrase.report.confusion import is_labelled, plot_confusion
from fairseq_phrase.report.differences import RowDifferences, marked_words, row_differences
from fairseq_phrase.report.plots import lengths_title, plot_curves, plot_lengths
from fairseq_phrase.report.rows import Report
from fairseq_phrase.report.tables import (
    latex,
    markdown,
    other_tables,
    rows_csv,
    runs_csv,
    table_cells,
)
from fairseq_phrase.text import written_together

_TEMPLATE = "page.html"


def page(
    report: Report, pictures: Mapping[str, bytes], found: Sequence[RowDifferences], runs: str
) -> str:
    """Write a report as HTML.

    Args:
        pictures: PNG files by title.
    """
    heading, *lines = table_cells(report)
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    source = files("fairseq_phrase.report").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    return environment.from_string(source).render(
        report=report,
        heading=heading,
        lines=list(zip(report.shown, lines, strict=True)),
        tables=other_tables(report),
        pictures={
            title: base64.b64encode(picture).decode("ascii") for title, picture in pictures.items()
        },
        differences=found,
        phrases=_phrases,
        runs=runs,
    )


def _phrases(text: str, other: str) -> Iterator[tuple[bool, str]]:
    """Yield runs of words, and whether the other text lacks them."""
    for new, words in itertools.groupby(marked_words(text, other), key=lambda pair: pair[1]):
        yield new, " ".join(word for word, _ in words)


FILES = (
    "report.md", "report.csv", "runs.csv", "report.tex", "curves.png", "lengths.png", "confusion.png",
    "report.html",
)  # fmt: skip


def write_report(report: Report, folder: Path, examples: int) -> list[Path]:
    """Write a report: all of its files, or no file. Return the files.

    Args:
        examples: how many translations with the largest gains to show for each row, and how many with the
            largest losses.

    Raises:
        UserError: matplotlib is missing.
        OSError: the files cannot be written.
    """
    with written_together(folder) as made:
        runs = runs_csv(report)
        pictures = {}
        if plot_curves(report, made / "curves.png"):
            pictures["Learning curves"] = (made / "curves.png").read_bytes()
        plot_lengths(report, made / "lengths.png")
        pictures[lengths_title(report)] = (made / "lengths.png").read_bytes()
        if is_labelled(report):
            plot_confusion(report, made / "confusion.png")
            pictures["Confusion of labels"] = (made / "confusion.png").read_bytes()
        texts = {
            "report.md": markdown(report),
            "report.csv": rows_csv(report),
            "runs.csv": runs,
            "report.tex": latex(report),
            "report.html": page(report, pictures, row_differences(report, examples), runs),
        }
        for name, text in texts.items():
            (made / name).write_text(text, encoding="utf-8")
        written = [name for name in FILES if (made / name).is_file()]
    for name in FILES:
        if name not in written:
            (folder / name).unlink(missing_ok=True)  # an older report's
    return [folder / name for name in written]
