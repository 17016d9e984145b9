"""The interface of the scores in a report: translation, labels and exact match."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

#: Sufficient statistics of each sentence. Their sums over the sentences give the score.
#: Shape: (sentences, statistics).
Statistics = NDArray[np.float64]


class Metrics(ABC):
    """Scores of a system's output against one reference.

    All significance tests need only each sentence's sufficient statistics and a function from their sums
    to a score.

    Attributes:
        outputs: the report's name for a system's output.
        counted: the unit that fairseq's ``wps`` counts in training.
        tested: the metrics that are tested over sentences; the first is the table's main metric.
        lower_is_better: the metrics in which a lower score is better.
        sentence_metric: the metric by which examples are chosen, from single sentences; higher is better.
    """

    outputs: str = "translations"
    counted: str = "target subwords"
    tested: Sequence[str]
    lower_is_better: frozenset[str] = frozenset()
    sentence_metric: str

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """The metrics' names, the main metric first."""

    @property
    def main(self) -> str:
        """The metric that differences and tests over seeds use."""
        return self.names[0]

    @abstractmethod
    def statistics(self, hypotheses: Sequence[str]) -> dict[str, Statistics]:
        """Compute each sentence's statistics for each metric.

        Args:
            hypotheses: the output, a line for each line of the reference.

        Returns:
            Sufficient statistics by metric. Shape of each: (sentences, statistics).
        """

    def of_run(self, folder: Path, subset: str, output: Path) -> Metrics:
        """Return the metrics of a run's output for a test set; they may read files in its folder."""
        return self

    def score(self, name: str, sums: NDArray[np.float64]) -> float:
        """Return a metric's score of one test set; see :meth:`scores`."""
        return float(self.scores(name, sums[None])[0])

    def scores_of(self, statistics: dict[str, Statistics]) -> dict[str, float]:
        """Return the score of each metric from the statistics of :meth:`statistics`."""
        return {name: self.score(name, values.sum(0)) for name, values in statistics.items()}

    def scores(self, name: str, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a metric's score of many resampled test sets.

        By default the two statistics are a part and its whole, and the score is their percentage.

        Args:
            sums: its statistics, summed over each resample's sentences. Shape: (resamples, statistics).

        Returns:
            Shape: (resamples,).
        """
        return percentages(sums)

    def correct_items(self, hypotheses: Sequence[str]) -> NDArray[np.bool_] | None:
        """Return which labelled items are correct, for McNemar's test.

        Returns:
            Shape: (items,), sentence by sentence; None if the output lacks items that are correct or
                wrong.
        """
        return None

    def people_agree(self, name: str, difference: float) -> float | None:
        """Return how often people prefer the system that a metric prefers by this difference, in percent.

        Returns:
            None if that was not measured.
        """
        return None

    @property
    def notes(self) -> list[str]:
        """Notes that explain the metrics, for below the table."""
        return []

    def signatures(self, **settings: object) -> dict[str, str]:
        """Return how each metric is computed, by metric.

        Args:
            settings: a test's settings with sacrebleu's names: ``ar``, ``seed``.
        """
        return {}


def percentages(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide counts by totals, in percent; 0 where the total is 0. Shape: (..., 2) -> (...)."""
    part, total = sums[..., 0], sums[..., 1]
    return 100 * np.divide(part, total, out=np.zeros(part.shape), where=total > 0)
