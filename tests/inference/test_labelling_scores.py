"""Scores of ``fairseq-phrase-label --scores``."""

from __future__ import annotations

import pytest

from fairseq_phrase.inference.labelling import (
    LabelledSplit,
    describe_scores,
    is_bio,
    scores_of_labels,
    scores_of_split,
)

TAGS = LabelledSplit(["N V N", "N"], ["N V V", "<unk>"])


def test_sentences_have_accuracy_alone():
    split = LabelledSplit(["pos", "neg"], ["pos", "pos"], "sentence")
    assert scores_of_split(split) == {"accuracy": 50.0}
    assert not is_bio(split)


def test_spans_are_scored_where_labels_mark_them():
    split = LabelledSplit(["B-NP I-NP O B-VP"], ["B-NP I-NP O B-NP"])
    assert is_bio(split)
    assert not is_bio(TAGS)
    assert scores_of_split(split) == {"F1": 50.0, "accuracy": 75.0}


def test_labels_that_training_does_not_have_leave_f1():
    split = LabelledSplit(["B-NP O B-NP O"], ["B-NP <unk> B-NP O"])
    assert is_bio(split)
    # The span with the unknown label is not found, and the second one is.
    assert scores_of_split(split) == {"F1": 50.0, "accuracy": 75.0}


def test_labels_that_are_all_unknown_mark_no_spans():
    assert not is_bio(LabelledSplit(["B-NP"], ["<unk>"]))


def test_each_label_has_precision_and_recall():
    rows = {label: numbers for label, *numbers in scores_of_labels(TAGS)}
    assert rows["V"] == [2, 100.0, 50.0, pytest.approx(200 / 3)]
    assert rows["<unk>"] == [1, 0.0, 0.0, 0.0]
    assert scores_of_labels(TAGS)[0][0] == "V"
    text = describe_scores(TAGS)
    assert text.splitlines()[0] == "accuracy: 50.00%"
    assert "V          2     100.00   50.00  66.67" in text
