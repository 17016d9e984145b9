"""Notes below a report's table."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fairseq_phrase.lab.report.notes import baseline_notes
from fairseq_phrase.lab.report.rows import Report, Row

METRICS = SimpleNamespace(main="BLEU", people_agree=lambda metric, difference: None)
WIDE = "With fewer than 3 seeds of a row, the interval is wide and p says little."


def row(title, seeds, compared=True, bleu=None):
    """Make a row with runs of the seeds 1, 2, …, which have the given scores, or some."""
    bleu = bleu or [seed * seed % 7 + len(title) for seed in range(seeds)]
    return Row(
        title,
        title,
        paper=None,
        runs=[SimpleNamespace(seed=seed + 1) for seed in range(seeds)],
        left_out=[],
        scores=[[{"BLEU": score}] for score in bleu],
        by_seeds={"BLEU": None} if compared else {},
    )


def notes(baseline, *others):
    baseline.by_seeds.clear()  # it is not compared with itself
    report = Report("", [baseline, *others], baseline, METRICS, [], {}, [], None, 1000)
    return list(baseline_notes(report))


@pytest.mark.parametrize(
    ("seeds", "is_wide"),
    [((3, 3), False), ((2, 3), True), ((3, 2), True), ((2, 2), True), ((5, 3), False)],
)
def test_few_seeds_of_the_row_or_of_the_baseline_make_the_interval_wide(seeds, is_wide):
    first, second = seeds
    assert (WIDE in notes(row("base", first), row("other", second))) == is_wide


def test_a_row_without_a_comparison_does_not_count_as_few_seeds():
    assert WIDE not in notes(row("base", 3), row("a", 3), row("b", 1, compared=False))


def test_one_seed_of_the_baseline_is_noted():
    with_one = notes(row("base", 1), row("a", 3, compared=False), row("b", 1, compared=False))
    assert [note for note in with_one if note.startswith("base has 1 seed: no p over seeds.")]
    with_three = notes(row("base", 3), row("a", 3), row("b", 1, compared=False))
    assert not [note for note in with_three if "base has 1 seed" in note]


def test_a_correction_is_named_for_several_comparisons_only():
    def holm(*others):
        return "Holm's method for 2 comparisons" in " ".join(notes(row("base", 3), *others))

    assert holm(row("a", 3), row("b", 3))
    assert not holm(row("a", 3), row("b", 1, compared=False))
    assert "corrected by Holm" not in " ".join(notes(row("base", 3), row("a", 3)))


def test_a_baseline_alone_has_no_notes():
    assert notes(row("base", 3)) == []
