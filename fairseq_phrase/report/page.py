"""A report as a single, self-contained HTML page."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files

from jinja2 import Environment

from fairseq_phrase.report.confusion import is_labelled, label_cells
from fairseq_phrase.report.differences import RowDifferences, marked_words
from fairseq_phrase.report.rows import Report
from fairseq_phrase.report.tables import (
    CONTRASTIVE,
    CONTRASTIVE_NOTE,
    LABELS,
    contrastive_cells,
    table_cells,
)

_TEMPLATE = "page.html"


def page(
    report: Report, pictures: Mapping[str, bytes], found: Sequence[RowDifferences], runs: str
) -> str:
    """Write a report as HTML.

    Args:
        report: the report.
        pictures: PNG files by title.
        found: examples of translations that differ.
        runs: the table of single runs, as CSV.
    """
    heading, *lines = table_cells(report)
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    source = files("fairseq_phrase.report").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    return environment.from_string(source).render(
        report=report,
        heading=heading,
        lines=list(zip(report.shown, lines, strict=True)),
        labels=label_cells(report) if is_labelled(report) else [],
        labels_title=LABELS,
        contrastive=contrastive_cells(report),
        contrastive_title=CONTRASTIVE,
        contrastive_note=CONTRASTIVE_NOTE,
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
