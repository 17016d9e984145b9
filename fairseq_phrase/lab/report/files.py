"""The files of a report, with a self-contained HTML page and examples of differences."""

from __future__ import annotations

import base64
import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
from jinja2 import Environment

from fairseq_phrase.errors import named_in_errors
from fairseq_phrase.lab.report.confusion import is_labelled, plot_confusion
from fairseq_phrase.lab.report.plots import lengths_title, plot_curves, plot_lengths
from fairseq_phrase.lab.report.rows import Report, Row
from fairseq_phrase.lab.report.tables import (
    latex,
    markdown,
    other_tables,
    rows_csv,
    runs_csv,
    table_cells,
)
from fairseq_phrase.text import written_together


def page(
    report: Report, pictures: Mapping[str, bytes], differences: Sequence[RowDifferences], runs: str
) -> str:
    """Write a report as HTML.

    Args:
        pictures: PNG files by title.
    """
    heading, *lines = table_cells(report)
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    source = files("fairseq_phrase.lab.report").joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(source).render(
        report=report,
        heading=heading,
        lines=list(zip(report.shown_rows, lines, strict=True)),
        tables=other_tables(report),
        pictures={
            title: base64.b64encode(picture).decode("ascii") for title, picture in pictures.items()
        },
        differences=differences,
        phrases=marked_phrases,
        runs=runs,
    )


def marked_phrases(text: str, other_text: str) -> Iterator[tuple[bool, str]]:
    """Yield runs of words, and whether the other text lacks them."""
    words = text.split()
    matcher = difflib.SequenceMatcher(a=words, b=other_text.split(), autojunk=False)
    for change, start, end, *_ in matcher.get_opcodes():
        if start < end:
            yield change != "equal", " ".join(words[start:end])


FILES = (
    "report.md", "report.csv", "runs.csv", "report.tex", "curves.png", "lengths.png", "confusion.png",
    "report.html",
)  # fmt: skip

#: The number of translations with the largest gains that a row shows, and with the largest losses.
SHOWN = 5


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write a report: all of its files, or no file. Return the files."""
    with written_together(folder) as staging:
        runs = runs_csv(report)
        pictures = {}
        if plot_curves(report, staging / "curves.png"):
            pictures["Learning curves"] = (staging / "curves.png").read_bytes()
        plot_lengths(report, staging / "lengths.png")
        pictures[lengths_title(report)] = (staging / "lengths.png").read_bytes()
        if is_labelled(report):
            plot_confusion(report, staging / "confusion.png")
            pictures["Confusion of labels"] = (staging / "confusion.png").read_bytes()
        texts = {
            "report.md": markdown(report),
            "report.csv": rows_csv(report),
            "runs.csv": runs,
            "report.tex": latex(report),
            "report.html": page(report, pictures, row_differences(report), runs),
        }
        for name, text in texts.items():
            with named_in_errors(folder / name):
                (staging / name).write_text(text, encoding="utf-8")
        written = [name for name in FILES if (staging / name).is_file()]
    for name in FILES:
        if name not in written:
            (folder / name).unlink(missing_ok=True)  # an older report's
    return [folder / name for name in written]


@dataclass(frozen=True)
class SentenceDifference:
    """A sentence and its two translations.

    Attributes:
        index: the sentence's number, from 0, in the concatenated test sets.
    """

    index: int
    source: str
    reference: str
    baseline: str
    other: str
    baseline_score: float
    other_score: float


@dataclass(frozen=True)
class RowDifferences:
    """The sentences in which a row and the baseline differ most, for one pair of runs.

    Attributes:
        seed: the seed of both runs.
        equal, better, worse: numbers of sentences whose score equals the baseline's, is higher, is lower.
        best, worst: the sentences with the largest gains and losses, the largest first.
    """

    row: Row
    seed: int | None
    equal: int
    better: int
    worse: int
    best: list[SentenceDifference]
    worst: list[SentenceDifference]


def row_differences(report: Report) -> list[RowDifferences]:
    """Find the sentences in which the rows differ most from the baseline.

    Returns:
        The differences of each row that shares a seed with the baseline, for the first shared seed. Empty
        without a baseline.
    """
    if report.baseline is None:
        return []
    differences = []
    for row in report.rows:
        shared = report.baseline.same_seeds(row)
        if row is not report.baseline and shared:
            differences.append(_run_differences(report, report.baseline, row, shared[0]))
    return differences


def _run_differences(
    report: Report, baseline: Row, row: Row, runs: tuple[int, int]
) -> RowDifferences:
    """Compare a run of the baseline and a run of a row; ``runs`` has their indices."""
    name, pair = report.metrics.sentence_metric, list(zip((baseline, row), runs, strict=True))
    # Each: (sentences, statistics) -> (sentences,)
    before, after = (
        report.metrics.scores(name, compared.sentences(at, name)) for compared, at in pair
    )
    texts = [compared.runs[at].hypotheses for compared, at in pair]
    sources = report.sources or baseline.runs[runs[0]].sources
    gains = after - before
    ascending = [int(index) for index in np.argsort(gains, kind="stable")]
    worse = [index for index in ascending if gains[index] < 0]
    better = [index for index in reversed(ascending) if gains[index] > 0]

    def described(index: int) -> SentenceDifference:
        return SentenceDifference(
            index, sources[index], report.references[index], texts[0][index], texts[1][index],
            float(before[index]), float(after[index]),
        )  # fmt: skip

    return RowDifferences(
        row,
        baseline.runs[runs[0]].seed,
        len(gains) - len(better) - len(worse),
        len(better),
        len(worse),
        [described(index) for index in better[:SHOWN]],
        [described(index) for index in worse[:SHOWN]],
    )
