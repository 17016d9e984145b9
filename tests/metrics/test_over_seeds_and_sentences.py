"""Tests of differences, over sentences and over seeds, against plain twins, sacrebleu and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest
from scipy.stats import t as student
from scipy.stats import ttest_ind

from fairseq_phrase.errors import UserError
from fairseq_phrase.metrics.forms import ExactMatch
from fairseq_phrase.metrics.interface import percentages
from fairseq_phrase.metrics.labels import LabelMetrics, SpanMetrics
from fairseq_phrase.metrics.over_seeds import (
    ErrorParts,
    compare_seeds,
    error_parts,
    holm,
    resample_sentences,
)
from fairseq_phrase.metrics.over_sentences import random_seed, sentence_p_value, summarize
from fairseq_phrase.metrics.translation import TranslationMetrics, bleu_scores

WORDS = [
    "a",
    "the",
    "dog",
    "cat",
    "sees",
    "old",
    "new",
    "house",
    "in",
    "on",
    "under",
    "green",
    "child",
    "sleeps",
    "runs",
]


def random_texts(seed, count=80):
    """References, and two translations of which every sentence has random words exchanged."""
    rng = np.random.default_rng(seed)
    references = [" ".join(rng.choice(WORDS, rng.integers(4, 15))) for _ in range(count)]

    def noisy(share):
        return [
            " ".join(rng.choice(WORDS) if rng.random() < share else word for word in line.split())
            for line in references
        ]

    return references, noisy(0.25), noisy(0.3)


def test_scores_of_sums_are_sacrebleus_also_where_nothing_matches():
    rng = np.random.default_rng(1)
    totals = rng.integers(0, 6, (300, 4))
    counts = np.concatenate(
        [rng.integers(0, 9, (300, 2)), rng.integers(0, 6, (300, 4)) % (totals + 1), totals], axis=1
    ).astype(float)
    counts[totals[:, 0] > 0, 0] += 1
    metrics = TranslationMetrics(["a reference"])
    cases = (
        ("BLEU", BLEU(), counts),
        ("chrF", CHRF(), rng.integers(0, 3, (300, 18)).astype(float)),
        ("TER", TER(), rng.integers(0, 3, (300, 2)).astype(float)),
    )
    for name, metric, sums in cases:
        expected = [
            metric._compute_score_from_stats([int(value) for value in value_row]).score
            for value_row in sums
        ]
        assert metrics.scores(name, sums) == pytest.approx(expected), name


def test_approximate_randomization_gives_sacrebleus_p_for_each_metric():
    references, system, baseline = random_texts(2)
    metrics = TranslationMetrics(references)
    metrics_by_name = {"BLEU": BLEU(), "chrF2": CHRF(), "TER": TER()}
    test = PairedTest([("a", baseline), ("b", system)], metrics_by_name, [references], "ar", 300)()[
        1
    ]
    ours, theirs = metrics.statistics(system), metrics.statistics(baseline)
    for name, expected in (("BLEU", "BLEU"), ("chrF", "chrF2"), ("TER", "TER")):
        p = sentence_p_value(
            [ours[name]], [theirs[name]], lambda sums, name=name: metrics.scores(name, sums),
            "ar", 300,
        )  # fmt: skip
        assert 0.01 < p < 1
        assert p == pytest.approx(test[expected][1].p_value), name


def test_two_translations_that_differ_in_one_sentence_alone_are_not_significant():
    references, system, _ = random_texts(3)
    metrics = TranslationMetrics(references)
    changed = [references[0], *system[1:]]
    assert changed != system
    p = sentence_p_value(
        [metrics.statistics(system)["BLEU"]], [metrics.statistics(changed)["BLEU"]], bleu_scores
    )
    assert p == 1


def test_the_bootstrap_is_centred_on_the_difference_and_two_sided():
    references, system, baseline = random_texts(4)
    metric = BLEU(references=[references])
    measured = metric.corpus_score(system, None).score - metric.corpus_score(baseline, None).score
    metrics = TranslationMetrics(references)
    ours, theirs = (metrics.statistics(text)["BLEU"] for text in (system, baseline))
    rng = np.random.default_rng(5)
    extreme = 0
    for trial in range(400):
        drawn = rng.integers(len(references), size=len(references))
        scores = [float(bleu_scores(counts[drawn].sum(0))) for counts in (ours, theirs)]
        if trial < 5:
            right = [references[i] for i in drawn]
            for text, score in zip((system, baseline), scores, strict=True):
                resampled = sacrebleu.corpus_bleu([text[i] for i in drawn], [right])
                assert resampled.score == pytest.approx(score)
        extreme += abs(scores[0] - scores[1] - measured) >= abs(measured)
    p = sentence_p_value([ours], [theirs], bleu_scores, "bs")
    assert 0.02 < p < 0.98, "else nothing was tested"
    assert p == pytest.approx(extreme / 400, abs=0.08)  # three standard errors of 400 trials
    assert p == pytest.approx(sentence_p_value([theirs], [ours], bleu_scores, "bs"))


@pytest.mark.parametrize("test", ["ar", "bs"])
def test_one_sentence_says_nothing_of_others(test):
    """Each resample of one sentence is this sentence."""
    right, wrong = np.array([[3.0, 4.0]]), np.array([[1.0, 4.0]])
    assert sentence_p_value([right], [wrong], percentages, test, 100) == 1
    assert sentence_p_value([right] * 2, [wrong] * 2, percentages, test, 100) == 1


@pytest.mark.parametrize("seed", ["twelve", "-1", ""])
def test_a_seed_that_is_no_number_is_named(seed, monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", seed)
    with pytest.raises(UserError, match=f"SACREBLEU_SEED={seed}: expected a number, or none"):
        random_seed()


def test_several_test_sets_are_tested_by_the_mean_of_their_scores():
    texts = [random_texts(seed, count=40) for seed in (6, 7)]
    statistics = [
        [
            TranslationMetrics(references).statistics(outputs[system_number])["BLEU"]
            for references, *outputs in texts
        ]
        for system_number in (0, 1)
    ]
    p = sentence_p_value(*statistics, bleu_scores, "ar", 500)
    measured = np.mean(
        [bleu_scores(a.sum(0)) - bleu_scores(b.sum(0)) for a, b in zip(*statistics, strict=True)]
    )
    rng = np.random.default_rng(8)
    extreme = 0
    for _ in range(2000):
        differences = []
        for ours, theirs in zip(*statistics, strict=True):
            exchanged = (rng.random(len(ours)) < 0.5)[:, None]
            first, second = np.where(exchanged, ours, theirs), np.where(exchanged, theirs, ours)
            differences.append(bleu_scores(first.sum(0)) - bleu_scores(second.sum(0)))
        extreme += abs(np.mean(differences)) >= abs(measured)
    assert p == pytest.approx(extreme / 2000, abs=0.07)


def test_equal_scores_have_no_p():
    assert summarize([]) is None
    assert summarize([(1.0, 0.0), (1 / 10_001, 0.0)]) is None
    summary = summarize([(0.01, -2.0), (0.2, -1.0), (1.0, 0.0)], lower_is_better=True)
    assert summary is not None
    assert (summary.p, summary.better, summary.worse, summary.pairs) == (0.2, 1, 0, 3)


def test_without_variation_of_sentences_the_test_over_seeds_is_welchs():
    for system, baseline in (
        (np.array([30.1, 30.9, 31.2]), np.array([29.0, 29.2, 30.0, 29.7])),
        (np.array([25.0, 25.6]), np.array([24.9, 26.0])),
    ):
        resampled = [np.repeat(scores[:, None], 4, axis=1) for scores in (system, baseline)]
        comparison = compare_seeds(system, baseline, *resampled)
        expected = ttest_ind(system, baseline, equal_var=False)
        interval = expected.confidence_interval()
        assert comparison is not None
        assert comparison.difference == pytest.approx(system.mean() - baseline.mean())
        assert comparison.p == pytest.approx(expected.pvalue)
        assert (comparison.low, comparison.high) == pytest.approx((interval.low, interval.high))
        assert compare_seeds(system[:1], baseline, resampled[0][:1], resampled[1]) is None


def test_sentences_widen_the_interval_of_the_test_over_seeds():
    references, first, second = random_texts(10)
    runs = [[TranslationMetrics(references).statistics(text)["BLEU"]] for text in (first, second)]
    resampled = resample_sentences(runs, bleu_scores, 2000)
    scores = np.array([bleu_scores(run[0].sum(0)) for run in runs])
    # Two seeds of each row, alike: only sentences vary.
    comparison = compare_seeds(scores[[0, 0]], scores[[1, 1]], resampled[[0, 0]], resampled[[1, 1]])
    spread = (resampled[0] - resampled[1]).std()
    assert comparison is not None
    assert comparison.high - comparison.low == pytest.approx(2 * 1.96 * spread, rel=1e-3)
    # The same sentences for both rows: what makes one resample hard makes it hard for both.
    assert spread < np.hypot(resampled[0].std(), resampled[1].std())
    assert compare_seeds(scores[[0, 0]], scores[[0, 0]], *[resampled[[0, 0]]] * 2) is None


def test_holms_correction_keeps_order_and_never_lowers_p():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def mean_of_scores(sums):
    return sums[..., 0] / sums[..., 1]


def crossed_scores(rng, seeds, sentences=60):
    """Sentence scores of two rows: effects of sentence, row and sentence, seed, and seed and sentence."""
    common = rng.normal(0, 9, sentences)
    return [
        common
        + rng.normal(0, 4, sentences)
        + rng.normal(0, 1, (count, 1))
        + rng.normal(0, 7, (count, sentences))
        for count in seeds
    ]


def analysis_of_variance(rows):
    """The parts of the squared standard error, by mean squares, sentence by sentence."""
    sentences = rows[0].shape[1]
    seeds, interaction = [], 0.0
    for scores in rows:
        count = len(scores)
        means = [sum(run) / sentences for run in scores]
        grand = sum(means) / count
        seeds.append(sum((mean - grand) ** 2 for mean in means) / (count - 1) / count)
        residual = 0.0
        for run, mean in zip(scores, means, strict=True):
            for index, score in enumerate(run):
                of_sentence = sum(row[index] for row in scores) / count
                residual += (score - mean - of_sentence + grand) ** 2
        # A bootstrap divides by the number of sentences, not by one less.
        interaction += residual / (count - 1) / sentences / count / sentences
    differences = rows[0].mean(0) - rows[1].mean(0)
    between = float(np.mean((differences - differences.mean()) ** 2)) / sentences
    return seeds, between, interaction


@pytest.mark.parametrize("seeds", [(3, 3), (2, 5), (5, 3)])
@pytest.mark.parametrize("test_sets", [1, 2])
def test_the_parts_of_the_error_are_those_of_an_analysis_of_variance(seeds, test_sets):
    rng = np.random.default_rng(sum(seeds) + test_sets)
    sets = [crossed_scores(rng, seeds) for _ in range(test_sets)]
    runs = [
        [
            np.stack([test_set[row][run], np.ones_like(test_set[row][run])], axis=1)
            for test_set in sets
        ]
        for row in (0, 1)
        for run in range(seeds[row])
    ]
    resampled = resample_sentences(runs, mean_of_scores, 20_000)
    scores = [np.mean([test_set[row].mean(1) for test_set in sets], axis=0) for row in (0, 1)]
    parts_of_error = error_parts(*scores, resampled[: seeds[0]], resampled[seeds[0] :])
    parts = [analysis_of_variance(test_set) for test_set in sets]
    expected = [row_scores.var(ddof=1) / len(row_scores) for row_scores in scores]
    assert parts_of_error.seeds == pytest.approx(expected)
    if test_sets == 1:
        assert parts_of_error.seeds == pytest.approx(parts[0][0])
    # Test sets are resampled independently, and their mean is tested.
    between, interaction = (sum(part[i] for part in parts) / test_sets**2 for i in (1, 2))
    assert parts_of_error.sentences == pytest.approx(between, rel=0.05)
    assert parts_of_error.interaction == pytest.approx(interaction, rel=0.05)
    comparison = compare_seeds(*scores, resampled[: seeds[0]], resampled[seeds[0] :])
    assert comparison is not None
    squared = max(sum(expected) + between - interaction, sum(expected), between)
    assert comparison.error == pytest.approx(squared**0.5, rel=0.05)
    satterthwaite = squared**2 / sum(
        part**2 / (count - 1) for part, count in zip(expected, seeds, strict=True)
    )
    assert comparison.freedom == pytest.approx(satterthwaite, rel=0.15)


def test_the_error_is_never_below_the_seeds_or_the_sentences_part():
    seeds = np.array([0.5, 0.5])
    for sentences, interaction, squared in ((4.0, 0.5, 4.5), (4.0, 3.5, 4.0), (0.2, 0.9, 1.0)):
        parts = ErrorParts((0.5, 0.5), (2, 2), sentences, interaction)
        assert parts.error_and_freedom(seeds)[0] ** 2 == pytest.approx(squared)


def label_texts(rng, labels, shares):
    references = [" ".join(rng.choice(labels, 8)) for _ in range(70)]
    runs = [
        [
            " ".join(
                rng.choice(labels) if rng.random() < share else label for label in line.split()
            )
            for line in references
        ]
        for share in shares
    ]
    return references, runs


@pytest.mark.parametrize("metric", ["BLEU", "chrF", "TER", "accuracy", "F1", "exact match"])
def test_every_metric_is_resampled_as_texts_are_scored(metric):
    rng = np.random.default_rng(12)
    if metric in ("BLEU", "chrF", "TER"):
        references, *runs = random_texts(13)
        make = TranslationMetrics
    elif metric == "exact match":
        references, runs = label_texts(rng, ["a", "b"], (0.1, 0.2))
        make = ExactMatch
    else:
        references, runs = label_texts(rng, ["B-X", "I-X", "O"], (0.1, 0.3))
        make = SpanMetrics if metric == "F1" else LabelMetrics
    metrics = make(references)
    statistics = [[metrics.statistics(run)[metric]] for run in runs]
    resampled = resample_sentences(statistics, lambda sums: metrics.scores(metric, sums), 3)
    drawn = np.random.default_rng(12345).integers(len(references), size=(3, len(references)))
    for resample, indices in enumerate(drawn):
        resampled_metrics = make([references[i] for i in indices])
        for number, run in enumerate(runs):
            sums = resampled_metrics.statistics([run[i] for i in indices])[metric].sum(0)
            assert resampled[number, resample] == pytest.approx(
                resampled_metrics.score(metric, sums)
            )


def test_the_smallest_difference_is_found_in_four_of_five_cases():
    rng = np.random.default_rng(11)
    for seeds, baseline_seeds in ((2, 2), (3, 3), (5, 3)):
        counts = np.array([seeds, baseline_seeds])
        parts = ErrorParts(
            tuple(0.36 / counts), tuple(counts - 1), sentences=0.05, interaction=0.02
        )
        difference = parts.smallest_difference()
        true = (sum(parts.seeds) + 0.03) ** 0.5
        spreads = rng.chisquare(counts - 1, (4000, 2)) / (counts - 1) * parts.seeds
        errors, freedom = parts.error_and_freedom(spreads)
        measured = rng.normal(difference, true, 4000)
        is_significant = 2 * student.sf(abs(measured) / errors, freedom) < 0.05
        assert is_significant.mean() == pytest.approx(0.8, abs=0.03)
