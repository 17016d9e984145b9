"""Tests over seeds: whether two models would differ if both were trained and tested again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm
from scipy.stats import t as student

from fairseq_phrase.metrics.interface import Statistics
from fairseq_phrase.metrics.over_sentences import LEVEL, Scores, random_seed, sentence_weights

POWER = 0.8
_CHUNK = 500  # resamples whose sentences are in memory at a time
_TESTS = 4000  # simulated tests of a power


@dataclass(frozen=True)
class ErrorParts:
    """The parts of a squared standard error of a difference of two means over seeds.

    A score has the effects of the row's seed, of the sentence, of row and sentence, and of seed and
    sentence. The last one, the interaction, is part of both the first two attributes, and is subtracted
    once.

    Attributes:
        seeds: variance of each row's run scores, divided by the number of its seeds.
        freedom: degrees of freedom of these variances: seeds minus one.
        sentences: variance of the difference over resampled sentences, with fixed seeds.
        interaction: the part of ``sentences`` that differs from seed to seed.
    """

    seeds: tuple[float, float]
    freedom: tuple[int, int]
    sentences: float
    interaction: float

    def error_and_freedom(self, seeds: NDArray[np.float64]) -> tuple[Any, Any]:
        """Return the standard error and its degrees of freedom, for these variances of seeds.

        The squared error is at least the seeds' part, and at least the sentences'. The degrees of freedom
        are Satterthwaite's: only the seeds' parts have finitely many.

        Args:
            seeds: values for :attr:`seeds`. Shape: (..., 2).

        Returns:
            Shape of each: (...).
        """
        squared = np.maximum(
            seeds.sum(-1) + max(self.sentences - self.interaction, 0.0), self.sentences
        )
        inverse = np.sum(seeds**2 / np.array(self.freedom), axis=-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            freedom = np.where(inverse > 0, squared**2 / inverse, np.inf)
        return np.sqrt(squared), freedom

    def smallest_difference(self) -> float:
        """Return the difference that the test detects in 80% of the cases.

        The test is simulated: it estimates the seeds' variances, and hence its own error and degrees of
        freedom, from the same number of new seeds.
        """
        free = np.array(self.freedom)
        rng = np.random.default_rng(random_seed())
        estimates = np.array(self.seeds) * rng.chisquare(free, (_TESTS, 2)) / free
        errors, freedom = self.error_and_freedom(estimates)
        reach = student.ppf(1 - LEVEL / 2, freedom) * errors
        true = float(self.error_and_freedom(np.array(self.seeds))[0])

        def missing(difference: float) -> float:
            power = norm.sf((reach - difference) / true) + norm.cdf((-reach - difference) / true)
            return POWER - float(power.mean())

        return float(brentq(missing, 0.0, float(reach.max()) + 5 * true, xtol=1e-3 * true))


@dataclass(frozen=True)
class SeedComparison:
    """The comparison of a row's mean over seeds with the baseline's mean.

    Attributes:
        difference: mean of the row minus mean of the baseline.
        low, high: ends of the 95% interval.
        p: two-sided p-value of this comparison, not corrected.
        p_holm: p-value after Holm's correction over the table's rows.
        error: standard error of the difference.
        freedom: degrees of freedom of its t distribution.
        seed_error: the part of ``error`` that comes from the seeds.
        smallest: the difference that this test detects in 80% of the cases; None if it was not computed.
    """

    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    error: float
    freedom: float
    seed_error: float
    smallest: float | None = None


def resample_sentences(
    runs: Sequence[Sequence[Statistics]], scores: Scores, resamples: int
) -> NDArray[np.float64]:
    """Score runs on resampled test sets, the same sentences for all runs.

    Args:
        runs: for each run, its sufficient statistics in each test set. Shape of each:
            (sentences, statistics).
        scores: the metric, from sums (resamples, statistics) to scores (resamples,).

    Returns:
        The mean over the test sets. Shape: (runs, resamples).
    """
    rng = np.random.default_rng(random_seed())
    total = np.zeros((len(runs), resamples))
    for one_set in zip(*runs, strict=True):
        for start in range(0, resamples, _CHUNK):
            end = min(start + _CHUNK, resamples)
            weights = sentence_weights(rng, end - start, len(one_set[0]))
            total[:, start:end] += [scores(weights @ run) for run in one_set]
    return total / len(runs[0])


def error_parts(
    system: NDArray[np.float64],
    baseline: NDArray[np.float64],
    system_resampled: NDArray[np.float64],
    baseline_resampled: NDArray[np.float64],
) -> ErrorParts:
    """Estimate the parts of a standard error; see :func:`compare_seeds` for the arguments."""
    seeds, interaction = [], 0.0
    for scores, resampled in ((system, system_resampled), (baseline, baseline_resampled)):
        seeds.append(float(scores.var(ddof=1)) / len(scores))
        deviations = resampled - resampled.mean(axis=0)
        # The deviations from a mean of n have the fraction (n - 1) / n of the variance.
        interaction += float(deviations.var(axis=1).mean()) / (len(scores) - 1)
    difference = system_resampled.mean(axis=0) - baseline_resampled.mean(axis=0)
    return ErrorParts(
        (seeds[0], seeds[1]),
        (len(system) - 1, len(baseline) - 1),
        float(difference.var()),
        interaction,
    )


def compare_seeds(
    system: NDArray[np.float64],
    baseline: NDArray[np.float64],
    system_resampled: NDArray[np.float64],
    baseline_resampled: NDArray[np.float64],
) -> SeedComparison | None:
    """Test the difference of two means over seeds.

    The standard error is computed from its parts (:class:`ErrorParts`). Interval and p are Student's
    t with Satterthwaite's degrees of freedom. A bootstrap that draws seeds and sentences would count the
    interaction of seed and sentence up to three times (``benchmarks/null_trials.py``).

    Args:
        system: scores of the row's runs. Shape: (seeds,).
        baseline: scores of the baseline's runs. Shape: (baseline seeds,).
        system_resampled: the row's scores of resampled sentences. Shape: (seeds, resamples).
        baseline_resampled: the baseline's scores of the same sentences. Shape: (baseline seeds,
            resamples).

    Returns:
        The comparison, not yet corrected; None if a row has fewer than two seeds, or if nothing varies.
    """
    if min(len(system), len(baseline)) < 2:
        return None
    parts = error_parts(system, baseline, system_resampled, baseline_resampled)
    error, freedom = parts.error_and_freedom(np.array(parts.seeds))
    if error == 0:
        return None
    difference = float(system.mean() - baseline.mean())
    comparison = _student(difference, float(error), float(freedom), math.sqrt(sum(parts.seeds)))
    return replace(comparison, smallest=parts.smallest_difference())


def _student(difference: float, error: float, freedom: float, seed_error: float) -> SeedComparison:
    """Compute interval and p of a difference."""
    reach = float(student.ppf(1 - LEVEL / 2, freedom)) * error
    p = float(2 * student.sf(abs(difference) / error, freedom))
    ends = difference - reach, difference + reach
    return SeedComparison(difference, *ends, p, p, error, freedom, seed_error)


def mean_over_tables(corpora: Sequence[Sequence[SeedComparison]]) -> SeedComparison:
    """Test the mean of differences in tables that share no trainings.

    Args:
        corpora: the differences in the tables of each corpus. Tables of one corpus have the same test
            sentences, such as the two directions of a language pair. Apart from the seeds' part, their
            errors are assumed to be fully correlated, which is the worst case.

    Returns:
        The comparison of the mean, in which every corpus has the same weight.
    """
    difference = squared = seeds = inverse = 0.0
    for tables in corpora:
        weight = 1 / (len(corpora) * len(tables))
        difference += weight * sum(table.difference for table in tables)
        seed_part = weight**2 * sum(table.seed_error**2 for table in tables)
        other_errors = (
            math.sqrt(max(table.error**2 - table.seed_error**2, 0.0)) for table in tables
        )
        squared += seed_part + (weight * sum(other_errors)) ** 2
        seeds += seed_part
        inverse += weight**4 * sum(table.error**4 / table.freedom for table in tables)
    freedom = squared**2 / inverse if inverse > 0 else math.inf
    return _student(difference, math.sqrt(squared), freedom, math.sqrt(seeds))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple comparisons by Holm's step-down method; return them in this order.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
