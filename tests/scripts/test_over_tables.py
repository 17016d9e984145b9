"""``scripts/over_tables.py``: a difference over several tables."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from scipy.stats import ttest_ind

from fairseq_phrase.metrics.over_seeds import SeedComparison, mean_over_tables
from tests.support.repository import REPOSITORY

sys.path.append(str(REPOSITORY / "scripts"))
from over_tables import main

COLUMNS = (
    "row,title,BLEU_mean,BLEU_difference,BLEU_low,BLEU_high,BLEU_p,BLEU_error,BLEU_freedom,"
    "BLEU_seed_error"
)
BASE = "base,Base,30,,,,,,,"


def welch(system, baseline):
    """The difference of two means, its standard error and its degrees of freedom."""
    tested = ttest_ind(system, baseline, equal_var=False, axis=-1)
    difference = np.mean(system, -1) - np.mean(baseline, -1)
    return difference, difference / tested.statistic, tested.df, tested


def table(difference, error, freedom, seed_error=None):
    """A table's comparison; all of its error comes from the seeds unless said otherwise."""
    seed_error = error if seed_error is None else seed_error
    return SeedComparison(difference, 0.0, 0.0, 1.0, 1.0, error, freedom, seed_error)


def test_of_one_table_the_mean_is_its_difference():
    *runs, expected = welch([30.1, 31.0, 30.4], [29.0, 29.9, 29.2])
    mean = mean_over_tables([[table(*runs)]])
    low, high = expected.confidence_interval()
    assert mean.p == pytest.approx(expected.pvalue)
    assert (mean.low, mean.high) == pytest.approx((low, high))


def test_equal_tables_have_the_interval_of_all_their_seeds():
    four = mean_over_tables([[table(0.4, 0.3, 4.0)]] * 4)
    assert four.difference == pytest.approx(0.4)
    assert four.error == pytest.approx(0.15)
    assert four.freedom == pytest.approx(16)


def test_a_true_null_hypothesis_is_rejected_in_one_case_of_twenty():
    rng = np.random.default_rng(1)
    spreads = np.array([0.3, 0.5, 0.9])[:, None]
    systems, baselines = rng.normal(30, spreads, (2, 2000, 3, 3))
    tests = zip(*welch(systems, baselines)[:3], strict=True)  # (2,000 cases, three tables) each
    rejected = [
        mean_over_tables([[table(*runs)] for runs in zip(*three, strict=True)]).p < 0.05
        for three in tests
    ]
    assert 0.03 < np.mean(rejected) < 0.06


def test_tables_of_the_same_sentences_are_one_corpus_and_share_the_sentences_error():
    first, second, third = (
        table(1.0, 0.5, 4.0, 0.3),
        table(2.0, 0.5, 4.0, 0.3),
        table(3.0, 0.2, 4.0, 0.2),
    )
    mean = mean_over_tables([[first, second], [third]])
    assert mean.difference == pytest.approx((1.5 + 3.0) / 2)
    # Sentences give each of the first two an error of 0.4, which their mean keeps; seeds average out.
    assert mean.error**2 == pytest.approx((0.4**2 + 0.3**2 / 2 + 0.2**2) / 4)
    assert mean_over_tables([[first], [second]]).error < mean_over_tables([[first, second]]).error


def run(capsys, *arguments):
    main([*map(str, arguments)])
    return capsys.readouterr()


def write(path, *lines, columns=COLUMNS):
    path.write_text("\n".join([columns, *lines]) + "\n")
    return path


def test_tables_and_their_mean_are_printed(tmp_path, capsys):
    first = write(tmp_path / "a.csv", BASE, "tree,Tree,31,1.0,0.4,1.6,0.01,0.2,4,0.1")
    second = write(tmp_path / "b.csv", BASE, "tree,Tree,30.5,0.5,-0.5,1.5,0.2,0.3,5,0.3")
    third = write(tmp_path / "c.csv", "other,Other,30.5,0.5,-0.5,1.5,0.2,0.3,5,0.3")
    one_seed = write(tmp_path / "d.csv", "tree,Tree,30.5,0.5,,,,,,")
    printed = run(capsys, "tree", first, second, third, one_seed)
    lines = [line.split("|")[1:-1] for line in printed.out.splitlines()]
    assert [line[0].strip() for line in lines[2:]] == [str(first), str(second), "mean"]
    assert [line[1].strip() for line in lines[2:]] == ["+1.00", "+0.50", "+0.75"]
    assert lines[2][2].strip() == "+0.40 to +1.60"
    assert f"left out: {third}" in printed.err
    assert f"left out: {one_seed}" in printed.err
    joined = run(capsys, "tree", f"{first},{second}")
    assert "+0.75" in joined.out


def test_files_that_say_nothing_are_named(tmp_path, capsys):
    old = write(tmp_path / "old.csv", "tree,1.0", columns="row,BLEU_difference")
    with pytest.raises(
        SystemExit, match=r"old\.csv has no column 'BLEU_low': make the report again"
    ):
        run(capsys, "tree", old)
    with pytest.raises(SystemExit, match="no report has an interval for tree"):
        run(capsys, "tree", write(tmp_path / "none.csv", BASE))
    with pytest.raises(SystemExit, match=r"No such file .*no\.csv"):
        run(capsys, "tree", tmp_path / "no.csv")


def test_tables_of_different_baselines_are_refused(tmp_path, capsys):
    tree = "tree,Tree,31,1.0,0.4,1.6,0.01,0.2,4,0.1"
    first = write(tmp_path / "a.csv", BASE, tree)
    second = write(tmp_path / "b.csv", BASE.replace("Base", "Relative"), tree)
    with pytest.raises(SystemExit, match=r"baselines: .*a\.csv with Base, .*b\.csv with Relative"):
        run(capsys, "tree", first, second)
    with pytest.raises(SystemExit, match=r"c\.csv does not compare with one baseline: it has none"):
        run(capsys, "tree", write(tmp_path / "c.csv", tree))


def test_a_table_that_is_named_twice_is_refused(tmp_path, capsys):
    """It would count as two corpora, and the interval would be too narrow."""
    first = write(tmp_path / "a.csv", BASE, "tree,Tree,31,1.0,0.4,1.6,0.01,0.2,4,0.1")
    for names in ([first, tmp_path / "." / "a.csv"], [f"{first},{first}"]):
        with pytest.raises(SystemExit, match=r"a\.csv is named twice"):
            run(capsys, "tree", *names)
