"""The rows of a report: runs, their scores, and comparisons with the baseline."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fairseq_phrase.metrics.base import Metrics, Statistics
from fairseq_phrase.metrics.over_seeds import SeedComparison
from fairseq_phrase.metrics.over_sentences import SentenceComparison
from fairseq_phrase.report.contrastive import Accuracy, MinimalPairs
from fairseq_phrase.report.references import ReferenceText
from fairseq_phrase.report.runs import Run, RunFolder


@dataclass
class Row:
    """A row of the table.

    Attributes:
        name: its name, which is the run folder's name.
        title: its title in the table.
        paper: the paper's number.
        runs: its runs, by seed.
        left_out: runs that are not finished.
        statistics: for each run and each test set, in order, the sentences' statistics by metric.
        scores: for each run and each test set, in order, the scores by metric.
        by_seeds: by metric, the comparison with the baseline over seeds; empty for the baseline, without
            a test, with fewer than two seeds, and if two runs have the same outputs.
        by_sentences: by metric, the comparison of runs with the baseline's runs of the same seeds; empty
            for the baseline and without a test.
        contrastive: for each run, its contrastive accuracies by phenomenon; empty without minimal pairs.
    """

    name: str
    title: str
    paper: str | None
    runs: list[Run]
    left_out: list[RunFolder]
    statistics: list[list[dict[str, Statistics]]] = field(default_factory=list)
    scores: list[list[dict[str, float]]] = field(default_factory=list)
    by_seeds: dict[str, SeedComparison] = field(default_factory=dict)
    by_sentences: dict[str, SentenceComparison] = field(default_factory=dict)
    contrastive: list[dict[str, Accuracy]] = field(default_factory=list)

    @property
    def absent(self) -> bool:
        """Whether it has no runs: only the file of rows lists it."""
        return not self.runs and not self.left_out

    @property
    def repeated(self) -> bool:
        """Whether two runs have the same outputs, and may be one training."""
        return len({tuple(run.hypotheses) for run in self.runs}) < len(self.runs)

    def sentences(self, run: int, metric: str) -> Statistics:
        """Return a metric's statistics of each sentence, in the order of :attr:`Run.hypotheses`.

        Args:
            run: the run's index.
            metric: its name.
        """
        return np.concatenate([one_set[metric] for one_set in self.statistics[run]])

    def run_scores(self, metric: str, test_set: int | None = None) -> list[float]:
        """Return a metric's score of each run.

        Args:
            metric: its name.
            test_set: index of the test set, from 0; None for the mean over all.
        """
        chosen = slice(None) if test_set is None else slice(test_set, test_set + 1)
        return [statistics.fmean(one[metric] for one in run[chosen]) for run in self.scores]

    def mean(self, metric: str, test_set: int | None = None) -> float | None:
        """Return the mean of a metric over the seeds; see :meth:`run_scores`."""
        scores = self.run_scores(metric, test_set)
        return statistics.fmean(scores) if scores else None

    def deviation(self, metric: str, test_set: int | None = None) -> float | None:
        """Return the standard deviation over the seeds (n - 1); None with fewer than two."""
        scores = self.run_scores(metric, test_set)
        return statistics.stdev(scores) if len(scores) > 1 else None

    def median(self, name: str) -> float | None:
        """Return the median over the runs of an attribute of their training logs."""
        values = [getattr(run.training, name) for run in self.runs]
        found = [value for value in values if value is not None]
        return statistics.median(found) if found else None

    def speed(self, parsed: bool) -> float | None:
        """Return the median over the runs of sentences translated per second."""
        values = [run.parsed_speed if parsed else run.generation.speed for run in self.runs]
        found = [value for value in values if value is not None]
        return statistics.median(found) if found else None

    @property
    def hardware(self) -> str | None:
        """The training hardware, ``1 x NVIDIA H200`` or ``CPU``; None without training logs."""
        kinds = {
            f"{run.training.devices} x {run.training.gpu}" if run.training.gpu else "CPU"
            for run in self.runs
            if run.training.updates is not None
        }
        return " and ".join(sorted(kinds)) or None


@dataclass(frozen=True)
class Report:
    """A table and its notes.

    Attributes:
        caption: its title, with a warning if runs were left out or rows have no runs.
        rows: the rows in order, including those that only the file of rows lists.
        baseline: the baseline's row; None without one.
        metrics: the metrics of the first test set.
        texts: the test sets and their reference translations.
        signatures: how each metric is computed, by metric.
        left_out: for each run that was left out, a line with the reason; empty unless the report is
            partial.
        notes: the paragraphs below the table.
        pairs: the minimal pairs of the contrastive accuracies; empty without them.
    """

    caption: str
    rows: list[Row]
    baseline: Row | None
    metrics: Metrics
    texts: Sequence[ReferenceText]
    signatures: Mapping[str, str]
    left_out: list[str]
    notes: list[str]
    pairs: Sequence[MinimalPairs] = ()

    @property
    def shown(self) -> list[Row]:
        """The rows that have runs."""
        return [row for row in self.rows if not row.absent]

    @cached_property
    def references(self) -> list[str]:
        """The concatenated references of all test sets, in the order of :attr:`Run.hypotheses`."""
        return [line for text in self.texts for line in text.lines]

    @cached_property
    def sources(self) -> list[str] | None:
        """The concatenated raw sentences of all test sets; None if a test set has no source file."""
        if any(text.sources is None for text in self.texts):
            return None
        return [line for text in self.texts for line in text.sources or ()]

    @property
    def main(self) -> str:
        """The table's main metric."""
        return self.metrics.main

    def difference(self, row: Row) -> float | None:
        """Return how far a row's main metric is above the baseline's; None for the baseline."""
        if self.baseline is None or row is self.baseline:
            return None
        ours, theirs = row.mean(self.main), self.baseline.mean(self.main)
        return None if ours is None or theirs is None else ours - theirs
