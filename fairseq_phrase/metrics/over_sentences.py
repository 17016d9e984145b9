"""Paired tests over sentences: whether two trained models would differ on other sentences."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from fairseq_phrase.errors import UserError
from fairseq_phrase.metrics.interface import Statistics

TESTS = {
    "ar": "paired approximate randomization",
    "bs": "two-sided paired bootstrap, centred on the measured difference",
    "mcnemar": "McNemar's exact test",
}
TRIALS = 10_000  # of each test, over sentences or seeds
LEVEL = 0.05  # p-values below it are called significant
_CHUNK = 1000  # trials whose sentences are in memory at a time
TIE = 1e-9  # differences of scores that are closer than this are the same number

Scores = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def random_seed() -> int | None:
    """Return sacrebleu's seed, with which its tests and these draw the same numbers; None for random.

    Raises:
        UserError: the variable is neither a number of 0 or more nor ``none``.
    """
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    if seed.lower() == "none":
        return None
    if not seed.isdecimal():
        raise UserError(f"SACREBLEU_SEED={seed}: expected a number, or none")
    return int(seed)


def sentence_p_value(
    system: Sequence[Statistics],
    baseline: Sequence[Statistics],
    scores: Scores,
    test: str = "ar",
    trials: int = TRIALS,
) -> float:
    """Test the difference of two translations of the same sentences, two-sided.

    Approximate randomization exchanges the two translations of each sentence with probability 1/2 and
    counts how often the scores then differ at least as much as the measured ones. It draws the same
    numbers as sacrebleu and gives sacrebleu's p, with one exception: sacrebleu does not count a trial
    whose difference is equal. Therefore translations that differ in only one sentence are significant in
    sacrebleu, but not here.

    The bootstrap draws sentences with replacement. It counts how often the difference is at least as far
    from the measured difference as the measured difference is from zero. sacrebleu's bootstrap (and
    Moses') subtracts the mean of the *absolute* differences instead, which is close to a one-sided test
    (``benchmarks/null_trials.py``).

    Args:
        system, baseline: each translation's sufficient statistics in each test set. Shape of each:
            (sentences, statistics).
        scores: the metric, from sums (trials, statistics) to scores (trials,). The mean over the test
            sets is tested.
        test: ``ar`` or ``bs``.
        trials: exchanges or resamples.

    Returns:
        The p-value; 1 if both have the same score, or if each test set is one sentence, which says
        nothing of others.
    """
    if all(len(ours) == 1 for ours in system):
        return 1.0
    rng = np.random.default_rng(random_seed())
    distances, measured = np.zeros(trials), 0.0
    for ours, theirs in zip(system, baseline, strict=True):
        first, second = scores(np.stack([ours.sum(0), theirs.sum(0)]))
        measured += (first - second) / len(system)
        draw = _exchange if test == "ar" else _resample
        distances += draw(rng, ours, theirs, scores, trials) / len(system)
    if test == "bs":
        distances -= measured
    extreme = int(np.sum(np.abs(distances) >= abs(measured) - TIE))
    return (extreme + 1) / (trials + 1)


def _exchange(
    rng: np.random.Generator, ours: Statistics, theirs: Statistics, scores: Scores, trials: int
) -> NDArray[np.float64]:
    """Return how scores differ after random exchanges; (sentences, statistics) twice -> (trials,)."""
    # Draw all booleans at once, as sacrebleu does. Drawn in parts, they would differ.
    exchanged = rng.integers(2, size=(trials, len(ours)), dtype=bool)
    total = (ours + theirs).sum(0)
    parts = []
    for start in range(0, trials, _CHUNK):
        weights = exchanged[start : start + _CHUNK].astype(np.float64)
        sums = weights @ theirs + (1 - weights) @ ours
        parts.append(scores(sums) - scores(total - sums))
    return np.concatenate(parts)


def _resample(
    rng: np.random.Generator, ours: Statistics, theirs: Statistics, scores: Scores, trials: int
) -> NDArray[np.float64]:
    """Return how scores differ on resamples; (sentences, statistics) twice -> (trials,)."""
    parts = []
    for start in range(0, trials, _CHUNK):
        weights = sentence_weights(rng, min(_CHUNK, trials - start), len(ours))
        parts.append(scores(weights @ ours) - scores(weights @ theirs))
    return np.concatenate(parts)


def sentence_weights(
    rng: np.random.Generator, resamples: int, sentences: int
) -> NDArray[np.float64]:
    """Draw sentences with replacement.

    Returns:
        How often each resample has each sentence. Shape: (resamples, sentences).
    """
    drawn = rng.integers(sentences, size=(resamples, sentences))
    # (resamples, sentences) numbers of sentences -> numbers of cells in the flattened counts
    cells = drawn + sentences * np.arange(resamples)[:, None]
    counts = np.bincount(cells.ravel(), minlength=resamples * sentences)
    return counts.reshape(resamples, sentences).astype(np.float64)


@dataclass(frozen=True)
class SentenceComparison:
    """The comparison of a row's runs with the baseline's in one metric, separately for each seed.

    The test asks whether *these two* trained models would also differ on other sentences. The p-values of
    seeds are not pooled: if the sentences of several seeds were one test set, each sentence would count
    several times, as if independent. The test over seeds asks whether other trainings would differ
    (:mod:`fairseq_phrase.metrics.over_seeds`).

    Attributes:
        p: the median of the p-values.
        better, worse: seeds where the row is better, or worse, with p < 0.05.
        pairs: seeds that were tested.
    """

    p: float
    better: int
    worse: int
    pairs: int


def mcnemar_p_value(system: NDArray[np.bool_], baseline: NDArray[np.bool_]) -> float:
    """Compare two labellings of the same items by McNemar's exact test, two-sided.

    Under the null hypothesis each system has half of the items that only one system has correct.

    Args:
        system, baseline: whether each item is correct. Shape: (items,).

    Returns:
        The p-value; 1 if no item differs.
    """
    better = int(np.sum(system & ~baseline))
    worse = int(np.sum(baseline & ~system))
    return float(binomtest(better, better + worse).pvalue) if better + worse else 1.0


def summarize(
    pairs: Sequence[tuple[float, float]], lower_is_better: bool = False
) -> SentenceComparison | None:
    """Combine the tests of a row's seeds.

    Args:
        pairs: p-value and difference, row minus baseline, of each seed.

    Returns:
        The comparison; None if no pair was tested or the scores are the same in every pair.
    """
    if all(abs(difference) < TIE for _, difference in pairs):
        return None
    sign = -1 if lower_is_better else 1
    significant = [sign * difference for p, difference in pairs if p < LEVEL]
    return SentenceComparison(
        p=statistics.median(p for p, _ in pairs),
        better=sum(1 for difference in significant if difference > 0),
        worse=sum(1 for difference in significant if difference < 0),
        pairs=len(pairs),
    )
