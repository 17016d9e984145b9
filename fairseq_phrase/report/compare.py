"""Comparisons of a report's rows with its baseline."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fairseq_phrase.metrics.base import Metrics
from fairseq_phrase.metrics.over_seeds import compare_seeds, holm, resample_sentences
from fairseq_phrase.metrics.over_sentences import (
    mcnemar_p_value,
    sentence_p_value,
    summarize,
)
from fairseq_phrase.report.rows import Row
from fairseq_phrase.report.runs import Run


def compare_over_sentences(
    rows: Sequence[Row],
    baseline: Row,
    metrics: Sequence[Metrics],
    test: str,
    trials: int,
) -> None:
    """Test each run against the baseline's run of the same seed, in each metric.

    McNemar's test compares the items of the main metric only.

    Args:
        rows: the rows, scored; their ``by_sentences`` is filled.
        baseline: the row that the others are compared with.
        metrics: the metrics of each test set.
        test: ``ar``, ``bs`` or ``mcnemar``.
        trials: 0 for the default.
    """
    theirs = {run.seed: number for number, run in enumerate(baseline.runs)}
    for row in rows:
        if row is baseline:
            continue
        pairs = [
            (number, theirs[run.seed]) for number, run in enumerate(row.runs) if run.seed in theirs
        ]
        for metric in metrics[0].tested[: 1 if test == "mcnemar" else None]:
            found = []
            for ours, other in pairs:
                if test == "mcnemar":
                    p = mcnemar_p_value(
                        *(
                            _correct_items(one, metrics)
                            for one in (row.runs[ours], baseline.runs[other])
                        )
                    )
                else:
                    p = sentence_p_value(
                        [one[metric] for one in row.statistics[ours]],
                        [one[metric] for one in baseline.statistics[other]],
                        functools.partial(metrics[0].scores, metric),
                        test,
                        trials,
                    )
                difference = row.run_scores(metric)[ours] - baseline.run_scores(metric)[other]
                found.append((p, difference))
            comparison = summarize(found, metric in metrics[0].lower_is_better)
            if comparison is not None:
                row.by_sentences[metric] = comparison


def compare_over_seeds(
    rows: Sequence[Row],
    baseline: Row,
    metrics: Metrics,
    resamples: int,
) -> None:
    """Test each row with two seeds or more against the baseline, in each metric, corrected by Holm.

    Args:
        rows: the rows, scored; their ``by_seeds`` is filled.
        baseline: the row that the others are compared with.
        metrics: the metrics.
        resamples: number of resamples of the bootstrap.
    """
    tested = [
        row
        for row in (baseline, *(row for row in rows if row is not baseline))
        if len(row.runs) > 1 and not row.repeated
    ]
    if baseline not in tested:
        return
    ends = np.cumsum([len(row.runs) for row in tested])
    for metric in metrics.tested:
        runs = [[one[metric] for one in run] for row in tested for run in row.statistics]
        scores_of = functools.partial(metrics.scores, metric)
        # (runs, resamples) -> for each row (seeds, resamples)
        resampled = np.split(resample_sentences(runs, scores_of, resamples), ends[:-1])
        scores = [np.array(row.run_scores(metric)) for row in tested]
        found = []
        for row, own, own_resampled in zip(tested[1:], scores[1:], resampled[1:], strict=True):
            comparison = compare_seeds(own, scores[0], own_resampled, resampled[0])
            if comparison is not None:
                found.append((row, comparison))
        corrected = holm([comparison.p for _, comparison in found])
        for (row, comparison), p in zip(found, corrected, strict=True):
            row.by_seeds[metric] = dataclasses.replace(comparison, p_holm=p)


def _correct_items(run: Run, metrics: Sequence[Metrics]) -> NDArray[np.bool_]:
    """Return which items of all test sets a run has correct. Shape: (items,)."""
    outputs = [generation.hypotheses for generation in run.generations.values()]
    found = [one.correct_items(lines) for one, lines in zip(metrics, outputs, strict=True)]
    return np.concatenate([items for items in found if items is not None])
