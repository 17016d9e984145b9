"""Reports of labels, spans and exact match: seqeval's, scikit-learn's and scipy's numbers."""

from __future__ import annotations

import random
import shutil

import numpy as np
import pytest
from scipy.stats import binomtest
from seqeval.metrics import f1_score
from sklearn.metrics import accuracy_score

from fairseq_phrase.errors import UserError
from fairseq_phrase.metrics.forms import ExactMatch
from fairseq_phrase.metrics.labels import UNKNOWN_WORDS, LabelMetrics, SpanMetrics, mark_spans
from fairseq_phrase.metrics.measure_registry import Measure
from fairseq_phrase.metrics.over_sentences import mcnemar_p_value
from tests.support.report_table import records, report
from tests.support.run_folders import write_run

TAGS = ("O", "B-NP", "I-NP", "B-VP", "I-VP")


def lines(seed, count=40):
    """Random labels, the same number in each line whatever the seed."""
    sizes, rng = random.Random(0), random.Random(seed)
    return [" ".join(rng.choices(TAGS, k=sizes.randint(1, 9))) for _ in range(count)]


def changed(reference, share, seed):
    """Labels of which this share is drawn anew."""
    rng = random.Random(seed)
    return [
        " ".join(rng.choice(TAGS) if rng.random() < share else label for label in line.split())
        for line in reference
    ]


@pytest.fixture
def labelled(tmp_path):
    """Two rows of two seeds that label words."""
    reference = lines(7)
    (tmp_path / "test.tag").write_text("\n".join(reference) + "\n")
    for row, share in (("baseline", 0.4), ("better", 0.1)):
        for seed in (1, 2):
            folder = tmp_path / "runs" / row / f"seed{seed}"
            write_run(folder, ["a"], ["b"], ["c"], seed=seed, best="accuracy")
            (folder / "generate-test.txt").unlink()
            text = changed(reference, share, 10 * seed + len(row))
            (folder / "labels-test.txt").write_text("\n".join(text) + "\n")
    return tmp_path


def test_accuracy_and_span_f1_are_those_of_the_libraries():
    reference, predicted = lines(1), changed(lines(1), 0.3, 2)
    metrics = SpanMetrics(reference)
    scores = {
        name: metrics.score(name, statistics.sum(0))
        for name, statistics in metrics.statistics(predicted).items()
    }
    split = [[line.split() for line in text] for text in (reference, predicted)]
    assert scores["F1"] == pytest.approx(100 * f1_score(*split))
    flat = [[label for line in text for label in line] for text in split]
    assert scores["accuracy"] == pytest.approx(100 * accuracy_score(*flat))


def spans(metrics):
    """Tell correct, found and true spans of a text."""
    return lambda *found: metrics.statistics(found)["F1"].sum(0).tolist()


@pytest.mark.parametrize(
    ("reference", "found", "counts"),
    [
        ("B-LST <unk>", "B-LST O", [0, 1, 1]),
        ("B-LST <unk> I-LST", "B-LST I-LST I-LST", [0, 1, 1]),
        ("O <unk> I-NP I-NP", "O B-NP I-NP I-NP", [0, 1, 1]),
        ("<unk> <unk>", "O O", [0, 0, 1]),
        ("B-NP <unk> I-VP I-VP", "B-NP O B-VP I-VP", [0, 2, 2]),
        ("B-NP <unk> B-VP O", "O O B-VP O", [1, 1, 2]),
        ("I-NP O <unk>", "I-NP O O", [1, 1, 2]),
    ],
)
def test_no_span_is_found_that_touches_an_unknown_label(reference, found, counts):
    assert spans(SpanMetrics([reference]))(found) == counts


def test_unknown_labels_that_continue_spans_leave_f1_as_it_is():
    """CoNLL-2000's test set has I-LST, which its training set does not have."""
    rng = random.Random(3)
    reference = [
        [
            label
            for kind in rng.choices(["NP", "LST", "O"], k=rng.randint(1, 5))
            for label in (
                ["O"] if kind == "O" else [f"B-{kind}"] + [f"I-{kind}"] * rng.randint(0, 2)
            )
        ]
        for _ in range(60)
    ]
    labels_in_training = ["O", "B-NP", "I-NP", "B-LST"]
    predicted = [
        " ".join(
            label
            if label in labels_in_training and rng.random() < 0.9
            else rng.choice(labels_in_training)
            for label in line
        )
        for line in reference
    ]
    read = [
        " ".join(label if label in labels_in_training else "<unk>" for label in line)
        for line in reference
    ]
    assert any("<unk>" in line for line in read)
    expected = spans(SpanMetrics([" ".join(line) for line in reference]))(*predicted)
    assert spans(SpanMetrics(read))(*predicted) == expected


