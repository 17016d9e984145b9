"""Check that the report's tests reject a true null hypothesis in 5% of the cases, on kept translations.

    python benchmarks/null_trials.py --reference test_2016_flickr.en.gz

Over sentences: two runs exchange the translations of each sentence at random, so that neither is better.

Over seeds: two rows of simulated trainings have equal quality. The first row prefers the best run's
translations for a random half of the sentences, and the worst run's for the other half. The second row
prefers the reverse. Each training follows its row in 4 of 5 sentences. Each training also has its own
quality: a share of its sentences, normally distributed with mean zero, comes from the best or the worst
run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest
from scipy.stats import binomtest

from fairseq_phrase.markdown import markdown_table
from fairseq_phrase.metrics.base import Statistics
from fairseq_phrase.metrics.over_seeds import compare_seeds, resample_sentences
from fairseq_phrase.metrics.over_sentences import LEVEL, sentence_p_value
from fairseq_phrase.metrics.translation import (
    bleu_metric,
    bleu_scores,
    sentence_statistics,
)
from fairseq_phrase.report.generation import read_generation
from fairseq_phrase.text import read_lines

RESULTS = Path("results/multi30k_table1.de-en.cpu/runs")
KEPT_BY_ROW = 0.8  # share of the sentences that a simulated training translates as its row does
QUALITY = (
    0.15  # standard deviation of a simulated training's share of sentences that are better or worse
)


def sentence_trials(
    texts: Sequence[list[str]], references: list[str], trials: int, resamples: int
) -> dict[str, list[float]]:
    """Test pairs of runs whose sentences were exchanged at random.

    Args:
        texts: translations of the runs.
        references: the reference translations.
        trials: how many pairs.
        resamples: exchanges and resamples of a test; sacrebleu's has its own 1,000.

    Returns:
        The p-values by test.
    """
    rng = np.random.default_rng(1)
    metric = bleu_metric(references)
    statistics = [sentence_statistics(metric, text) for text in texts]
    sacrebleus = SacrebleuBootstrap(references)
    sacrebleus.check(texts[0], texts[-1])
    found: dict[str, list[float]] = {
        "approximate randomization": [],
        "bootstrap, centred": [],
        "bootstrap of sacrebleu": [],
    }
    for _ in range(trials):
        first, second = rng.choice(len(texts), 2, replace=False)
        exchanged = (rng.random(len(references)) < 0.5)[:, None]
        one = np.where(exchanged, statistics[second], statistics[first])
        other = np.where(exchanged, statistics[first], statistics[second])
        p_values = (
            sentence_p_value([one], [other], bleu_scores, "ar", resamples),
            sentence_p_value([one], [other], bleu_scores, "bs", resamples),
            sacrebleus.p_value(one, other),
        )
        for name, p in zip(found, p_values, strict=True):
            found[name].append(p)
    return found


class SacrebleuBootstrap:
    """sacrebleu's paired bootstrap, to the last digit but in a hundredth of its time.

    Args:
        references: the reference translations.
    """

    def __init__(self, references: list[str]):
        self._references = references
        sentences = len(references)
        drawn = np.random.default_rng(12345).choice(sentences, size=(1000, sentences))
        self._weights = np.array([np.bincount(one, minlength=sentences) for one in drawn], float)

    def p_value(self, one: Statistics, other: Statistics) -> float:
        """Subtract the mean of the absolute differences, as sacrebleu does."""
        measured = np.abs(np.subtract(*bleu_scores(np.stack([one.sum(0), other.sum(0)]))))
        differences = np.abs(bleu_scores(self._weights @ one) - bleu_scores(self._weights @ other))
        extreme = int(np.sum(differences - differences.mean() > measured))
        return (extreme + 1) / (len(differences) + 1)

    def check(self, one: list[str], other: list[str]) -> None:
        """Stop if sacrebleu itself has another p-value."""
        metric = BLEU(references=[self._references])
        test = PairedTest([("one", one), ("other", other)], {"BLEU": metric}, None, "bs")
        ours = self.p_value(*(sentence_statistics(metric, text) for text in (other, one)))
        theirs = test()[1]["BLEU"][1].p_value
        if abs(ours - theirs) > 1e-9:
            sys.exit(f"sacrebleu's p is {theirs}, not {ours}: its bootstrap has changed")


def seed_trials(
    best: Statistics, worst: Statistics, seeds: int, trials: int, resamples: int
) -> tuple[dict[str, list[float]], float]:
    """Test rows of simulated trainings.

    Args:
        best: BLEU's statistics of the best run. Shape: (sentences, 10).
        worst: of the worst. Shape: (sentences, 10).
        seeds: trainings of each row.
        trials: how many pairs of rows.
        resamples: of the bootstrap.

    Returns:
        The p-values by test, and the spread over seeds in BLEU.
    """
    rng = np.random.default_rng(seeds)
    found: dict[str, list[float]] = {
        "two-level bootstrap, t (the report's)": [],
        "two-level bootstrap, percentiles": [],
        "approximate randomization, first seed": [],
    }
    spreads = []
    for _ in range(trials):
        preferred = rng.random(len(best)) < 0.5
        rows = [list(_trainings(rng, best, worst, row, seeds)) for row in (preferred, ~preferred)]
        scores = np.array([[bleu_scores(run.sum(0)) for run in row] for row in rows])
        resampled = resample_sentences(
            [[run] for row in rows for run in row], bleu_scores, resamples
        )
        parts = resampled[:seeds], resampled[seeds:]
        comparison = compare_seeds(scores[0], scores[1], *parts)
        p_values = (
            comparison.p if comparison is not None else 1.0,
            _percentile_p(rng, float(scores[0].mean() - scores[1].mean()), *parts),
            sentence_p_value([rows[0][0]], [rows[1][0]], bleu_scores, trials=resamples),
        )
        for name, p in zip(found, p_values, strict=True):
            found[name].append(p)
        spreads.append(scores.var(axis=1, ddof=1).mean())
    return found, float(np.sqrt(np.mean(spreads)))


def _trainings(
    rng: np.random.Generator, best: Statistics, worst: Statistics, preferred: NDArray[np.bool_],
    seeds: int,
) -> Iterator[Statistics]:  # fmt: skip
    """Simulate the trainings of a row, which has the best run's translation where it is preferred."""
    for _ in range(seeds):
        kept = rng.random(len(best)) < KEPT_BY_ROW
        takes_best = np.where(kept, preferred, ~preferred)
        quality = QUALITY * rng.standard_normal()
        takes_best = np.where(rng.random(len(best)) < abs(quality), quality > 0, takes_best)
        yield np.where(takes_best[:, None], best, worst)


