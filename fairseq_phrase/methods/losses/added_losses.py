"""Added losses: the base class, ``--coverage`` to any criterion, and ``--criterion next_sentence``.

The coverage loss penalizes repeated attention to the same source words (See et al., 2017), for every
decoder that returns its attention weights. It has no parameters, so a training that started without it
can continue with it, as in See et al.

*Decision*: only attention to tokens is covered, without renormalization. If the decoder also attends
to constituents, the weights of tokens sum to less than 1, and repeated attention to a constituent is
not penalized.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.logging import metrics
from fairseq.models.transformer import TransformerDecoderBase
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.model_parts import decoder_of
from fairseq_phrase.methods.recurrent.source_attention import coverage_loss

#: The loss, the sample size, and the logging output.
Loss = tuple[Any, Any, dict[str, Any]]


class Call(NamedTuple):
    """A call of a module: its positional arguments, its other arguments and its result."""

    inputs: tuple[Any, ...]
    options: dict[str, Any]
    output: Any


@contextmanager
def calls_of(module: nn.Module) -> Iterator[list[Call]]:
    """Collect the calls of a module, which criteria do not return."""
    calls: list[Call] = []
    handle = module.register_forward_hook(
        lambda _, *call: calls.append(Call(*call)), with_kwargs=True
    )
    try:
        yield calls
    finally:
        handle.remove()


class AddedLoss(FairseqCriterion):
    """A criterion to which another loss is added, with the weight λ."""

    inner_class: type[FairseqCriterion]
    suffix = ""

    def __init__(self, inner: FairseqCriterion, weight: float) -> None:
        super().__init__(inner.task)
        self.inner, self.weight = inner, weight

    @classmethod
    def over(cls, inner: FairseqCriterion, weight: float, *args: Any) -> Any:
        """Add the loss to a criterion.

        fairseq calls ``reduce_metrics`` on the class, and compares classes by their names when it
        resumes. With the criterion's own name, training can resume with or without the loss.

        Args:
            weight: λ, by which the loss is multiplied.
            *args: the other arguments of the class.
        """
        kind = type(inner)
        criterion_class = type(f"{kind.__name__}{cls.suffix}", (cls,), {"inner_class": kind})
        return criterion_class(inner, weight, *args)

    def logging_outputs_can_be_summed(self) -> bool:
        """Return whether logged values of processes may be summed, as for the criterion."""
        return bool(self.inner.logging_outputs_can_be_summed())


def check_layers(model: Any) -> None:
    """Check that training does not drop decoder layers: coverage uses the last layer's attention.

    Raises:
        UserError: the decoder has layer dropout.
    """
    decoder = decoder_of(model)
    dropped = decoder.decoder_layerdrop if isinstance(decoder, TransformerDecoderBase) else 0.0
    if dropped:
        raise UserError(
            "--coverage needs the attention of the decoder's last layer, and with --decoder-layerdrop "
            f"{dropped} a training step may lack it: leave --decoder-layerdrop or --coverage out"
        )


class CoverageCriterion(AddedLoss):
    """A criterion with the coverage loss added; :meth:`over` makes it."""

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> Loss:
        """Compute the criterion's loss, plus λ times the coverage loss summed over target words.

        Raises:
            UserError: the decoder returns no attention weights.
        """
        with calls_of(model.decoder) as calls:
            loss, sample_size, logging_output = self.inner(model, sample, reduce)
        weights = _weights(calls[0].output) if calls else None
        if weights is None:
            raise UserError(
                f"--coverage needs a decoder with attention, and {type(model.decoder).__name__} returns "
                "no weights: choose another --attention than none, or leave --coverage out"
            )
        if reduce:
            padding = sample["target"].eq(self.padding_idx)
            # R-Drop repeats the batch.
            repeated = coverage_loss(weights, padding.repeat(len(weights) // len(padding), 1))
            loss = loss + self.weight * repeated
            logging_output |= {"coverage_loss": repeated.data}
        return loss, sample_size, logging_output

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Log the criterion's values, and the coverage loss in bits for each target word."""
        cls.inner_class.reduce_metrics(logging_outputs)
        loss = sum(float(log.get("coverage_loss", 0)) for log in logging_outputs)
        words = sum(float(log.get("ntokens", 0)) for log in logging_outputs)
        if words:
            metrics.log_scalar("coverage_loss", loss / words / math.log(2), words, round=3)


def _weights(output: Any) -> Tensor | None:
    """Return the attention weights in a decoder's output, as fairseq's decoders return them."""
    extra = output[1] if isinstance(output, tuple) and len(output) > 1 else None
    weights = extra.get("attn") if isinstance(extra, dict) else extra
    return weights[0] if isinstance(weights, list) else weights


@register_criterion("next_sentence", dataclass=MaskedLmConfig)
class NextSentenceLoss(MaskedLmLoss):
    """BERT's loss: the mean over masked tokens, and the mean over pairs of segments."""

    def forward(
        self, model: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Compute the loss, as fairseq's criteria do."""
        with calls_of(model) as calls:
            loss, sample_size, logged = super().forward(model, sample, reduce)
        logits, target = calls[0].output[1]["next_sentence"], sample["next_sentence"]
        pairs = cross_entropy(logits.float(), target, reduction="sum")
        logged |= {
            "next_sentence_loss": pairs.data,
            "next_sentence_correct": (logits.argmax(1) == target).sum(),
        }
        # fairseq divides by the number of masked tokens.
        return loss + pairs * sample_size / len(target), sample_size, logged

    @staticmethod
    def reduce_metrics(logging_outputs: Any) -> None:
        """Aggregate; ``loss`` and ``ppl`` are of the masked tokens."""
        MaskedLmLoss.reduce_metrics(logging_outputs)
        pairs = sum(log.get("nsentences", 0) for log in logging_outputs)
        if pairs:
            for name, unit in (("loss", 1 / math.log(2)), ("correct", 100.0)):
                total = sum(log.get(f"next_sentence_{name}", 0) for log in logging_outputs)
                label = {"loss": "next_sentence_loss", "correct": "next_sentence_accuracy"}[name]
                metrics.log_scalar(label, float(total) * unit / pairs, pairs, round=3)
