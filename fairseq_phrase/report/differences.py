"""Sentences that two models translate differently."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairseq_phrase.metrics.base import Metrics
from fairseq_phrase.report.rows import Report, Row


@dataclass(frozen=True)
class Difference:
    """A sentence and its two translations.

    Attributes:
        index: the sentence's number, from 0, in the concatenated test sets.
        source: the sentence.
        reference: its reference translation.
        baseline: the baseline's translation.
        other: the other model's translation.
        baseline_score: sentence score of the baseline's translation.
        other_score: sentence score of the other model's translation.
    """

    index: int
    source: str
    reference: str
    baseline: str
    other: str
    baseline_score: float
    other_score: float

    @property
    def gain(self) -> float:
        """How much better the other is."""
        return self.other_score - self.baseline_score


@dataclass(frozen=True)
class RowDifferences:
    """The sentences in which a row and the baseline differ most, for one pair of runs.

    Attributes:
        row: the row.
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
        report: the report.
        count: how many sentences of each direction.

    Returns:
        The differences of each row that shares a seed with the baseline, for the first shared seed. Empty
        without a baseline.
    """
    found = []
    for row in report.rows:
        if report.baseline is None or row is report.baseline:
            continue
        by_seed = {run.seed: run for run in row.runs}
        for run in report.baseline.runs:
            if run.seed in by_seed:
                other = by_seed[run.seed].hypotheses
                every = list(
                    differences(
                        report.sources or run.sources,
                        report.references,
                        run.hypotheses,
                        other,
                        report.metrics,
                    )
                )
                ranked = sorted(every, key=lambda one: one.gain)
                worse = [one for one in ranked if one.gain < 0]
                better = [one for one in reversed(ranked) if one.gain > 0]
                found.append(
                    RowDifferences(
                        row, run.seed, len(other) - len(better) - len(worse), len(better), len(worse),
                        better[:count], worse[:count],
                    )
                )  # fmt: skip
                break
    return found


def differences(
    sources: Sequence[str], references: Sequence[str], baseline: Sequence[str], other: Sequence[str],
    metrics: Metrics,
) -> Iterator[Difference]:  # fmt: skip
    """Yield the sentences that are translated differently, in order, with their scores.

    Args:
        sources: the sentences.
        references: their reference translations.
        baseline: translations.
        other: others.
        metrics: score single sentences.
    """
    lines = zip(sources, references, baseline, other, strict=True)
    for index, (source, reference, first, second) in enumerate(lines):
        if first != second:
            scores = [metrics.sentence_score(text, reference) for text in (first, second)]
            yield Difference(index, source, reference, first, second, scores[0], scores[1])


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
