"""Labels of words or of sentences, with the parses of the source: ``--task syntax_labelling``."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairseq import utils
from fairseq.data import LanguagePairDataset, StripTokenDataset
from fairseq.logging import metrics
from fairseq.tasks import register_task
from torch import Tensor

from fairseq_phrase.data.store.dictionaries import warn_of_unknown_labels
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.errors import UserError
from fairseq_phrase.fairseq_types import Dictionary
from fairseq_phrase.methods.encoder_method import option
from fairseq_phrase.methods.losses.added_losses import calls_of
from fairseq_phrase.metrics.labels import SpanMetrics, mark_spans
from fairseq_phrase.tasks.syntax_translation import SyntaxTranslationConfig, SyntaxTranslationTask

logger = logging.getLogger(__name__)


@dataclass
class SyntaxLabellingConfig(SyntaxTranslationConfig):
    """Options of data and parses, as for translation, and of validation."""

    eval_spans: bool = option(
        False,
        "in validation also compute F1 of the spans that BIO labels mark, for "
        "--best-checkpoint-metric f1 --maximize-best-checkpoint-metric; needs seqeval",
    )


@register_task("syntax_labelling", dataclass=SyntaxLabellingConfig)
class SyntaxLabellingTask(SyntaxTranslationTask):
    """The source is text with parses; the target is labels, from data with ``--labels``.

    Attributes:
        labelled: the labelled unit, ``word`` or ``sentence``.
        whole_words: whether every token is a word.
        tokenized: whether white space separates words.
    """

    def __init__(self, cfg: SyntaxLabellingConfig, src_dict: Any, tgt_dict: Any):
        super().__init__(cfg, src_dict, tgt_dict)
        manifests = {
            directory: Manifest.load(directory, cfg.source_lang)
            for directory in utils.split_paths(cfg.data)
        }
        for directory, manifest in manifests.items():
            if not manifest.labelling:
                raise UserError(
                    f"{directory} has a translation and no labels: make data for --task syntax_labelling "
                    "with fairseq-phrase-preprocess --labels word or sentence"
                )
        # The other records are compared with the first.
        self._manifest = next(iter(manifests.values()))
        self.labelled = self._manifest.labelling
        self.whole_words = self._manifest.bpe == "none"
        self.tokenized = self._manifest.tokenized
        if cfg.eval_spans:
            check_spans(self.labelled, tgt_dict)
        if cfg.left_pad_source:
            raise UserError("--left-pad-source: --task syntax_labelling pads on the right")
        if cfg.truncate_source and self.labelled == "word":
            raise UserError(
                "--truncate-source: every word has a label, so no text can be truncated"
            )

    def load_dataset(
        self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any
    ) -> None:
        """Load a split, and warn about labels that the training data lack."""
        super().load_dataset(split, epoch, combine, **kwargs)
        record = self._manifest.splits.get(f"{split}.{self.cfg.source_lang}-{self.cfg.target_lang}")
        if record is not None and record.unknown_labels:
            total = record.words if self.labelled == "word" else record.sentences
            warn_of_unknown_labels(split, record.unknown_labels, total)

    def _pairs(self, pairs: LanguagePairDataset) -> LanguagePairDataset:
        """Remove the end of sentence from the labels, and the input of a decoder."""
        labels = sizes = None
        if pairs.tgt is not None:
            labels = StripTokenDataset(pairs.tgt, self.target_dictionary.eos())
            sizes = pairs.tgt_sizes - 1
        return LanguagePairDataset(
            pairs.src, pairs.src_sizes, pairs.src_dict, labels, sizes, pairs.tgt_dict,
            left_pad_source=False, left_pad_target=False, shuffle=pairs.shuffle,
            input_feeding=False, pad_to_multiple=pairs.pad_to_multiple,
        )  # fmt: skip

    def filter_indices_by_size(
        self,
        indices: Any,
        dataset: Any,
        max_positions: Any = None,
        ignore_invalid_inputs: bool = False,
    ) -> Any:
        """In training, skip texts that are too long for the model; elsewhere they are an error.

        Raises:
            UserError: a text is too long.
        """
        _, long = dataset.filter_indices_by_size(indices, max_positions)
        if len(long) and not ignore_invalid_inputs:
            raise UserError(
                f"{too_long(long, dataset, max_positions, self.labelled)}; "
                "--skip-invalid-size-inputs-valid-test leaves them out"
            )
        return super().filter_indices_by_size(
            indices, dataset, max_positions, ignore_invalid_inputs
        )

    def valid_step(
        self, sample: Any, model: Any, criterion: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Compute the criterion's values of a batch and, with ``--eval-spans``, count its spans."""
        if not self.cfg.eval_spans:
            step: tuple[Any, Any, dict[str, Any]] = super().valid_step(sample, model, criterion)
            return step
        # Scores do not need a second pass.
        with calls_of(model) as calls:
            loss, sample_size, output = super().valid_step(sample, model, criterion)
        counts = span_counts(calls[0].output, sample["target"], self.target_dictionary)
        return loss, sample_size, {**output, **counts}

    def reduce_metrics(self, logging_outputs: Any, criterion: Any) -> None:
        """Log the criterion's values and, if spans were counted, their F1."""
        super().reduce_metrics(logging_outputs, criterion)
        log_f1(logging_outputs)

    def build_generator(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an error: the model does not generate text.

        Raises:
            UserError: in every call.
        """
        raise UserError("labels are predicted by fairseq-phrase-label, not by fairseq-generate")


def too_long(
    indices: Sequence[int], dataset: Any, max_positions: tuple[int, int], labelled: str
) -> str:
    """Describe the texts that are too long, and the exceeded limit: of tokens, or else of labels."""
    long = [index for index in indices if dataset.src_sizes[index] > max_positions[0]]
    if long:
        sizes = dataset.src_sizes
        broken = f"tokens than the model has positions ({max_positions[0]})"
        advice = "--max-source-positions and --max-target-positions"
        if labelled == "sentence":
            advice += "; --truncate-source truncates texts to what fits"
    else:
        long, sizes = list(indices), dataset.tgt_sizes
        broken = f"labels than the model allows ({max_positions[1]})"
        advice = "--max-target-positions"
    longest = max(long, key=sizes.__getitem__)
    return (
        f"{len(long)} texts have more {broken}; the longest, number {longest} (from 0), has "
        f"{sizes[longest]}: train with a larger {advice}"
    )


#: The counts that a batch adds to fairseq's logging output: correct, found and true spans.
COUNTS = ("_spans_correct", "_spans_found", "_spans_true")


def check_spans(labelled: str, labels: Dictionary) -> None:
    """Check that labels mark spans.

    Raises:
        UserError: the labels are of sentences or not in BIO notation, or seqeval is not installed.
    """
    if labelled != "word" or not mark_spans(labels.symbols[labels.nspecial :]):
        raise UserError(
            "--eval-spans: the labels mark no spans; expected B-…, I-… and O, one for each word"
        )
    SpanMetrics([])


def span_counts(logits: Tensor, target: Tensor, labels: Dictionary) -> dict[str, int]:
    """Count the correct, found and true spans of a batch.

    Args:
        logits: shape ``(batch, words, labels)``, with any values at padding.
        target: the labels, padded on the right. Shape: ``(batch, words)``, int64.
        labels: the label dictionary. Its special symbols are never found.
    """
    first = labels.nspecial
    predicted = logits[..., first:].argmax(-1) + first
    counts = target.ne(labels.pad()).sum(1).tolist()
    references = _lines(target, counts, labels)
    sums = SpanMetrics(references).statistics(_lines(predicted, counts, labels))["F1"].sum(0)
    return dict(zip(COUNTS, map(int, sums), strict=True))


def _lines(numbers: Tensor, counts: Sequence[int], labels: Dictionary) -> list[str]:
    rows = zip(numbers.tolist(), counts, strict=True)
    return [" ".join(labels[number] for number in row[:count]) for row, count in rows]


def log_f1(logging_outputs: Sequence[dict[str, Any]]) -> None:
    """Log ``f1``, in percent, of all batches of a validation, if they have counts."""
    if not any(COUNTS[0] in output for output in logging_outputs):
        return
    for name in COUNTS:
        metrics.log_scalar_sum(name, sum(output.get(name, 0) for output in logging_outputs))

    def f1(meters: Any) -> float:
        correct, predicted, true = (meters[name].sum for name in COUNTS)
        return round(200 * float(correct) / max(1.0, float(predicted + true)), 3)

    metrics.log_derived("f1", f1)
