"""Sentences that two models translate differently."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import numpy as np

from fairseq_phrase.report.rows import Report, Row


@dataclass(frozen=True)
class Difference:
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
        equal: number of sentences with the same score.
        better: number of sentences with a higher score than the baseline's.
        worse: number of sentences with a lower score.
        best: the sentences with the largest gains, in descending order.
        worst: the sentences with the largest losses, in descending order.
    """

    row: Row
    seed: int | None
    equal: int
    better: int
    worse: int
    best: list[Difference]
    worst: list[Difference]


def row_differences(report: Report, count: int) -> list[RowDifferences]:
    """Find where the rows differ most from the baseline.

    Args:
        count: how many sentences of each direction.

    Returns:
        The differences of each row that shares a seed with the baseline, for the first shared seed. Empty
        without a baseline.
    """
    if report.baseline is None:
        return []
    found = []
    for row in report.rows:
        seeds = [run.seed for run in row.runs]
        shared = [
            (number, seeds.index(run.seed))
            for number, run in enumerate(report.baseline.runs)
            if run.seed in seeds
        ]
        if row is not report.baseline and shared:
            found.append(_run_differences(report, report.baseline, row, shared[0], count))
    return found


def _run_differences(
    report: Report, baseline: Row, row: Row, runs: tuple[int, int], count: int
) -> RowDifferences:
    """Compare a run of the baseline and a run of a row; ``runs`` has their indices."""
    name, pair = report.metrics.sentence_metric, list(zip((baseline, row), runs, strict=True))
    # Each: (sentences, statistics) -> (sentences,)
    before, after = (report.metrics.scores(name, one.sentences(at, name)) for one, at in pair)
    texts = [one.runs[at].hypotheses for one, at in pair]
    sources = report.sources or baseline.runs[runs[0]].sources
    gains = after - before
    ascending = [int(index) for index in np.argsort(gains, kind="stable")]
    worse = [index for index in ascending if gains[index] < 0]
    better = [index for index in reversed(ascending) if gains[index] > 0]

    def described(index: int) -> Difference:
        return Difference(
            index, sources[index], report.references[index], texts[0][index], texts[1][index],
            float(before[index]), float(after[index]),
        )  # fmt: skip

    return RowDifferences(
        row,
        baseline.runs[runs[0]].seed,
        len(gains) - len(better) - len(worse),
        len(better),
        len(worse),
        [described(index) for index in better[:count]],
        [described(index) for index in worse[:count]],
    )


def marked_words(text: str, other: str) -> list[tuple[str, bool]]:
    """Split a text into words, and find the words that the other text lacks.

    Returns:
        Each word, and whether it is not part of the longest common subsequences of both.
    """
    words = text.split()
    matcher = difflib.SequenceMatcher(a=words, b=other.split(), autojunk=False)
    common = {
        block.a + offset for block in matcher.get_matching_blocks() for offset in range(block.size)
    }
    return [(word, index not in common) for index, word in enumerate(words)]
