"""Rates of repetition: n-grams that a sentence has before, and words that repeat at once."""

from __future__ import annotations

import pytest

from fairseq_phrase.metrics.translation import (
    REPETITIONS,
    TranslationMetrics,
    immediate_repetitions,
    repeated_ngrams,
)
from tests.support.report_table import records, report, write_table


@pytest.mark.parametrize(
    ("text", "repeated"),
    [
        ("a b c d e", [0, 0, 0, 0]),
        ("a a a a", [3, 2, 1, 0]),
        ("a b a b a b", [4, 3, 2, 1]),
        ("a", [0, 0, 0, 0]),
        ("", [0, 0, 0, 0]),
    ],
)
def test_ngrams_count_if_they_occurred_before(text, repeated):
    words = text.split()
    counts = [repeated_ngrams(words, size) for size in range(1, 5)]
    assert counts == [(count, max(0, len(words) - n)) for n, count in enumerate(repeated)]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("a b a b", 1),
        ("the the dog", 1),
        ("a b c d a b c d", 1),
        ("a b c d e a b c d e", 0),  # longer than four words
        ("a x a", 0),
        ("a a a", 2),
        ("", 0),
    ],
)
def test_a_repetition_is_immediate_if_the_same_words_are_right_before(text, count):
    words = text.split()
    assert immediate_repetitions(words) == (count, len(words))


def test_rates_are_over_all_sentences_and_in_bleus_tokens():
    metrics = TranslationMetrics(["a dog."] * 2, repetition=True)
    counts = metrics.statistics(["A dog, a dog.", "cats"])  # A dog , a dog .
    scores = {name: metrics.score(name, counts[name].sum(0)) for name in REPETITIONS}
    assert scores == pytest.approx(dict(zip(REPETITIONS, [100 / 7, 0, 0, 0, 0], strict=True)))
    assert metrics.scores("rep-1", counts["rep-1"]) == pytest.approx([100 / 6, 0.0])
    assert metrics.scores("rep-2", counts["rep-2"]) == pytest.approx([0.0, 0.0])
    assert metrics.names[0] == metrics.main == "BLEU"


def test_the_report_has_columns_and_the_references_own_rates(tmp_path):
    table = write_table(tmp_path)
    assert "rep-1" not in report(table)
    text = report(table, "--repetition")
    assert "The references have rep-1 " in text
    assert "| rep-4" in text
    assert float(records(table / "out" / "report.csv")[0]["rep-now_mean"]) > 0  # quickly quickly
