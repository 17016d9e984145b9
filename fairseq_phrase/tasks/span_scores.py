"""F1 of labelled spans while a tagger is validated: ``--eval-spans``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fairseq.data import Dictionary
from fairseq.logging import metrics
from torch import Tensor, nn

from fairseq_phrase.errors import UserError
from fairseq_phrase.metrics.labels import SpanMetrics, mark_spans

__all__ = ["check_spans", "log_f1", "logits_of", "span_counts"]

#: What a batch adds to fairseq's logging output: correct, found and true spans.
COUNTS = ("_spans_correct", "_spans_found", "_spans_true")


def check_spans(labelled: str, labels: Dictionary) -> None:
    """Refuse labels that mark no spans.

    Raises:
        UserError: they are labels of sentences, or not in BIO notation; or seqeval is not installed.
    """
    if labelled != "word" or not mark_spans(labels.symbols[labels.nspecial :]):
        raise UserError(
            "--eval-spans: the labels mark no spans; expected B-…, I-… and O, one for each word"
        )
    SpanMetrics([])


@contextmanager
def logits_of(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect what a model returns to a criterion, so that scores need no second pass."""
    returned: list[Tensor] = []
    handle = model.register_forward_hook(lambda module, inputs, output: returned.append(output))
    try:
        yield returned
    finally:
        handle.remove()


def span_counts(logits: Tensor, target: Tensor, labels: Dictionary) -> dict[str, int]:
    """Count the correct, found and true spans of a batch.

    Args:
        logits: shape ``(batch, words, labels)``, with any values at padding.
        target: the labels, padded on the right. Shape: ``(batch, words)``, int64.
        labels: the label dictionary. Its special symbols are never found.
    """
    first = labels.nspecial
    found = logits[..., first:].argmax(-1) + first
    counts = target.ne(labels.pad()).sum(1).tolist()
    references = _lines(target, counts, labels)
    sums = SpanMetrics(references).statistics(_lines(found, counts, labels))["F1"].sum(0)
    return dict(zip(COUNTS, map(int, sums), strict=True))


def _lines(numbers: Tensor, counts: Sequence[int], labels: Dictionary) -> list[str]:
    rows = zip(numbers.tolist(), counts, strict=True)
    return [" ".join(labels[number] for number in row[:count]) for row, count in rows]


def log_f1(logging_outputs: Sequence[dict[str, Any]]) -> None:
    """Log ``f1``, in percent, of all batches of a validation; nothing if they have no counts."""
    if not any(COUNTS[0] in output for output in logging_outputs):
        return
    for name in COUNTS:
        metrics.log_scalar_sum(name, sum(output.get(name, 0) for output in logging_outputs))

    def f1(meters: Any) -> float:
        correct, found, true = (meters[name].sum for name in COUNTS)
        return round(200 * float(correct) / max(1.0, float(found + true)), 3)

    metrics.log_derived("f1", f1)
