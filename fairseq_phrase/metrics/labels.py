"""Scores of labels: accuracy, accuracy of unknown words, and F1 of spans."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_phrase.errors import UserError
from fairseq_phrase.metrics.interface import Metrics, Statistics, percentages
from fairseq_phrase.optional_packages import optional_packages

UNKNOWN_WORDS = "unknown words"
#: A reference's label that is absent from training, as written in a data directory. No model predicts it.
UNKNOWN_LABEL = "<unk>"
# The labels that seqeval reads: it takes any other one for a span, too.
_MARK = re.compile(r"O|[BIES](-.*)?")


def mark_spans(labels: Collection[str]) -> bool:
    """Return whether labels mark spans: all are ``O``, ``B-…`` or ``I-…``, and some are not ``O``.

    :data:`UNKNOWN_LABEL` does not count.
    """
    marks = {label[:2] for label in labels if label not in ("O", UNKNOWN_LABEL)}
    return bool(marks) and marks <= {"B-", "I-"}


class LabelMetrics(Metrics):
    """Accuracy of labels, in percent: one label for each word, or one for each sentence.

    Args:
        references: the labels of each sentence, separated by white space.
        sources: the sentences' words, one for each label; None if they are not known.
        known_words: the words of the training data. The accuracy of the other words is another metric,
            if there are any.

    Raises:
        UserError: a sentence does not have one label per word, or ``known_words`` lacks ``sources``.
    """

    outputs = "labels"
    counted = "labels"
    tested: Sequence[str] = ("accuracy",)
    sentence_metric = "accuracy"

    def __init__(
        self,
        references: Sequence[str],
        sources: Sequence[str] | None = None,
        known_words: Collection[str] | None = None,
    ):
        self.references = [line.split() for line in references]
        self._sizes = np.array([len(labels) for labels in self.references], dtype=int)
        self._unknown: NDArray[np.bool_] | None = None
        self._notes: list[str] = []
        if known_words is not None:
            if sources is None:
                raise UserError("--known-words needs the words of each test set: --source FILE")
            words = [line.split() for line in sources]
            self._check_sizes(words, "words in the source")
            unknown = np.array([word not in known_words for line in words for word in line], bool)
            self._unknown = unknown if unknown.any() else None
            self._notes = [f"Unknown words: {unknown.sum():,} of {len(unknown):,}."]

    @property
    def names(self) -> list[str]:
        """Accuracy, and the accuracy of unknown words if there are any."""
        return ["accuracy", *([UNKNOWN_WORDS] if self._unknown is not None else [])]

    @property
    def notes(self) -> list[str]:
        """How many words are unknown, if the training words are known."""
        return self._notes

    def split(self, hypotheses: Sequence[str]) -> list[list[str]]:
        """Split lines into labels."""
        labels = [line.split() for line in hypotheses]
        self._check_sizes(labels, "labels")
        return labels

    def _check_sizes(self, lines: Sequence[Sequence[str]], kind: str) -> None:
        for number, (line, size) in enumerate(zip(lines, self._sizes, strict=True), start=1):
            if len(line) != size:
                raise UserError(
                    f"line {number} has {len(line)} {kind}, and its reference has {size} labels"
                )

    def correct_items(self, hypotheses: Sequence[str]) -> NDArray[np.bool_]:
        """Return which labels are correct. Shape: (labels,)."""
        pairs = zip(self.split(hypotheses), self.references, strict=True)
        return np.array(
            [label == right for line in pairs for label, right in zip(*line, strict=True)], bool
        )

    def statistics(self, hypotheses: Sequence[str]) -> dict[str, Statistics]:
        """Count each sentence's correct labels and labels. Shape of each: (sentences, 2)."""
        correct = self.correct_items(hypotheses)
        statistics = {"accuracy": self._per_sentence(correct, np.ones_like(correct))}
        if self._unknown is not None:
            statistics[UNKNOWN_WORDS] = self._per_sentence(correct & self._unknown, self._unknown)
        return statistics

    def _per_sentence(self, *items: NDArray[np.bool_]) -> Statistics:
        """Sum over each sentence's labels; (labels,) each -> (sentences, number of arguments)."""
        sentence = np.repeat(np.arange(len(self._sizes)), self._sizes)
        columns = [
            np.bincount(sentence, weights=values, minlength=len(self._sizes)) for values in items
        ]
        return np.stack(columns, axis=1)


