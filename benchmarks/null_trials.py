"""Check the report's tests: how often they reject a true null hypothesis, and their smallest differences.

    python benchmarks/null_trials.py --reference test_2016_flickr.en.gz

Over sentences, on kept translations: two runs exchange the translations of each sentence at random. Hence
neither is better.

Over seeds: two rows of trainings have equal quality, in three regimes. Trainings differ in quality only;
or each training translates each sentence differently and all are equally good; or both. The rows have 2,
3 and 5 seeds each; in the simulation also unequal numbers of seeds, and a row whose seeds vary three
times or a third as much as the baseline's. In one experiment the scores of sentences are drawn from
normal distributions, and the metric is their mean. In another, BLEU scores kept translations:

- seeds: a training takes the best run's translations for a share of the sentences, always in one order,
  and the worst run's for the others; each training has its own share.
- interaction: a training takes each sentence's translation from one of three runs at random.
- mixed: each row prefers the best run for a random half of the sentences, and each training follows its
  row in 4 of 5 sentences. A share of a training's sentences, different for each training, comes from the
  best or worst run.

The smallest difference (80% power) is computed from the mean variances of all trials, which no report
knows, and is added to every trial. A report computes it from its own seeds, and readers see that number:
it is computed in each trial, and added to all trials.

Pooled: a test that pools the variance of seeds over a table's rows if Levene's test accepts equal
spreads. Only the scores of runs are drawn, and some rows have twice the spread of others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest
from scipy.stats import binomtest
from scipy.stats import f as fisher
from scipy.stats import t as student

from fairseq_phrase.lab.report.generation import read_generation
from fairseq_phrase.metrics.interface import Statistics
from fairseq_phrase.metrics.over_seeds import ErrorParts, error_parts
from fairseq_phrase.metrics.over_sentences import LEVEL, sentence_p_value, sentence_weights
from fairseq_phrase.metrics.translation import bleu_metric, bleu_scores, sentence_statistics
from fairseq_phrase.text import markdown_table, read_lines

SEEDS = (2, 3, 5)
#: Other numbers of seeds, of the row and of its baseline.
UNEQUAL = ((2, 3), (3, 2), (2, 5), (3, 5), (5, 3))
#: How many times as much as the baseline's the seeds of a row vary.
SPREADS = (3.0, 1 / 3)
REPORTS = 500  # trials, at most, whose own smallest difference is computed
#: Standard deviations of the simulated effects: of seeds, of row and sentence, of seed and sentence. The
#: mean of 200 sentences divides the last two by 14.
REGIMES = {"seeds": (1.0, 0.0, 0.0), "mixed": (0.6, 6.0, 8.0), "interaction": (0.0, 0.0, 10.0)}
SENTENCES = 200
KEPT_BY_ROW = 0.8  # share of the sentences that a simulated training translates as its row does
QUALITY = 0.15  # standard deviation of a simulated training's share of better or worse sentences

#: Draws two rows of trainings, given the seeds of each: for each row, (seeds, sentences, statistics).
Draw = Callable[
    [np.random.Generator, tuple[int, int]], tuple[NDArray[np.float64], NDArray[np.float64]]
]


@dataclass(frozen=True)
class SeedTrials:
    """Tests of rows of trainings.

    Attributes:
        null: the p-values without a difference.
        power: the p-values with the smallest difference.
        smallest: that difference.
        ratio: the mean standard error divided by the true one.
        power_of_reports: for the smallest difference that a trial's own report names, the share of trials
            in which it is found. Shape: (reports,).
    """

    null: list[float]
    power: list[float]
    smallest: float
    ratio: float
    power_of_reports: NDArray[np.float64]


def sentence_trials(
    texts: Sequence[list[str]], references: list[str], trials: int, resamples: int
) -> dict[str, list[float]]:
    """Test pairs of runs whose sentences were exchanged at random.

    Args:
        texts: translations of the runs.
        references: the reference translations.
        trials: the number of pairs.
        resamples: exchanges and resamples of a test; sacrebleu's test always has 1,000.

    Returns:
        The p-values by test.
    """
    rng = np.random.default_rng(1)
    metric = bleu_metric(references)
    statistics = [sentence_statistics(metric, text) for text in texts]
    sacrebleus = SacrebleuBootstrap(references)
    sacrebleus.check(texts[0], texts[-1])
    p_values_of_tests: dict[str, list[float]] = {
        "approximate randomization": [],
        "bootstrap, centred": [],
        "bootstrap of sacrebleu": [],
    }
    for _ in range(trials):
        first, second = rng.choice(len(texts), 2, replace=False)
        exchanged = (rng.random(len(references)) < 0.5)[:, None]
        ours = np.where(exchanged, statistics[second], statistics[first])
        theirs = np.where(exchanged, statistics[first], statistics[second])
        p_values = (
            sentence_p_value([ours], [theirs], bleu_scores, "ar", resamples),
            sentence_p_value([ours], [theirs], bleu_scores, "bs", resamples),
            sacrebleus.p_value(ours, theirs),
        )
        for name, p in zip(p_values_of_tests, p_values, strict=True):
            p_values_of_tests[name].append(p)
    return p_values_of_tests


class SacrebleuBootstrap:
    """sacrebleu's paired bootstrap, with the same digits in a hundredth of its time.

    Args:
        references: the reference translations.
    """

    def __init__(self, references: list[str]) -> None:
        self._references = references
        sentences = len(references)
        drawn = np.random.default_rng(12345).choice(sentences, size=(1000, sentences))
        self._weights = np.array(
            [np.bincount(indices, minlength=sentences) for indices in drawn], float
        )

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


def simulated_rows(
    seed: float, row_sentence: float, interaction: float, spread: float = 1.0
) -> Draw:
    """Draw scores of sentences from normal distributions.

    Args:
        seed: standard deviation of the seeds.
        row_sentence: standard deviation of row and sentence.
        interaction: standard deviation of seed and sentence.
        spread: how many times as much as the baseline's the row's seeds vary.
    """

    def draw(rng: np.random.Generator, seeds: tuple[int, int]) -> tuple[NDArray, NDArray]:
        sentences = rng.normal(0, 10, (1, SENTENCES))
        rows = [
            sentences
            + rng.normal(0, row_sentence, (1, SENTENCES))
            + rng.normal(0, seed * times, (count, 1))
            + rng.normal(0, interaction, (count, SENTENCES))
            for count, times in zip(seeds, (spread, 1.0), strict=True)
        ]
        return rows[0][..., None], rows[1][..., None]

    return draw


def kept_rows(regime: str, runs: NDArray[np.float64]) -> Draw:
    """Draw from kept translations.

    Args:
        regime: one of :data:`REGIMES`.
        runs: BLEU's statistics of three runs, from the worst to the best. Shape: (3, sentences, 10).
    """
    count = runs.shape[1]

    def training(rng: np.random.Generator, preferred: NDArray, order: NDArray) -> NDArray:
        if regime == "interaction":
            return runs[rng.integers(3, size=count), np.arange(count)]
        quality = QUALITY * rng.standard_normal()
        if regime == "seeds":
            takes_best = order < 0.5 + quality
        else:
            takes_best = np.where(rng.random(count) < KEPT_BY_ROW, preferred, ~preferred)
            takes_best = np.where(rng.random(count) < abs(quality), quality > 0, takes_best)
        return np.where(takes_best[:, None], runs[-1], runs[0])

    def draw(rng: np.random.Generator, seeds: tuple[int, int]) -> tuple[NDArray, NDArray]:
        preferred, order = rng.random(count) < 0.5, rng.random(count)
        rows = [
            np.stack([training(rng, is_preferred, order) for _ in range(number)])
            for number, is_preferred in zip(seeds, (preferred, ~preferred), strict=True)
        ]
        return rows[0], rows[1]

    return draw


def seed_trials(
    draw: Draw,
    scores: Callable[[NDArray], NDArray],
    seeds: tuple[int, int],
    trials: int,
    resamples: int,
) -> SeedTrials:
    """Test rows of trainings that are equally good, and rows that differ.

    Args:
        draw: draws the trainings.
        scores: the metric.
        seeds: trainings of the row and of the baseline.
        trials: the number of pairs of rows.
        resamples: the number of resamples in the bootstrap of the sentences.
    """
    rng = np.random.default_rng(seeds)
    means, trial_parts, weights = [], [], None
    for _ in range(trials):
        rows = draw(rng, seeds)
        if weights is None:
            weights = sentence_weights(np.random.default_rng(1), resamples, rows[0].shape[1])
        run_scores = [scores(row.sum(1)) for row in rows]
        resampled = [np.stack([scores(weights @ run) for run in row]) for row in rows]
        means.append(run_scores[0].mean() - run_scores[1].mean())
        trial_parts.append(error_parts(*run_scores, *resampled))
    differences = np.array(means)
    errors, freedom = np.transpose(
        [parts.error_and_freedom(np.array(parts.seeds)) for parts in trial_parts]
    )

    def p_values(shift: float) -> NDArray[np.float64]:
        return 2 * student.sf(np.abs(differences + shift) / errors, freedom)

    smallest = mean_parts(trial_parts).smallest_difference()
    in_reports = [parts.smallest_difference() for parts in trial_parts[:REPORTS]]
    return SeedTrials(
        null=p_values(0.0).tolist(),
        power=p_values(smallest).tolist(),
        smallest=smallest,
        ratio=float(np.sqrt(np.mean(np.square(errors))) / np.std(differences)),
        power_of_reports=np.array([np.mean(p_values(report) < LEVEL) for report in in_reports]),
    )


def mean_parts(found: Sequence[ErrorParts]) -> ErrorParts:
    """Average the parts over trials, which estimates their expected values."""
    seeds = np.mean([parts.seeds for parts in found], axis=0)
    return ErrorParts(
        (float(seeds[0]), float(seeds[1])),
        found[0].freedom,
        float(np.mean([parts.sentences for parts in found])),
        float(np.mean([parts.interaction for parts in found])),
    )


def pooled_trials(spreads: NDArray[np.float64], seeds: int, trials: int) -> dict[str, float]:
    """Compare rows with the first one, with the variance of seeds pooled if Levene's test accepts.

    Args:
        spreads: standard deviation of each row, 1 or 2.
        seeds: trainings of each row.
        trials: the number of tables.

    Returns:
        The share of rejected true null hypotheses, by the spreads of the two rows.
    """
    rng = np.random.default_rng(seeds)
    runs = rng.normal(size=(trials, len(spreads), seeds)) * spreads[:, None]
    variance, means = runs.var(axis=2, ddof=1), runs.mean(axis=2)
    deviations = np.abs(runs - np.median(runs, axis=2, keepdims=True))
    of_rows = deviations.mean(axis=2)
    between = seeds * np.square(of_rows - of_rows.mean(axis=1, keepdims=True)).sum(axis=1)
    within = np.square(deviations - of_rows[..., None]).sum(axis=(1, 2))
    free = len(spreads) * (seeds - 1)
    levene = fisher.sf(between / (len(spreads) - 1) / (within / free), len(spreads) - 1, free)
    shares_of_spreads: dict[str, list[float]] = {}
    for row in range(1, len(spreads)):
        parts = variance[:, [0, row]] / seeds
        welch = parts.sum(1) ** 2 / (parts**2 / (seeds - 1)).sum(1)
        pools = levene >= LEVEL
        error = np.sqrt(np.where(pools, 2 * variance.mean(1) / seeds, parts.sum(1)))
        t_values = np.abs(means[:, row] - means[:, 0]) / error
        rejects = 2 * student.sf(t_values, np.where(pools, free, welch)) < LEVEL
        key = " and ".join(f"{spread:g}" for spread in sorted((spreads[0], spreads[row])))
        shares_of_spreads.setdefault(key, []).append(float(rejects.mean()))
    return {key: float(np.mean(shares)) for key, shares in shares_of_spreads.items()}


def rejected(p_values: Sequence[float]) -> str:
    """Show the share of p-values below 5%, with an exact 95% interval."""
    test = binomtest(sum(p < LEVEL for p in p_values), len(p_values))
    interval = test.proportion_ci()
    return f"{test.statistic:.1%} ({interval.low:.1%} to {interval.high:.1%})"


def print_seed_trials(
    draws: dict[str, Draw],
    seeds: Sequence[tuple[int, int]],
    scores: Callable[[NDArray], NDArray],
    trials: int,
    resamples: int,
) -> None:
    """Print the table of the tests over seeds: each kind of trainings with each numbers of seeds."""
    lines = []
    for regime, draw in draws.items():
        for numbers in seeds:
            result = seed_trials(draw, scores, numbers, trials, resamples)
            lines.append(
                [
                    regime,
                    " and ".join(map(str, numbers)),
                    rejected(result.null),
                    f"{result.ratio:.2f}",
                    f"{result.smallest:.2f}",
                    rejected(result.power),
                    f"{result.power_of_reports.mean():.1%}",
                ]
            )
    headings = [
        "regime", "seeds of row and baseline", "p < 0.05 where nothing differs",
        "error / true error", "smallest difference", "p < 0.05 there",
        "p < 0.05 at the difference that one report names",
    ]  # fmt: skip
    print(markdown_table(headings, lines), "\n", flush=True)


def print_simulated_trials(trials: int, resamples: int) -> None:
    """Print the tests over seeds of simulated scores."""
    print(f"Simulated scores, {trials} trials\n")
    equal = {regime: simulated_rows(*effects) for regime, effects in REGIMES.items()}
    unequal = {
        f"{regime}, the row's vary {spread:.2g} times as much": simulated_rows(*effects, spread)
        for regime, effects in REGIMES.items()
        if effects[0]
        for spread in SPREADS
    }
    equal_seeds = [(number, number) for number in SEEDS]
    for draws, seeds in (
        (equal, equal_seeds),
        (equal, UNEQUAL),
        (unequal, [*equal_seeds, *UNEQUAL]),
    ):
        print_seed_trials(draws, seeds, lambda sums: sums[..., 0] / SENTENCES, trials, resamples)


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, help="kept runs, restored by restore_results.py")
    parser.add_argument("--reference", type=Path, help="raw text, .gz accepted")
    parser.add_argument("--subset", default="test", help="the test set's name in fairseq (test)")
    parser.add_argument("--trials", type=int, default=1000, help="over sentences (1000)")
    parser.add_argument("--seed-trials", type=int, default=3000, help="over seeds (3000)")
    parser.add_argument("--kept-trials", type=int, default=600, help="of kept runs (600)")
    parser.add_argument("--resamples", type=int, default=1000, help="of each test (1000)")
    args = parser.parse_args()
    print_simulated_trials(args.seed_trials, args.resamples)
    lines = [
        [str(rows), str(seeds), spreads, f"{share:.1%}"]
        for rows in (3, 9, 17)
        for seeds in SEEDS[1:]
        for baseline in (1.0, 2.0)
        for spreads, share in pooled_trials(
            np.where(np.arange(rows) % 2, 3 - baseline, baseline), seeds, 5 * args.seed_trials
        ).items()
    ]
    headings = ["rows", "seeds a row", "spreads of the two rows", "rejected with pooled variance"]
    print(markdown_table(headings, lines), "\n", flush=True)
    if args.runs is None or args.reference is None:
        return
    references = list(read_lines(args.reference))
    paths = sorted(args.runs.glob(f"*/*/generate-{args.subset}.txt"))
    if len(paths) < 3:
        sys.exit(f"{args.runs} has fewer than three runs with generate-{args.subset}.txt")
    texts = [read_generation(path).hypotheses for path in paths]
    print(f"{len(texts)} kept runs, {len(references)} sentences, {args.kept_trials} trials\n")
    statistics = [sentence_statistics(bleu_metric(references), text) for text in texts]
    ranked = sorted(statistics, key=lambda one: float(bleu_scores(one.sum(0))))
    outputs = np.stack([ranked[0], ranked[len(ranked) // 2], ranked[-1]])
    draws = {regime: kept_rows(regime, outputs) for regime in REGIMES}
    equal_seeds = [(number, number) for number in SEEDS]
    print_seed_trials(draws, equal_seeds, bleu_scores, args.kept_trials, args.resamples)
    p_values_of_tests = sentence_trials(texts, references, args.trials, 2 * args.resamples)
    lines = [[name, rejected(p_values)] for name, p_values in p_values_of_tests.items()]
    print(markdown_table(["test over sentences", "p < 0.05 where nothing differs"], lines))


if __name__ == "__main__":
    main()