def _percentile_p(
    rng: np.random.Generator, difference: float, *resampled: NDArray[np.float64]
) -> float:
    """Draw n of n seeds, and count resamples that are as far from the difference as that is from 0."""
    means = []
    for scores in resampled:
        drawn = rng.integers(len(scores), size=scores.shape)
        means.append(np.take_along_axis(scores, drawn, axis=0).mean(axis=0))
    distances = np.abs(means[0] - means[1] - difference)
    return (int(np.sum(distances >= abs(difference))) + 1) / (len(distances) + 1)


def rejected(p_values: Sequence[float]) -> str:
    """Show the share of p-values below 5%, with an exact 95% interval."""
    test = binomtest(sum(p < LEVEL for p in p_values), len(p_values))
    interval = test.proportion_ci()
    return f"{test.statistic:.1%} ({interval.low:.1%} to {interval.high:.1%})"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=Path, default=RESULTS, help=f"runs that were kept ({RESULTS})"
    )
    parser.add_argument("--reference", type=Path, required=True, help="raw text, .gz accepted")
    parser.add_argument("--subset", default="test", help="the test set's name in fairseq (test)")
    parser.add_argument("--trials", type=int, default=1000, help="over sentences (1000)")
    parser.add_argument("--seed-trials", type=int, default=300, help="over seeds (300)")
    parser.add_argument("--resamples", type=int, default=2000, help="of each test (2000)")
    args = parser.parse_args()
    references = list(read_lines(args.reference))
    paths = sorted(args.runs.glob(f"*/*/generate-{args.subset}.txt"))
    if len(paths) < 2:
        sys.exit(f"{args.runs} holds fewer than two runs with generate-{args.subset}.txt")
    texts = [read_generation(path).hypotheses for path in paths]
    print(
        f"{len(texts)} runs, {len(references)} sentences; {args.trials} trials over sentences, "
        f"{args.seed_trials} over seeds\n"
    )
    found = sentence_trials(texts, references, args.trials, args.resamples)
    lines = [[name, rejected(p_values)] for name, p_values in found.items()]
    print(
        markdown_table(["test over sentences", "p < 0.05 where nothing differs"], lines),
        "\n",
        flush=True,
    )

    metric = bleu_metric(references)
    statistics = [sentence_statistics(metric, text) for text in texts]
    ranked = sorted(statistics, key=lambda one: float(bleu_scores(one.sum(0))))
    lines = []
    for seeds in (2, 3, 5):
        found, spread = seed_trials(ranked[-1], ranked[0], seeds, args.seed_trials, args.resamples)
        lines += [
            [name, str(seeds), f"{spread:.2f}", rejected(p_values)]
            for name, p_values in found.items()
        ]
    headings = ["test over seeds", "seeds a row", "spread, BLEU", "p < 0.05 where nothing differs"]
    print(markdown_table(headings, lines))


if __name__ == "__main__":
    main()