class SpanMetrics(LabelMetrics):
    """F1 of labelled spans in BIO or IOB labels, by seqeval, and accuracy.

    Sentences are scored as conlleval does: a span is correct if its first word, last word and type are.
    A span of the reference that touches :data:`UNKNOWN_LABEL` counts, and every output gets it wrong. The
    label continues the span before it if there is one.

    Raises:
        UserError: seqeval is not installed, or a reference's label does not mark spans.
    """

    tested = ("F1", "accuracy")

    def __init__(
        self,
        references: Sequence[str],
        sources: Sequence[str] | None = None,
        known_words: Collection[str] | None = None,
    ):
        with optional_packages("F1 of spans needs seqeval", "seqeval"):
            from seqeval.metrics.sequence_labeling import get_entities
        super().__init__(references, sources, known_words)
        for number, labels in enumerate(self.references, start=1):
            for label in labels:
                if label != UNKNOWN_LABEL and not _MARK.fullmatch(label):
                    raise UserError(
                        f"line {number} of the reference has the label '{label}', but F1 is of labels "
                        "that mark spans, O, B-TYPE and I-TYPE: use --measure labels"
                    )
        self._entities = get_entities
        self._spans = [self._true_spans(labels) for labels in self.references]

    def _spans_of(self, labels: list[str]) -> set[tuple[Any, ...]]:
        return {tuple(span) for span in self._entities(labels)}

    def _true_spans(self, labels: list[str]) -> set[tuple[Any, ...]]:
        """Find the spans of a reference; those that touch an unknown label have an unknown type."""
        filled: list[str] = []
        for index, label in enumerate(labels):
            before = filled[-1][2:] if filled else ""
            if label == UNKNOWN_LABEL:
                label = f"I-{before}" if before else f"B-{UNKNOWN_LABEL}"
            elif label[:2] == "I-" and before == UNKNOWN_LABEL:
                label = f"I-{UNKNOWN_LABEL}"
            elif label[:2] == "I-" and before and labels[index - 1] == UNKNOWN_LABEL:
                # If its type differs from the type of the span before, it may belong to the unknown
                # label.
                label = label if before == label[2:] else f"B-{UNKNOWN_LABEL}"
            filled.append(label)
        return {
            (UNKNOWN_LABEL if UNKNOWN_LABEL in labels[start : end + 1] else kind, start, end)
            for kind, start, end in self._spans_of(filled)
        }

    @property
    def names(self) -> list[str]:
        """F1 first."""
        return ["F1", *super().names]

    def statistics(self, hypotheses: Sequence[str]) -> dict[str, Statistics]:
        """Count correct, found and true spans of each sentence. Shape: (sentences, 3)."""
        counts = []
        for labels, spans in zip(self.split(hypotheses), self._spans, strict=True):
            predicted = self._spans_of(labels)
            counts.append((len(predicted & spans), len(predicted), len(spans)))
        return {
            "F1": np.array(counts, dtype=np.float64).reshape(-1, 3),
            **super().statistics(hypotheses),
        }

    def scores(self, name: str, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a metric's score of many test sets, in percent."""
        if name == "F1":
            return percentages(np.stack([2 * sums[:, 0], sums[:, 1] + sums[:, 2]], axis=1))
        return super().scores(name, sums)


def label_scores(
    true: Sequence[str], predicted: Sequence[str], labels: Sequence[str]
) -> NDArray[np.float64]:
    """Return precision, recall and F1 of each label, in percent. Shape: (labels, 3)."""
    with optional_packages("scores of single labels need scikit-learn", "scikit-learn"):
        from sklearn.metrics import precision_recall_fscore_support
    scores = precision_recall_fscore_support(true, predicted, labels=labels, zero_division=0.0)
    return 100 * np.stack(scores[:3], axis=1)
