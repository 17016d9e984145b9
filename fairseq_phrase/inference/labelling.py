"""Labels of raw text or of a data directory's splits, and their scores (``fairseq-phrase-label``)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import utils
from fairseq.tasks import TASK_REGISTRY
from torch import Tensor

from fairseq_phrase.checkpoints.loading import SavedModel, build_models, read_checkpoint
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.model_files import device_named, models_and_data
from fairseq_phrase.inference.raw_lines import Line, numbered, parallel_lines
from fairseq_phrase.methods.common.parse_batch import to_device
from fairseq_phrase.metrics.labels import LabelMetrics, SpanMetrics, label_scores, mark_spans
from fairseq_phrase.parsers.pipeline import Parse
from fairseq_phrase.repairs.commands import use_idle_cores
from fairseq_phrase.syntax.sentence import EncodedSentence
from fairseq_phrase.tasks.syntax_labelling import SyntaxLabellingTask, too_long

logger = logging.getLogger(__name__)

#: Tokens in a batch with its padding, by the type of the device. On a CPU more are slower
#: (``benchmarks/models.py labelling``), because a batch's states do not fit into a core's cache.
_MAX_TOKENS = {"cpu": 1000, "cuda": 12000}
#: The largest number of lines that are sorted by length.
BUFFER_SIZE = 4096


@dataclass(frozen=True)
class LabelledSplit:
    """The labels of a split, by line, separated by spaces.

    Attributes:
        per: what has a label: ``word`` or ``sentence``.
    """

    predicted: list[str]
    references: list[str]
    per: str = "word"


def load_labeller(
    paths: str,
    data: str,
    *,
    device: str | None = None,
    source_parser: str | None = None,
    max_tokens: int | None = None,
    **identity: Any,
) -> Labeller:
    """Load models that label.

    Args:
        paths: a checkpoint; several, separated by ``:``, are an ensemble.
        max_tokens: tokens in a batch, with padding; by default 1,000 on a CPU and 12,000 on a GPU.
        **identity: ``allow_difference`` and ``strict_identity``, as in fairseq's commands.

    Raises:
        UserError: a checkpoint is missing, damaged, or does not label; or it does not fit the data.
    """
    use_idle_cores()
    device_named(device)  # before models are read
    saved, _, (source, target) = models_and_data(paths, data, read_labeller)
    languages = {"source_lang": source, "target_lang": target}
    models, task = build_models(saved, data, source_parser=source_parser, **languages, **identity)
    return Labeller(models, task, device=device, max_tokens=max_tokens)


def read_labeller(path: Path) -> SavedModel:
    """Read a checkpoint.

    Raises:
        UserError: it is missing or damaged, or the model does not label.
    """
    saved = read_checkpoint(path)
    if saved.name("task") in TASK_REGISTRY and not saved.has_task(SyntaxLabellingTask):
        raise UserError(
            f"{path} was trained by the task {saved.name('task')}: only models of the task "
            "syntax_labelling label"
        )
    return saved


class Labeller:
    """Models that label; :func:`load_labeller` makes it. An ensemble's probabilities are averaged."""

    def __init__(
        self,
        models: Sequence[Any],
        task: SyntaxLabellingTask,
        *,
        device: str | None = None,
        max_tokens: int | None = None,
    ):
        self.device = device_named(device)
        self.models = [model.to(self.device).eval() for model in models]
        self.task = task
        self.max_tokens = max_tokens or _MAX_TOKENS.get(self.device.type, 1000)
        labels = task.target_dictionary
        self._first_label = labels.nspecial
        self._names = labels.symbols[self._first_label :]
        if not self._names:
            raise UserError(f"{task.cfg.data} has no labels")
        if task.tokenized and not task.source_text.needs_trees and task.cfg.source_parser is None:
            # Neither the words nor the trees need a parser.
            task.cfg.source_parser = "none"
        limits = utils.resolve_max_positions(
            task.max_positions(), *[model.max_positions() for model in self.models]
        )
        self._limit: int = limits[0] if isinstance(limits, tuple) else limits
        # Raw texts are truncated where load_dataset truncates a split's texts. Only labels of sentences
        # allow it.
        self._kept_subwords: int | None = task.kept_subwords

    def label(
        self,
        lines: Iterable[str],
        parses: Iterable[Parse] | None = None,
        *,
        buffer_size: int = BUFFER_SIZE,
    ) -> Iterator[str]:
        """Label raw lines, in their order.

        Models of ``--truncate-source`` read the first subwords of a long text, as in a split.

        Args:
            lines: raw text; for labels of words, with white space between words.
            parses: the parse of each line, instead of the parser's
                (:func:`fairseq_phrase.inference.source_parses.find_parses`).
            buffer_size: number of lines that are read, and sorted by length, at a time.

        Yields:
            Each line's labels, separated by spaces, or its label; the empty text for an empty line.

        Raises:
            UserError: a line is too long for the models, or cannot be segmented or parsed; there are more
                or fewer parses than lines.
        """
        chunks = numbered(parallel_lines(lines, parses=parses), buffer_size)
        for labels in self.in_chunks(chunks):
            yield from labels

    def in_chunks(self, chunks: Iterable[tuple[int, list[Line]]]) -> Iterator[list[str]]:
        """Label chunks of lines, as :meth:`label`; a batch has lines of one chunk only.

        Args:
            chunks: lines with the number of the first, of
                :func:`fairseq_phrase.inference.raw_lines.numbered`.

        Yields:
            The labels of each line of a chunk.

        Raises:
            UserError: see :meth:`label`.
        """
        num_truncated = 0
        for first, lines in chunks:
            texts = {number: line for number, line in enumerate(lines, first) if line.text.strip()}
            parses = [line.parse for line in texts.values() if line.parse is not None]
            encode, raw_lines = self.task.source_text.encode, [line.text for line in texts.values()]
            sentences = encode(raw_lines, parses) if texts else []
            for number, sentence in zip(texts, sentences, strict=True):
                # The tokens that the models read, with the end of sentence.
                length = len(sentence.subwords[: self._kept_subwords]) + 1
                self._refuse_long_line(number, length)
                num_truncated += length <= len(sentence.subwords)
            labels = dict(zip(texts, self._labels(sentences), strict=True))
            yield [labels.get(number, "") for number in range(first, first + len(lines))]
        if num_truncated:
            logger.warning(
                "%d texts are truncated to %d subwords, as --truncate-source did in training",
                num_truncated,
                self._kept_subwords,
            )

    def label_split(self, subset: str) -> LabelledSplit:
        """Label a split of the data directory.

        Raises:
            UserError: the split is missing, or one of its texts is too long for the models.
        """
        dataset = self._split(subset)
        count = len(dataset)
        # fairseq makes no batch of a text that has more tokens than a batch may have.
        longest = int(dataset.num_tokens_vec(np.arange(count)).max(initial=0))
        positions, max_tokens = (self._limit, self._limit), max(self.max_tokens, longest)
        batches = self.task.get_batch_iterator(dataset, max_tokens, max_positions=positions)
        predicted, references = [""] * count, [""] * count
        for sample in batches.next_epoch_itr(shuffle=False):
            net_input, targets = sample["net_input"], sample["target"].tolist()
            rows = zip(sample["id"].tolist(), self._predict(net_input), targets, strict=True)
            for index, numbers, target in rows:
                predicted[index] = self._text(numbers)
                labels = map(self.task.target_dictionary.__getitem__, target[: len(numbers)])
                references[index] = " ".join(labels)
        return LabelledSplit(predicted, references, self.task.labelled)

    def _split(self, subset: str) -> Any:
        """Load a split; refuse it if it is missing or a text is too long."""
        try:
            self.task.load_dataset(subset)
        except FileNotFoundError as error:
            raise UserError(str(error)) from None
        dataset = self.task.dataset(subset)
        positions = (self._limit, self._limit)
        _, long = dataset.filter_indices_by_size(np.arange(len(dataset)), positions)
        if len(long):
            raise UserError(too_long(long, dataset, positions, self.task.labelled))
        return dataset

    def _refuse_long_line(self, number: int, length: int) -> None:
        if length > self._limit:
            remedy = "" if self.task.labelled == "word" else ", or with truncate_source"
            raise UserError(
                f"line {number} has {length} tokens, and the model has {self._limit} positions: shorten "
                f"the line, or train with larger max_source_positions and max_target_positions{remedy}"
            )

    def _labels(self, sentences: Sequence[EncodedSentence]) -> list[str]:
        """Label sentences, in batches of similar length."""
        labels = [""] * len(sentences)
        source = self.task.source_text
        for batch, sample in source.batches(sentences, self.max_tokens, limit=self._kept_subwords):
            for index, numbers in zip(batch, self._predict(sample["net_input"]), strict=True):
                labels[index] = self._text(numbers)
        return labels

    @torch.inference_mode()
    def _predict(self, net_input: dict[str, Tensor]) -> list[list[int]]:
        """Return the numbers of each sentence's labels, counted from the first label."""
        inputs = to_device(net_input, self.device)
        if len(self.models) == 1:
            scores = self.models[0](**inputs)
        else:
            scores = sum(model(**inputs).float().softmax(-1) for model in self.models)
        # Special symbols are not labels. Shape: (batch, labels of a sentence)
        best: list[Any] = scores[..., self._first_label :].argmax(-1).tolist()
        if self.task.labelled == "sentence":
            return best
        if self.task.whole_words:
            counts = (net_input["src_lengths"] - 1).tolist()
        else:
            counts = (net_input["src_words"].amax(1) + 1).tolist()
        return [row[:count] for row, count in zip(best, counts, strict=True)]

    def _text(self, numbers: Sequence[int]) -> str:
        return " ".join(self._names[number] for number in numbers)


