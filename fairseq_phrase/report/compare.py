"""Comparisons of a report's rows with its baseline."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from fairseq_phrase.report.metrics import TESTED, Metrics, Statistics, bleu_scores
from fairseq_phrase.report.rows import Row
from fairseq_phrase.report.seed_significance import compare_seeds, holm, resample_sentences
from fairseq_phrase.report.sentence_significance import sentence_p_value, summarize

#: By row: for each run and each test set, sacrebleu's statistics by metric.
RunStatistics = Mapping[str, Sequence[Sequence[Mapping[str, Statistics]]]]


def compare_over_sentences(
    rows: Sequence[Row],
    baseline: Row,
    statistics: RunStatistics,
    metrics: Metrics,
    test: str,
    trials: int,
) -> None:
    """Test each run against the baseline's run of the same seed, in each metric.

    Args:
        rows: the rows, scored; their ``by_sentences`` is filled.
        baseline: the row that the others are compared with.
        statistics: sacrebleu's statistics of all runs.
        metrics: the metrics.
        test: ``ar`` or ``bs``.
        trials: 0 for the default.
    """
    theirs = {run.seed: number for number, run in enumerate(baseline.runs)}
    for row in rows:
        if row is baseline:
            continue
        pairs = [
            (number, theirs[run.seed]) for number, run in enumerate(row.runs) if run.seed in theirs
        ]
        for metric in TESTED:
            found = []
            for ours, other in pairs:
                p = sentence_p_value(
                    [one[metric] for one in statistics[row.name][ours]],
                    [one[metric] for one in statistics[baseline.name][other]],
                    functools.partial(metrics.scores, metric),
                    test,
                    trials,
                )
                difference = row.run_scores(metric)[ours] - baseline.run_scores(metric)[other]
                found.append((p, difference))
            comparison = summarize(metric, found)
            if comparison is not None:
                row.by_sentences[metric] = comparison


def compare_over_seeds(
    rows: Sequence[Row],
    baseline: Row,
    statistics: RunStatistics,
    resamples: int,
) -> None:
    """Test BLEU of each row that has two seeds or more against the baseline, and correct by Holm.

    Args:
        rows: the rows, scored; their ``by_seeds`` is filled.
        baseline: the row that the others are compared with.
        statistics: sacrebleu's statistics of all runs.
        resamples: number of resamples of the bootstrap.
    """
    if len(baseline.runs) < 2:
        return
    tested = [baseline, *(row for row in rows if row is not baseline and len(row.runs) > 1)]
    runs = [[one["BLEU"] for one in run] for row in tested for run in statistics[row.name]]
    ends = np.cumsum([len(row.runs) for row in tested])
    # (runs, resamples) -> for each row (seeds, resamples)
    resampled = np.split(resample_sentences(runs, bleu_scores, resamples), ends[:-1])
    scores = [np.array(row.run_scores("BLEU")) for row in tested]
    found = []
    for row, own, own_resampled in zip(tested[1:], scores[1:], resampled[1:], strict=True):
        comparison = compare_seeds(own, scores[0], own_resampled, resampled[0])
        if comparison is not None:
            found.append((row, comparison))
    corrected = holm([comparison.p for _, comparison in found])
    for (row, comparison), p in zip(found, corrected, strict=True):
        row.by_seeds = dataclasses.replace(comparison, p_holm=p)
