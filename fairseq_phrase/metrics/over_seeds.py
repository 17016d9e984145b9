"""Tests over trainings: would two models differ if both were trained and tested again?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import nct
from scipy.stats import t as student

from fairseq_phrase.metrics.base import Statistics
from fairseq_phrase.metrics.over_sentences import (
    LEVEL,
    Scores,
    random_seed,
    sentence_weights,
)

RESAMPLES = 10_000
POWER = 0.8
_CHUNK = 500  # resamples whose sentences are in memory at a time


@dataclass(frozen=True)
class SeedComparison:
    """The comparison of a row's mean over seeds with the baseline's.

    Attributes:
        difference: mean of the row minus mean of the baseline.
        low: lower end of the 95% interval.
        high: upper end.
        p: two-sided p-value of this comparison, not corrected.
        p_holm: p-value after Holm's correction over the table's rows.
        error: standard error of the difference.
        freedom: degrees of freedom of its t distribution.
    """

    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    error: float
    freedom: float


def resample_sentences(
    runs: Sequence[Sequence[Statistics]], scores: Scores, resamples: int
) -> NDArray[np.float64]:
    """Score runs on resampled test sets, the same sentences for all runs.

    Args:
        runs: for each run, its sufficient statistics in each test set. Shape of each:
            (sentences, statistics).
        scores: the metric, from sums (resamples, statistics) to scores (resamples,).
        resamples: number of resamples.

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


def compare_seeds(
    system: NDArray[np.float64],
    baseline: NDArray[np.float64],
    system_resampled: NDArray[np.float64],
    baseline_resampled: NDArray[np.float64],
) -> SeedComparison | None:
    """Test the difference of two means over seeds by a two-level bootstrap.

    Each resample draws sentences (jointly for all runs; the arguments are already resampled) and seeds
    (for each row separately). Of n seeds, n - 1 are drawn with replacement (Rao and Wu, 1988). If n were
    drawn, the bootstrap's variance of a mean would be too small by the factor (n - 1) / n, which is one
    half for two seeds.

    The resamples give the standard error of the difference. The interval and p are computed with
    Student's t and the degrees of freedom of Welch and Satterthwaite. Percentiles of the resamples cannot
    be used: with two or three seeds they have no tails, and reject a true null hypothesis in far more
    than 5% of the cases (``benchmarks/null_trials.py`` measures both).

    Args:
        system: scores of the row's runs. Shape: (seeds,).
        baseline: scores of the baseline's runs. Shape: (baseline seeds,).
        system_resampled: the row's scores of resampled sentences. Shape: (seeds, resamples).
        baseline_resampled: the baseline's, of the same sentences. Shape: (baseline seeds, resamples).

    Returns:
        The comparison, not yet corrected; None if a row has fewer than two seeds, or if nothing varies.
    """
    if min(len(system), len(baseline)) < 2:
        return None
    rng = np.random.default_rng(random_seed())
    differences = _resample_seeds(rng, system_resampled) - _resample_seeds(rng, baseline_resampled)
    error = float(differences.std())
    if error == 0:
        return None
    spreads = [(scores.var(ddof=1) / len(scores), len(scores) - 1) for scores in (system, baseline)]
    return _student(float(system.mean() - baseline.mean()), error, _freedom(spreads, error))


def _freedom(parts: Sequence[tuple[float, float]], error: float) -> float:
    """Return Welch's and Satterthwaite's degrees of freedom of a standard error.

    Args:
        parts: variances with their own degrees of freedom. The rest of error² has infinitely many.
        error: the standard error.
    """
    inverse = sum((variance / error**2) ** 2 / free for variance, free in parts)
    return 1 / inverse if inverse > 0 else math.inf


def _student(difference: float, error: float, freedom: float) -> SeedComparison:
    """Compute interval and p of a difference."""
    reach = float(student.ppf(1 - LEVEL / 2, freedom)) * error
    p = float(2 * student.sf(abs(difference) / error, freedom))
    return SeedComparison(difference, difference - reach, difference + reach, p, p, error, freedom)


def mean_over_tables(differences: Sequence[tuple[float, float, float]]) -> SeedComparison:
    """Test the mean of differences in tables that share neither trainings nor test sets.

    The squared standard errors add up. The degrees of freedom are Welch's and Satterthwaite's.

    Args:
        differences: of each table the difference, its standard error and its degrees of freedom.

    Returns:
        The comparison of the mean, in which every table has the same weight.
    """
    mean = sum(difference for difference, _, _ in differences) / len(differences)
    parts = [(error**2, freedom) for _, error, freedom in differences]
    error = math.sqrt(sum(variance for variance, _ in parts))
    return _student(mean, error / len(differences), _freedom(parts, error))


def _resample_seeds(rng: np.random.Generator, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Draw n - 1 of n seeds for each resample; (seeds, resamples) -> means, (resamples,)."""
    seeds, resamples = scores.shape
    drawn = rng.integers(seeds, size=(seeds - 1, resamples))
    return np.take_along_axis(scores, drawn, axis=0).mean(axis=0)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple comparisons by Holm's step-down method.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]

    Args:
        p_values: the p-values of the comparisons, in any order.

    Returns:
        The corrected p-values, in the same order.
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda one: p_values[one])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def pooled_spread(rows: Sequence[Sequence[float]]) -> float | None:
    """Return the standard deviation over seeds, pooled over all rows.

    Args:
        rows: the scores of each row's runs.

    Returns:
        The root of the mean variance; a row's weight is its number of seeds minus one. None if no row has
        two seeds.
    """
    several = [np.array(row) for row in rows if len(row) > 1]
    if not several:
        return None
    squares = sum(float(np.sum((row - row.mean()) ** 2)) for row in several)
    return math.sqrt(squares / sum(len(row) - 1 for row in several))


def smallest_difference(spread: float, seeds: int, baseline_seeds: int) -> float | None:
    """Return the difference of means that a test over seeds finds with a power of 80%.

    Args:
        spread: the standard deviation over seeds, of both rows.
        seeds: number of the row's seeds.
        baseline_seeds: number of the baseline's seeds.

    Returns:
        The difference that a two-sided t-test at 5% shows in 80% of the cases; None if either row has
        fewer than two seeds.
    """
    if min(seeds, baseline_seeds) < 2:
        return None
    freedom = seeds + baseline_seeds - 2
    critical = student.ppf(1 - LEVEL / 2, freedom)
    shift = brentq(lambda one: nct.sf(critical, freedom, one) - POWER, 0.0, 10 * critical)
    return float(shift * spread * math.sqrt(1 / seeds + 1 / baseline_seeds))