def test_scores_of_resamples_are_those_of_the_resampled_text():
    reference, predicted = lines(1), changed(lines(1), 0.3, 2)
    drawn = np.random.default_rng(0).integers(40, size=(3, 40))
    for kind in (LabelMetrics, SpanMetrics, ExactMatch):
        metrics = kind(reference)
        statistics = metrics.statistics(predicted)
        for name in metrics.names:
            sums = np.stack([statistics[name][indices].sum(0) for indices in drawn])
            for index, indices in enumerate(drawn):
                resampled_metrics = kind([reference[i] for i in indices])
                direct = resampled_metrics.statistics([predicted[i] for i in indices])[name].sum(0)
                assert metrics.scores(name, sums)[index] == pytest.approx(
                    resampled_metrics.score(name, direct)
                )


def test_unknown_words_have_an_accuracy_of_their_own():
    metrics = LabelMetrics(["A B", "A"], ["the zebra", "zebra"], {"the"})
    assert metrics.names == ["accuracy", UNKNOWN_WORDS]
    sums = {
        name: statistics.sum(0) for name, statistics in metrics.statistics(["B B", "B"]).items()
    }
    assert metrics.score("accuracy", sums["accuracy"]) == pytest.approx(100 / 3)
    assert metrics.score(UNKNOWN_WORDS, sums[UNKNOWN_WORDS]) == 50.0


def test_without_unknown_words_there_is_no_accuracy_of_them(labelled, capsys):
    words = " ".join(lines(7)).split()
    text = "\n".join(" ".join("w" * len(line.split())) for line in lines(7)) + "\n"
    (labelled / "test.en").write_text(text)
    (labelled / "known").write_text("w\n")
    known_words = ("--measure", "labels", "--known-words", str(labelled / "known"))
    source = ("--source", str(labelled / "test.en"))
    report_text = report(labelled, *known_words, *source, reference="test.tag")
    assert UNKNOWN_WORDS not in report_text
    assert f"Unknown words: 0 of {len(words)}." in report_text
    (labelled / "test.en").write_text("v" + text[1:])
    report_text = report(labelled, *known_words, *source, reference="test.tag")
    assert f"Unknown words: 1 of {len(words)}." in report_text
    assert UNKNOWN_WORDS in report_text
    for path in (labelled / "runs").glob("*/*/labels-test.txt"):
        path.with_name("labels-test1.txt").write_text(path.read_text())
    (labelled / "test1.en").write_text(text)
    (labelled / "test1.tag").write_text((labelled / "test.tag").read_text())
    second = (f"test1={labelled / 'test1'}.{side}" for side in ("en", "tag"))
    two = ("--source", next(second), "--reference", next(second))
    for options, message in (
        ((*known_words, *source, *two), "'test' and 'test1' do not both have unknown words: leave"),
        (known_words, "--known-words needs the words of each test set: --source FILE"),
        (
            (*known_words, *source, "--measure", "exact"),
            "--known-words needs --measure labels or spans, not",
        ),
    ):
        with pytest.raises(SystemExit, match="2"):
            report(labelled, *options, reference="test.tag")
        assert message in capsys.readouterr().err


def test_lines_with_another_number_of_labels_are_named():
    with pytest.raises(UserError, match="line 2 has 1 labels, and its reference has 2 labels"):
        LabelMetrics(["A", "A B"]).statistics(["A", "A"])
    with pytest.raises(UserError, match="line 1 has 2 words in the source"):
        LabelMetrics(["A"], ["two words"], set())


def test_mcnemar_counts_the_items_that_only_one_has_right():
    ours = np.array([True] * 9 + [False] * 3 + [True] * 20)
    theirs = np.array([False] * 9 + [True] * 3 + [True] * 20)
    assert mcnemar_p_value(ours, theirs) == binomtest(9, 12).pvalue
    assert mcnemar_p_value(ours, ours) == 1.0


def test_a_report_of_labels_has_differences_tests_and_a_confusion_picture(labelled):
    text = report(
        labelled, "--baseline", "baseline", "--trials", "50", "--measure", "labels",
        reference="test.tag", drawn=True,
    )  # fmt: skip
    assert "Δaccuracy" in text
    assert "McNemar's exact test" in text
    assert "BLEU" not in text
    assert "better: F1" in text
    assert "Words/s: labels per second of training" in text
    assert "Training chose its best checkpoint by accuracy on the validation set." in text
    rows = {row["row"]: row for row in records(labelled / "out" / "report.csv")}
    assert float(rows["better"]["accuracy_mean"]) > float(rows["baseline"]["accuracy_mean"])
    assert int(rows["better"]["accuracy_better"]) == 2
    assert (labelled / "out" / "confusion.png").stat().st_size > 10_000
    page = (labelled / "out" / "report.html").read_text()
    assert "Labels that differ" in page
    assert "Confusion of labels" in page


