"""Scores of a split's labels, as ``fairseq-phrase-label --scores`` prints them."""

from __future__ import annotations

from collections.abc import Collection

from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.labelling import LabelledSplit
from fairseq_phrase.metrics.labels import LabelMetrics, SpanMetrics, mark_spans

__all__ = ["describe_scores", "is_bio", "scores_of_labels", "scores_of_split"]


def is_bio(split: LabelledSplit) -> bool:
    """Return whether a split has labels of words that mark spans."""
    labels = {label for line in split.references for label in line.split()}
    return split.words is not None and mark_spans(labels)


def scores_of_split(split: LabelledSplit, known: Collection[str] | None) -> dict[str, float]:
    """Score a split's labels.

    Args:
        split: the labels.
        known: the words of training that are in the dictionary; None if they are not known, or without
            labels of words.

    Returns:
        By metric, in percent: accuracy, that of unknown words, and F1 of spans for BIO labels.

    Raises:
        UserError: seqeval is not installed and the labels mark spans.
    """
    kind = SpanMetrics if is_bio(split) else LabelMetrics
    metrics = kind(split.references, split.words, known)
    sums = metrics.statistics(split.predicted)
    return {name: metrics.score(name, sums[name].sum(0)) for name in metrics.names}


def scores_of_labels(split: LabelledSplit) -> list[tuple[str, int, float, float, float]]:
    """Compute each label's count, precision, recall and F1, in percent, the most frequent first.

    Raises:
        UserError: scikit-learn is not installed.
    """
    try:
        from sklearn.metrics import precision_recall_fscore_support
    except ImportError:
        raise UserError(
            "scores of single labels need scikit-learn: pip install 'fairseq-phrase[label]'"
        ) from None
    right, found = (
        [label for line in lines for label in line.split()]
        for lines in (split.references, split.predicted)
    )
    labels = sorted({*right, *found})
    columns = precision_recall_fscore_support(right, found, labels=labels, zero_division=0)
    precision, recall, f1, count = (column.tolist() for column in columns)
    rows = [
        (label, int(n), 100 * p, 100 * r, 100 * f)
        for label, n, p, r, f in zip(labels, count, precision, recall, f1, strict=True)
    ]
    return sorted(rows, key=lambda row: -row[1])


def describe_scores(split: LabelledSplit, known: Collection[str] | None) -> str:
    """Write a split's scores, and those of each label, as text."""
    scores = scores_of_split(split, known)
    lines = [f"{name}: {score:.2f}%" for name, score in scores.items()]
    rows = scores_of_labels(split)
    width = max(len("label"), *(len(row[0]) for row in rows))
    lines.append(f"{'label':{width}}  count  precision  recall     F1")
    lines += [
        f"{label:{width}}  {count:5}  {precision:9.2f}  {recall:6.2f}  {f1:5.2f}"
        for label, count, precision, recall, f1 in rows
    ]
    return "\n".join(lines)
