"""Tests of differences, over sentences and over seeds, against plain twins, sacrebleu and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest
from scipy.stats import ttest_ind

from fairseq_phrase.metrics.over_seeds import (
    compare_seeds,
    holm,
    pooled_spread,
    resample_sentences,
    smallest_difference,
)
from fairseq_phrase.metrics.over_sentences import sentence_p_value, summarize
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
            metric._compute_score_from_stats([int(value) for value in one]).score for one in sums
        ]
        assert metrics.scores(name, sums) == pytest.approx(expected), name


def test_approximate_randomization_gives_sacrebleus_p_for_each_metric():
    references, system, baseline = random_texts(2)
    metrics = TranslationMetrics(references)
    named = {"BLEU": BLEU(), "chrF2": CHRF(), "TER": TER()}
    test = PairedTest([("a", baseline), ("b", system)], named, [references], "ar", 300)()[1]
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
    other = [references[0], *system[1:]]
    assert other != system
    p = sentence_p_value(
        [metrics.statistics(system)["BLEU"]], [metrics.statistics(other)["BLEU"]], bleu_scores
    )
    assert p == 1


def test_the_bootstrap_is_centred_on_the_difference_and_two_sided():
    references, system, baseline = random_texts(4)
    metric = BLEU(references=[references])
    measured = metric.corpus_score(system, None).score - metric.corpus_score(baseline, None).score
    rng = np.random.default_rng(5)
    extreme = 0
    for _ in range(400):
        drawn = rng.integers(len(references), size=len(references))
        scores = [
            sacrebleu.corpus_bleu([text[i] for i in drawn], [[references[i] for i in drawn]]).score
            for text in (system, baseline)
        ]
        extreme += abs(scores[0] - scores[1] - measured) >= abs(measured)
    metrics = TranslationMetrics(references)
    ours, theirs = (metrics.statistics(text)["BLEU"] for text in (system, baseline))
    p = sentence_p_value([ours], [theirs], bleu_scores, "bs")
    assert 0.02 < p < 0.98, "else nothing was tested"
    assert p == pytest.approx(extreme / 400, abs=0.08)  # three standard errors of 400 trials
    assert p == pytest.approx(sentence_p_value([theirs], [ours], bleu_scores, "bs"))


def test_several_test_sets_are_tested_by_the_mean_of_their_scores():
    texts = [random_texts(seed, count=40) for seed in (6, 7)]
    statistics = [
        [
            TranslationMetrics(references).statistics(both[which])["BLEU"]
            for references, *both in texts
        ]
        for which in (0, 1)
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
            kept = (rng.random(len(ours)) < 0.5)[:, None]
            one, other = np.where(kept, ours, theirs), np.where(kept, theirs, ours)
            differences.append(bleu_scores(one.sum(0)) - bleu_scores(other.sum(0)))
        extreme += abs(np.mean(differences)) >= abs(measured)
    assert p == pytest.approx(extreme / 2000, abs=0.07)


def test_equal_scores_have_no_p():
    assert summarize([]) is None
    assert summarize([(1.0, 0.0), (1 / 10_001, 0.0)]) is None
    found = summarize([(0.01, -2.0), (0.2, -1.0), (1.0, 0.0)], lower_is_better=True)
    assert found is not None
    assert (found.p, found.better, found.worse, found.pairs) == (0.2, 1, 0, 3)


def test_without_variation_of_sentences_the_test_over_seeds_is_welchs():
    for system, baseline in (
        (np.array([30.1, 30.9, 31.2]), np.array([29.0, 29.2, 30.0, 29.7])),
        (np.array([25.0, 25.6]), np.array([24.9, 26.0])),
    ):
        resampled = [np.repeat(scores[:, None], 40_000, axis=1) for scores in (system, baseline)]
        found = compare_seeds(system, baseline, *resampled)
        expected = ttest_ind(system, baseline, equal_var=False)
        interval = expected.confidence_interval()
        assert found is not None
        assert found.difference == pytest.approx(system.mean() - baseline.mean())
        assert found.p == pytest.approx(expected.pvalue, rel=0.05)
        assert found.low == pytest.approx(interval.low, rel=0.05, abs=0.05)
        assert found.high == pytest.approx(interval.high, rel=0.05, abs=0.05)
        assert compare_seeds(system[:1], baseline, resampled[0][:1], resampled[1]) is None


def test_sentences_widen_the_interval_of_the_test_over_seeds():
    references, first, second = random_texts(10)
    runs = [[TranslationMetrics(references).statistics(text)["BLEU"]] for text in (first, second)]
    resampled = resample_sentences(runs, bleu_scores, 2000)
    scores = np.array([bleu_scores(run[0].sum(0)) for run in runs])
    # Two seeds of each row, alike: only sentences vary.
    found = compare_seeds(scores[[0, 0]], scores[[1, 1]], resampled[[0, 0]], resampled[[1, 1]])
    spread = (resampled[0] - resampled[1]).std()
    assert found is not None
    assert found.high - found.low == pytest.approx(2 * 1.96 * spread, rel=1e-3)
    # The same sentences for both rows: what makes one resample hard makes it hard for both.
    assert spread < np.hypot(resampled[0].std(), resampled[1].std())
    assert compare_seeds(scores[[0, 0]], scores[[0, 0]], *[resampled[[0, 0]]] * 2) is None


def test_holms_correction_keeps_order_and_never_lowers_p():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_pooled_spread_weights_rows_by_their_degrees_of_freedom():
    assert pooled_spread([[1.0, 3.0], [5.0, 5.0, 5.0], [7.0]]) == pytest.approx((2 / 3) ** 0.5)
    assert pooled_spread([[1.0], [2.0]]) is None


def test_the_smallest_difference_is_found_in_four_of_five_cases():
    rng = np.random.default_rng(11)
    for seeds, baseline_seeds in ((2, 2), (3, 3), (5, 3)):
        difference = smallest_difference(0.6, seeds, baseline_seeds)
        system = rng.normal(difference, 0.6, (4000, seeds))
        baseline = rng.normal(0, 0.6, (4000, baseline_seeds))
        found = ttest_ind(system, baseline, axis=1).pvalue < 0.05
        assert found.mean() == pytest.approx(0.8, abs=0.025)
    assert smallest_difference(0.6, 1, 3) is None
