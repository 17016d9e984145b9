"""Spans that are counted while a tagger is validated."""

from __future__ import annotations

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.logging import metrics
from torch.nn.functional import one_hot, pad

from fairseq_phrase.errors import UserError
from fairseq_phrase.metrics.labels import SpanMetrics
from fairseq_phrase.tasks.syntax_labelling import (
    SyntaxLabellingTask,
    check_spans,
    log_f1,
    span_counts,
)

NAMES = ("O", "B-NP", "I-NP", "B-VP", "I-VP")


def dictionary(names=NAMES) -> Dictionary:
    labels = Dictionary()
    for name in names:
        labels.add_symbol(name)
    return labels


def test_a_padded_batch_has_the_spans_of_its_sentences():
    labels, rng = dictionary(), torch.Generator().manual_seed(1)
    lengths = [1, 7, 4, 9]
    right, predicted = (
        [torch.randint(0, 5, (length,), generator=rng) + labels.nspecial for length in lengths]
        for _ in range(2)
    )
    target = torch.stack([pad(row, (0, 9 - len(row)), value=labels.pad()) for row in right])
    # At padding, the logits say B-VP; they are wider than the target, too.
    rows = [pad(row, (0, 12 - len(row)), value=labels.index("B-VP")) for row in predicted]
    logits = one_hot(torch.stack(rows), len(labels)).float()
    logits[..., : labels.nspecial] = 9.0  # special symbols are no labels
    texts = [[" ".join(labels[i] for i in row) for row in lines] for lines in (right, predicted)]
    sums = SpanMetrics(texts[0]).statistics(texts[1])["F1"].sum(0)
    assert sums[0] > 0
    assert list(span_counts(logits, target, labels).values()) == sums.tolist()


def test_f1_is_that_of_all_batches_together():
    batches = [
        {"_spans_correct": 1, "_spans_found": 2, "_spans_true": 4},
        {"_spans_correct": 3, "_spans_found": 3, "_spans_true": 3},
    ]
    with metrics.aggregate() as logged:
        for batch in batches:
            log_f1([batch])
        values = logged.get_smoothed_values()
    assert values["f1"] == pytest.approx(200 * 4 / 12, abs=1e-3)
    with metrics.aggregate() as logged:
        log_f1([{"loss": 1.0}])
    assert "f1" not in logged.get_smoothed_values()


@pytest.mark.parametrize(("labelled", "names"), [("sentence", NAMES), ("word", ("NN", "B-NP"))])
def test_labels_that_mark_no_spans_are_refused(labelled, names):
    check_spans("word", dictionary())
    with pytest.raises(UserError, match="--eval-spans: the labels mark no spans"):
        check_spans(labelled, dictionary(names))


def test_a_labeller_does_not_generate():
    with pytest.raises(UserError, match="predicted by fairseq-phrase-label, not by fairseq-gen"):
        SyntaxLabellingTask.build_generator(None)