@pytest.mark.parametrize(("suffix", "best"), [("", "worse"), (":lower", "better")])
def test_the_best_row_is_that_of_the_lowest_score_where_lower_is_better(labelled, suffix, best):
    shutil.copytree(labelled / "runs" / "better", labelled / "runs" / "worse")
    for row, wrong in (("baseline", 4), ("better", 1), ("worse", 3)):
        for seed in (1, 2):
            path = labelled / "runs" / row / f"seed{seed}" / "wrong.txt"
            path.write_text(f"{wrong}\n" * 40)
    metric = ("--metric", f"file:wrong=wrong.txt{suffix}", "--trials", "50")
    text = report(
        labelled, "--measure", "labels", "--baseline", "baseline", *metric, reference="test.tag"
    )
    assert f"{best}: F1" in text
    assert f"{'worse' if best == 'better' else 'better'}: F1" not in text


def test_a_report_of_spans_tests_f1_over_seeds(labelled):
    report(
        labelled, "--baseline", "baseline", "--trials", "50", "--measure", "spans",
        reference="test.tag",
    )  # fmt: skip
    rows = {row["row"]: row for row in records(labelled / "out" / "report.csv")}
    assert 0 <= float(rows["better"]["F1_p_holm"]) <= 1
    assert float(rows["better"]["F1_difference"]) > 0


@pytest.mark.parametrize(
    ("first", "message"),
    [("{} O\n", "seed1, test set 'test': line 1 has"), ("", "lines of labels, and the reference")],
)
def test_labels_of_another_number_of_words_or_lines_name_the_run(labelled, refused, first, message):
    path = labelled / "runs" / "better" / "seed1" / "labels-test.txt"
    first_line, _, further_lines = path.read_text().partition("\n")
    path.write_text(first.format(first_line) + further_lines)
    assert message in refused(report, labelled, "--measure", "labels", reference="test.tag")


def test_f1_of_labels_that_mark_no_spans_is_refused(labelled, capsys):
    text = (labelled / "test.tag").read_text().replace("B-VP", "VBZ")
    (labelled / "test.tag").write_text(text)
    line = next(
        number for number, line_text in enumerate(text.split("\n"), start=1) if "VBZ" in line_text
    )
    with pytest.raises(SystemExit, match="2"):
        report(labelled, "--measure", "spans", reference="test.tag")
    expected = (
        f"line {line} of the reference has the label 'VBZ', but F1 is of labels that mark spans"
    )
    assert expected in capsys.readouterr().err


def test_missing_labels_of_one_of_several_test_sets_are_named(labelled, capsys):
    second_set = f"test1={labelled / 'test.tag'}"
    with pytest.raises(SystemExit):
        report(labelled, "--measure", "labels", "--reference", second_set, reference="test.tag")
    assert "seed1 has no labels: no labels-test1.txt\n" in capsys.readouterr().err


@pytest.mark.parametrize("measure", ["labels", "spans"])
@pytest.mark.parametrize("reference", [[], ["", ""]])
def test_a_reference_without_labels_is_refused(measure, reference):
    with pytest.raises(UserError, match="the reference has no labels, so nothing can be scored"):
        Measure(measure).metrics([reference])


@pytest.mark.parametrize("metrics", [LabelMetrics, SpanMetrics])
@pytest.mark.parametrize("reference", [[], ["", ""]])
def test_lines_without_labels_have_no_correct_labels(metrics, reference):
    measured = metrics(reference)
    scores = measured.scores_of(measured.statistics(reference))
    assert scores == dict.fromkeys(measured.names, 0.0)


@pytest.mark.parametrize(
    ("labels", "are_marks"),
    [
        (["O", "B-NP", "I-NP"], True), (["B-NP"], True), (["I-NP", "<unk>"], True),
        (["O"], False), ([], False), (["O", "<unk>"], False), (["B-NP", "NN"], False), (["S-NP"], False),
    ],
)  # fmt: skip
def test_labels_mark_spans_if_one_is_not_outside_and_all_are_marks(labels, are_marks):
    assert mark_spans(labels) == are_marks
