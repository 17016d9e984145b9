"""The rows of a report: runs, scores, comparisons with the baseline; the file of their titles."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import yaml

from fairseq_phrase.errors import UserError, location
from fairseq_phrase.lab.report.contrastive import Accuracy, MinimalPairs
from fairseq_phrase.lab.report.references import ReferenceText
from fairseq_phrase.lab.report.runs import Run, RunFolder
from fairseq_phrase.metrics.interface import Metrics, Statistics
from fairseq_phrase.metrics.over_seeds import SeedComparison
from fairseq_phrase.metrics.over_sentences import SentenceComparison
from fairseq_phrase.text import read_lines


@dataclass(frozen=True)
class RowTitle:
    """A row's title, and its number in the paper.

    Attributes:
        paper: the paper's number, as it should be printed; None if the paper does not have one.
    """

    title: str
    paper: str | None = None


def read_row_file(path: Path) -> dict[str, RowTitle]:
    """Read a file of rows.

    ::

        transformer: {title: Transformer, paper: 20.90}
        ngram_k2: {title: PhraseTransformer k=2, paper: 34.61}

    Args:
        path: YAML, a mapping of rows (names of run folders) in the table's order; a row's value may also
            be only its title.

    Returns:
        The rows by name, in the file's order. The paper's number keeps its digits: 20.90 stays 20.90.

    Raises:
        UserError: the file is missing, is not YAML, or has other content.
    """
    text = "\n".join(read_lines(path))
    try:
        # Read all values as strings: numbers keep their digits.
        rows = yaml.load(text, Loader=yaml.BaseLoader)
        names = [key.value for key, _ in yaml.compose(text, Loader=yaml.BaseLoader).value]
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        mark, problem = None, None
        if isinstance(error, yaml.MarkedYAMLError):
            mark, problem = error.problem_mark, error.problem
        problem = problem or "expected a mapping of rows"
        raise UserError(f"{location(path, mark.line + 1 if mark else None)}: {problem}") from None
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{path}: two rows are named '{name}'")
    if not isinstance(rows, dict):
        raise UserError(f"{path}: expected a mapping of rows")
    return {name: _row_title(path, name, entry) for name, entry in rows.items()}


def _row_title(path: Path, name: str, entry: object) -> RowTitle:
    if isinstance(entry, str):
        return RowTitle(entry or name)
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise UserError(f"{path}: row '{name}' must be a title, or have title and paper")
    unknown = set(entry) - {"title", "paper"}
    if unknown:
        raise UserError(
            f"{path}: row '{name}' has '{min(unknown)}'; what a row can have is title and paper (a "
            "comma within {} needs quotation marks around the text)"
        )
    return RowTitle(entry.get("title") or name, entry.get("paper") or None)


@dataclass
class Row:
    """A row of the table.

    Attributes:
        name: its name, which is the run folder's name.
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
        """Whether it lacks runs: only the file of rows lists it."""
        return not self.runs and not self.left_out

    @property
    def repeated(self) -> bool:
        """Whether two runs have the same outputs, and may be one training."""
        return len({tuple(run.hypotheses) for run in self.runs}) < len(self.runs)

    def same_seeds(self, other_row: Row) -> list[tuple[int, int]]:
        """Pair runs of the same seed: indices of runs of this row, in order, and of the other row."""
        theirs = {run.seed: number for number, run in enumerate(other_row.runs)}
        ours = enumerate(self.runs)
        return [(number, theirs[run.seed]) for number, run in ours if run.seed in theirs]

    def sentences(self, run: int, metric: str) -> Statistics:
        """Return a metric's statistics of each sentence, in the order of :attr:`Run.hypotheses`."""
        return np.concatenate([one_set[metric] for one_set in self.statistics[run]])

    def run_scores(self, metric: str, test_set: int | None = None) -> list[float]:
        """Return a metric's score of each run.

        Args:
            test_set: index of the test set, from 0; None for the mean over all.
        """
        test_sets = slice(None) if test_set is None else slice(test_set, test_set + 1)
        return [
            statistics.fmean(scores[metric] for scores in run[test_sets]) for run in self.scores
        ]

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
        return _median(getattr(run.training, name) for run in self.runs)

    def speed(self, parsed: bool) -> float | None:
        """Return the median over the runs of sentences translated per second."""
        return _median(run.parsed_speed if parsed else run.generation.speed for run in self.runs)

    @property
    def hardware(self) -> str | None:
        """The training hardware, ``1 x NVIDIA H200`` or ``CPU``; None without training logs."""
        kinds = {
            f"{run.training.devices} x {run.training.gpu}" if run.training.gpu else "CPU"
            for run in self.runs
            if run.training.updates is not None
        }
        return " and ".join(sorted(kinds)) or None


def _median(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if numbers else None


@dataclass(frozen=True)
class Report:
    """A table and its notes.

    Attributes:
        caption: its title, with a warning if runs were left out or rows lack runs.
        rows: the rows in order, including rows that only the file of rows lists.
        metrics: the metrics of the first test set.
        signatures: how each metric is computed, by metric.
        left_out: for each run that was left out, a line with the reason; empty unless the report is
            partial.
        sentence_test: ``ar``, ``bs`` or ``mcnemar``; None without a test over sentences.
        trials: the number of resamples or exchanges of each test.
        pairs: the minimal pairs of the contrastive accuracies; empty without them.
    """

    caption: str
    rows: list[Row]
    baseline: Row | None
    metrics: Metrics
    texts: Sequence[ReferenceText]
    signatures: Mapping[str, str]
    left_out: list[str]
    sentence_test: str | None
    trials: int
    notes: list[str] = field(default_factory=list)
    pairs: Sequence[MinimalPairs] = ()

    @property
    def shown_rows(self) -> list[Row]:
        """The rows that have runs."""
        return [row for row in self.rows if not row.absent]

    @property
    def rows_with_runs(self) -> list[Row]:
        """The rows that have finished runs."""
        return [row for row in self.rows if row.runs]

    @property
    def runs(self) -> list[tuple[Row, Run]]:
        """All finished runs, with their rows."""
        return [(row, run) for row in self.rows for run in row.runs]

    @cached_property
    def references(self) -> list[str]:
        """The concatenated references of all test sets, in the order of :attr:`Run.hypotheses`."""
        return [line for text in self.texts for line in text.lines]

    @cached_property
    def sources(self) -> list[str] | None:
        """The concatenated raw sentences of all test sets; None if a test set lacks a source file."""
        if any(text.sources is None for text in self.texts):
            return None
        return [line for text in self.texts for line in text.sources or ()]

    @property
    def main(self) -> str:
        """The table's main metric."""
        return self.metrics.main

    def difference(self, row: Row, metric: str) -> float | None:
        """Return a row's metric minus the baseline's; None for the baseline."""
        if self.baseline is None or row is self.baseline:
            return None
        ours, theirs = row.mean(metric), self.baseline.mean(metric)
        return None if ours is None or theirs is None else ours - theirs
