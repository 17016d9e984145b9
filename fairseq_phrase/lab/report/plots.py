"""A report's pictures: learning curves, and the main metric by the length of the sentence."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_phrase.lab.pictures.figures import new_figure, save
from fairseq_phrase.lab.report.rows import Report, Row
from fairseq_phrase.lab.report.runs import Run

_BUCKETS = 6
_SMALLEST_BUCKET = 30  # sentences: a score of fewer sentences is not reliable
_MARKERS = "os^Dv<>p*hX"


@dataclass(frozen=True)
class LengthBucket:
    """Sentences of similar length.

    Attributes:
        shortest: the smallest number of words of a sentence in the bucket.
        indices: the sentences, from 0.
    """

    shortest: int
    longest: int
    indices: list[int]


def length_buckets(sentences: Sequence[str]) -> list[LengthBucket]:
    """Split a test set by the length of its sentences.

    Args:
        sentences: the raw sources or reference translations, which are the same for all models and do
            not depend on subwords; words are separated by white space.

    Returns:
        Six buckets of about the same number of sentences, the shortest first; fewer if many sentences
        have one length, which are all in one bucket, or the test set is small.
    """
    by_length: dict[int, list[int]] = {}
    for index, sentence in enumerate(sentences):
        by_length.setdefault(len(sentence.split()), []).append(index)
    least = max(min(_SMALLEST_BUCKET, len(sentences)), len(sentences) / _BUCKETS)
    buckets: list[LengthBucket] = []
    lengths: list[int] = []
    members: list[int] = []
    remaining = len(sentences)
    for length in sorted(by_length):
        lengths.append(length)
        members += by_length[length]
        remaining -= len(by_length[length])
        # If the remaining sentences are too few for a bucket, they go into this one.
        if (len(members) >= least and remaining >= least / 2) or not remaining:
            buckets.append(LengthBucket(lengths[0], lengths[-1], sorted(members)))
            lengths, members = [], []
    return buckets


def score_by_length(row: Row, report: Report, buckets: Sequence[LengthBucket]) -> list[float]:
    """Return a row's main metric in each bucket, the mean over its runs."""
    runs = [row.sentences(number, report.main) for number in range(len(row.runs))]
    return [
        statistics.fmean(
            report.metrics.score(report.main, run[bucket.indices].sum(0)) for run in runs
        )
        for bucket in buckets
    ]


def lengths_title(report: Report) -> str:
    """Return the title of :func:`plot_lengths`, which names the side whose length counts."""
    return f"{report.main} by length of the {_side(report)}"


def _side(report: Report) -> str:
    """Name the side whose words are counted: the source where its raw sentences are known."""
    return "reference" if report.sources is None else "source"


def plot_lengths(report: Report, path: Path) -> None:
    """Draw the main metric by the length of the source or the reference, a line for each row."""
    figure = new_figure(path, (8.0, 4.8))
    axes = figure.subplots()
    buckets = length_buckets(report.sources or report.references)
    for number, row in enumerate(row for row in report.rows if row.runs):
        axes.plot(
            range(len(buckets)), score_by_length(row, report, buckets), label=row.title,
            **_style(number),
        )  # fmt: skip
    labels = [f"{bucket.shortest}-{bucket.longest}\nn={len(bucket.indices)}" for bucket in buckets]
    axes.set_xticks(range(len(buckets)), labels)
    axes.set_xlabel(f"words of the {_side(report)}; sentences")
    axes.set_ylabel(report.main)
    axes.set_title(title_of(report, lengths_title(report)))
    _finish(figure, axes, path)


def plot_curves(report: Report, path: Path) -> bool:
    """Draw perplexity and, if training computed it, BLEU on the validation set; a line for each run.

    Returns:
        Whether there was anything to draw; if not, no file is written.
    """
    curves = [
        (name, label)
        for name, label in (("ppl", "validation perplexity"), ("bleu", "validation BLEU"))
        if any(_curve(run, name) for row in report.rows for run in row.runs)
    ]
    if not curves:
        return False
    figure = new_figure(path, (7.0 * len(curves), 4.8))
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, (name, label) in zip(panels, curves, strict=True):
        for number, row in enumerate(row for row in report.rows if row.runs):
            legend: str | None = row.title
            for points in filter(None, (_curve(run, name) for run in row.runs)):
                updates, values = zip(*points, strict=True)
                axes.plot(updates, values, label=legend, **_style(number, len(points)))
                legend = None  # once for all seeds
        if name == "ppl":
            _logarithmic(axes)
        axes.set_xlabel("updates")
        axes.set_ylabel(label)
        axes.set_title(title_of(report, label))
    _finish(figure, panels[-1], path)
    return True


def _curve(run: Run, name: str) -> list[tuple[int, float]]:
    """Return (update, value) of each validation that has the value."""
    points = [
        (validation.update, validation._asdict()[name]) for validation in run.training.validations
    ]
    return [(update, value) for update, value in points if value is not None]


def _style(number: int, points: int = 0) -> dict[str, Any]:
    """Return a colour and a marker: lines also differ for readers who cannot see colours."""
    return {
        "color": f"C{number % 10}",
        "marker": _MARKERS[number % len(_MARKERS)],
        "markevery": max(1, points // 12),
        "markersize": 4.5,
        "linewidth": 1.3,
        "linestyle": "-" if number < 10 else "--",
    }


def _logarithmic(axes: Any) -> None:
    """Scale the y axis, with plain numbers at 1, 2 and 5 times powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())


def title_of(report: Report, text: str) -> str:
    """Mark the title of a plot of a part of the runs."""
    return f"{text} (PARTIAL: runs left out)" if report.left_out else text


def _finish(figure: Any, legend: Any, path: Path) -> None:
    for axes in figure.axes:
        axes.grid(alpha=0.3)
    legend.legend(fontsize=8)
    save(figure, path)