def is_bio(split: LabelledSplit) -> bool:
    """Return whether a split has labels of words that mark spans."""
    return split.per == "word" and mark_spans({*" ".join(split.references).split()})


def scores_of_split(split: LabelledSplit) -> dict[str, float]:
    """Score a split's labels.

    Returns:
        By metric, in percent: accuracy, and F1 of spans for BIO labels.

    Raises:
        UserError: seqeval is not installed and the labels mark spans.
    """
    kind = SpanMetrics if is_bio(split) else LabelMetrics
    metrics = kind(split.references)
    return metrics.scores_of(metrics.statistics(split.predicted))


def scores_of_labels(split: LabelledSplit) -> list[tuple[str, int, float, float, float]]:
    """Compute each label's count, precision, recall and F1, in percent, the most frequent first.

    Raises:
        UserError: scikit-learn is not installed.
    """
    right, predicted = (" ".join(lines).split() for lines in (split.references, split.predicted))
    counts = Counter(right)
    labels = sorted({*right, *predicted}, key=lambda label: (-counts[label], label))
    scores = label_scores(right, predicted, labels).tolist()
    return [(label, counts[label], *row) for label, row in zip(labels, scores, strict=True)]


def describe_scores(split: LabelledSplit) -> str:
    """Write the scores of a split and of each label as text."""
    scores = scores_of_split(split)
    lines = [f"{name}: {score:.2f}%" for name, score in scores.items()]
    rows = scores_of_labels(split)
    width = max(len("label"), *(len(row[0]) for row in rows))
    lines.append(f"{'label':{width}}  count  precision  recall     F1")
    lines += [
        f"{label:{width}}  {count:5}  {precision:9.2f}  {recall:6.2f}  {f1:5.2f}"
        for label, count, precision, recall, f1 in rows
    ]
    return "\n".join(lines)
