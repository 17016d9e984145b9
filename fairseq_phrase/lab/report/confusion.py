"""Confusions of labels: a picture, and precision, recall and F1 of each label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fairseq_phrase.lab.pictures.figures import new_figure, save
from fairseq_phrase.lab.report.rows import Report, Row
from fairseq_phrase.metrics.labels import LabelMetrics, label_scores

_MOST = 20  # labels in the picture and in the table


def is_labelled(report: Report) -> bool:
    """Return whether the report's systems label words or sentences."""
    return report.metrics.outputs == LabelMetrics.outputs


def chosen_rows(report: Report) -> list[Row]:
    """Return the baseline and the best other row, or the best row without a baseline."""
    candidates = [row for row in report.rows_with_runs if row is not report.baseline]
    sign = 1 if report.main in report.metrics.lower_is_better else -1
    best = sorted(candidates, key=lambda row: sign * (row.mean(report.main) or 0))[:1]
    return [*([report.baseline] if report.baseline is not None else []), *best]


def frequent_labels(report: Report) -> list[str]:
    """Return the labels of the references, the most frequent first."""
    counts = Counter(_flat(report.references))
    return sorted(counts, key=lambda label: (-counts[label], label))


def label_cells(report: Report) -> list[list[str]]:
    """Return a table of labels, the heading first: count, then precision, recall and F1 of two rows.

    The numbers are percentages, means over the seeds. Only the most frequent labels are listed.
    """
    labels, rows = frequent_labels(report)[:_MOST], chosen_rows(report)
    true = _flat(report.references)
    cells = [["label", "count"], *([label, str(true.count(label))] for label in labels)]
    for row in rows:
        scores = np.mean(
            [label_scores(true, _flat(run.hypotheses), labels) for run in row.runs], axis=0
        )
        cells[0] += [f"{row.title}: {name}" for name in ("precision", "recall", "F1")]
        for line, values in zip(cells[1:], scores, strict=True):
            line += [f"{value:.1f}" for value in values]
    return cells


def plot_confusion(report: Report, path: Path) -> None:
    """Draw which labels are confused, for the baseline and the best other row.

    Each line is a true label; its cells sum to 1 over all labels, of which the most frequent are drawn.
    """
    labels, rows = frequent_labels(report)[:_MOST], chosen_rows(report)
    side = max(4.0, 0.32 * len(labels))
    figure = new_figure(path, (side * len(rows) + 1.0, side + 0.8))
    panels = figure.subplots(1, len(rows), squeeze=False)[0]
    true = _flat(report.references)
    for axes, row in zip(panels, rows, strict=True):
        shares = np.mean([_shares(true, _flat(run.hypotheses), labels) for run in row.runs], axis=0)
        image = axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
        axes.set_xticks(range(len(labels)), labels, rotation=90, fontsize=7)
        axes.set_yticks(range(len(labels)), labels, fontsize=7)
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        axes.set_title(row.title, fontsize=9)
    figure.colorbar(image, ax=list(panels), shrink=0.8)
    save(figure, path)


def _flat(lines: Sequence[str]) -> list[str]:
    return [label for line in lines for label in line.split()]


def _shares(true: list[str], predicted: list[str], labels: list[str]) -> np.ndarray:
    """Return how often each true label becomes each label. Shape: (labels, labels)."""
    pairs, totals = Counter(zip(true, predicted, strict=True)), Counter(true)
    return np.array(
        [[pairs[label, prediction] / totals[label] for prediction in labels] for label in labels]
    )
