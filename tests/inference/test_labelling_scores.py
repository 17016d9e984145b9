"""Scores of ``fairseq-phrase-label --scores``."""

from __future__ import annotations

from argparse import Namespace

import pytest

from fairseq_phrase.inference.labelling import (
    LabelledSplit,
    Labeller,
    describe_scores,
    is_bio,
    scores_of_labels,
    scores_of_split,
)
from tests.support.labellers import make_task

TAGS = LabelledSplit(["N V N", "N"], ["N V V", "<unk>"], ["4_5 6 7", "6"])


def test_accuracy_also_of_words_that_training_does_not_have():
    assert scores_of_split(TAGS, {"4_5", "6"}) == {"accuracy": 50.0, "unknown words": 0.0}


def test_known_words_are_those_of_the_training_text_in_all_directories():
    task = make_task("word")
    task.cfg = Namespace(data="first:second", train_subset="train")
    loaded = []
    task.load_dataset = lambda split, epoch, combine: loaded.append(epoch)
    task.dataset = lambda split: FakeData([{"net_input": {"src_tokens": [loaded[-1]]}}])
    labeller = Namespace(task=task, _words=lambda batch, row: map(str, batch["src_tokens"]))
    assert Labeller.known_words(labeller) == {"1", "2"}


class FakeData(list):
    """Sentences, each of which is a batch."""

    def collater(self, sentences):
        return sentences[0]


def test_sentences_have_accuracy_alone():
    split = LabelledSplit(["pos", "neg"], ["pos", "pos"], None)
    assert scores_of_split(split, None) == {"accuracy": 50.0}
    assert not is_bio(split)


def test_spans_are_scored_where_labels_mark_them():
    split = LabelledSplit(["B-NP I-NP O B-VP"], ["B-NP I-NP O B-NP"], ["1 2 3 4"])
    assert is_bio(split)
    assert not is_bio(TAGS)
    assert scores_of_split(split, None) == {"F1": 50.0, "accuracy": 75.0}


def test_labels_that_training_does_not_have_leave_f1():
    split = LabelledSplit(["B-NP O B-NP O"], ["B-NP <unk> B-NP O"], ["1 2 3 4"])
    assert is_bio(split)
    # The span with the unknown label is not found, and the second one is.
    assert scores_of_split(split, None) == {"F1": 50.0, "accuracy": 75.0}


def test_labels_that_are_all_unknown_mark_no_spans():
    assert not is_bio(LabelledSplit(["B-NP"], ["<unk>"], ["1"]))


def test_each_label_has_precision_and_recall():
    rows = {label: numbers for label, *numbers in scores_of_labels(TAGS)}
    assert rows["V"] == [2, 100.0, 50.0, pytest.approx(200 / 3)]
    assert rows["<unk>"] == [1, 0.0, 0.0, 0.0]
    assert scores_of_labels(TAGS)[0][0] == "V"
    text = describe_scores(TAGS, {"6"})
    assert text.splitlines()[0] == "accuracy: 50.00%"
    assert "V          2     100.00   50.00  66.67" in text
