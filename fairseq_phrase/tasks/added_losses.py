"""Added losses: ``--parse-loss`` and ``--coverage`` to any criterion, and ``--criterion next_sentence``.

The parse loss trains one head of the encoder to point at parents. The model does not change. Queries and
keys are computed by the first head of a layer's self-attention from the layer's input states. The
matrix between them is a parameter of the criterion. So translation needs neither parses nor this module.

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
from dataclasses import dataclass
from typing import Any

from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.logging import metrics
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from fairseq_phrase.errors import UserError
from fairseq_phrase.models.encoder_method import option
from fairseq_phrase.modules.positions.parent_pointer import ParentPointer, Pointed
from fairseq_phrase.modules.recurrent.source_attention import coverage_loss

#: The loss, the sample size, and the logging output.
_Loss = tuple[Any, Any, dict[str, Any]]


@contextmanager
def calls_of(module: nn.Module) -> Iterator[list[tuple[Any, Any]]]:
    """Collect the arguments and results of a module's calls, which criteria do not return."""
    calls: list[tuple[Any, Any]] = []
    handle = module.register_forward_hook(lambda _, inputs, output: calls.append((inputs, output)))
    try:
        yield calls
    finally:
        handle.remove()


class _AddedLoss(FairseqCriterion):
    """A criterion to which another loss is added, with the weight λ."""

    inner_class: type[FairseqCriterion]
    suffix = ""

    def __init__(self, inner: FairseqCriterion, weight: float) -> None:
        super().__init__(inner.task)
        self.inner, self.weight = inner, weight

    @classmethod
    def over(cls, inner: FairseqCriterion, weight: float, *args: int) -> Any:
        """Add the loss to a criterion.

        fairseq calls ``reduce_metrics`` on the class, and compares classes by their names when it
        resumes. With the criterion's own name, training can resume with or without the loss.

        Args:
            weight: λ, by which the loss is multiplied.
            *args: the other arguments of the class.
        """
        kind = type(inner)
        made = type(f"{kind.__name__}{cls.suffix}", (cls,), {"inner_class": kind})
        return made(inner, weight, *args)

    def logging_outputs_can_be_summed(self) -> bool:
        """Return whether logged values of processes may be summed, as for the criterion."""
        return bool(self.inner.logging_outputs_can_be_summed())


def check_layers(model: Any) -> None:
    """Check that training does not drop decoder layers: coverage uses the last layer's attention.

    Raises:
        UserError: the decoder has layer dropout.
    """
    dropped = getattr(getattr(model, "decoder", None), "decoder_layerdrop", 0.0)
    if dropped:
        raise UserError(
            "--coverage needs the attention of the decoder's last layer, and with --decoder-layerdrop "
            f"{dropped} a training step may lack it: leave --decoder-layerdrop or --coverage out"
        )


class CoverageCriterion(_AddedLoss):
    """A criterion with the coverage loss added; :meth:`over` makes it."""

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> _Loss:
        """Compute the criterion's loss, plus λ times the coverage loss summed over target words.

        Raises:
            UserError: the decoder returns no attention weights.
        """
        with calls_of(model.decoder) as calls:
            loss, sample_size, logging_output = self.inner(model, sample, reduce)
        weights = _weights(calls[0][1]) if calls else None
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


def pointing_layer(model: Any, number: int) -> Any:
    """Find the encoder layer whose first head points.

    Args:
        number: the layer, from 1; 0 for the middle layer.

    Raises:
        UserError: the layer does not exist, or its attention cannot point.
    """
    layers = getattr(getattr(model, "encoder", None), "layers", None)
    if layers is None or not len(layers):
        raise UserError("--parse-loss needs an encoder with layers of self-attention")
    if not 0 <= number <= len(layers):
        raise UserError(f"--parse-loss-layer {number}: the encoder has layers 1 to {len(layers)}")
    layer = layers[number - 1 if number else (len(layers) - 1) // 2]
    attention = getattr(layer, "self_attn", None)
    if not all(hasattr(attention, name) for name in ("q_proj", "k_proj", "num_heads")):
        raise UserError(
            f"--parse-loss: {type(layer).__name__} has no self-attention with queries and keys"
        )
    return layer


def head_width(model: Any, number: int) -> int:
    """Return the width of the head that points; for the arguments see :func:`pointing_layer`."""
    attention = pointing_layer(model, number).self_attn
    return int(attention.q_proj.weight.size(0) // attention.num_heads)


class ParseLossCriterion(_AddedLoss):
    """A criterion with the parse loss added; :meth:`over` makes it.

    Args:
        layer: as for :func:`pointing_layer`.
    """

    suffix = "WithParseLoss"

    def __init__(self, inner: FairseqCriterion, weight: float, layer: int, width: int) -> None:
        super().__init__(inner, weight)
        self.layer = layer
        self.pointer = ParentPointer(width)

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> _Loss:
        """Compute the criterion's loss, plus λ times the parse loss averaged over words.

        The average is multiplied by the sample size, because fairseq divides losses by it. R-Drop repeats
        the batch and sums the losses of both copies, but its sample size is the size of one copy.
        """
        trees = sample.get("parse")
        layer = pointing_layer(model, self.layer)
        with calls_of(layer) as calls:
            loss, sample_size, logging_output = self.inner(model, sample, reduce)
        # A layer that was dropped (--encoder-layerdrop) has no input states.
        if trees is not None and calls and reduce:
            states: Tensor = calls[0][0][0]
            entered = states.transpose(0, 1) if getattr(layer, "time_first", True) else states
            copies = len(entered) // len(trees["words"])
            pointed = self._point(layer, entered, trees, copies)
            average = pointed.loss / pointed.words.clamp(min=1)
            loss = loss + self.weight * copies * sample_size * average
            logging_output |= {
                "parse_loss": pointed.loss.data,
                "parse_correct": pointed.correct.data,
                "parse_words": pointed.words.data,
            }
        return loss, sample_size, logging_output

    def _point(self, layer: Any, states: Tensor, trees: dict[str, Tensor], copies: int) -> Pointed:
        if layer.normalize_before:
            states = layer.self_attn_layer_norm(states)
        words, heads = (trees[name].repeat(copies, 1) for name in ("words", "heads"))
        # Tokens come before other nodes.
        states = states[:, : words.size(1)]
        width = len(self.pointer.weight)
        query, key = (
            # The rows of the first head. Shape: (batch, tokens, head width)
            linear(
                states,
                projection.weight[:width],
                None if projection.bias is None else projection.bias[:width],
            )
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj)
        )
        pointed: Pointed = self.pointer(query, key, words, heads)
        return pointed

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """Load the matrix; a checkpoint that was trained without a parse loss lacks it."""
        return super().load_state_dict(state_dict or self.state_dict(), *args, **kwargs)

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Log the criterion's values, the parse loss in bits, and attachment accuracy (``uas``)."""
        cls.inner_class.reduce_metrics(logging_outputs)
        words = sum(float(log.get("parse_words", 0)) for log in logging_outputs)
        if not words:
            return
        loss = sum(float(log.get("parse_loss", 0)) for log in logging_outputs)
        correct = sum(float(log.get("parse_correct", 0)) for log in logging_outputs)
        metrics.log_scalar("parse_loss", loss / words / math.log(2), words, round=3)
        metrics.log_scalar("uas", 100 * correct / words, words, round=2)


@dataclass
class NextSentenceConfig(MaskedLmConfig):
    """Options of the joint loss."""

    next_sentence_weight: float = option(
        1.0, "weight of the loss of a pair; that of the masked tokens has the weight 1"
    )


@register_criterion("next_sentence", dataclass=NextSentenceConfig)
class NextSentenceLoss(MaskedLmLoss):
    """BERT's loss: the mean over masked tokens, and the mean over pairs of segments."""

    def __init__(self, cfg: NextSentenceConfig, task: Any):
        super().__init__(cfg, task)
        self.weight = cfg.next_sentence_weight

    def forward(
        self, model: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Compute the loss, as fairseq's criteria do."""
        with calls_of(model) as calls:
            loss, sample_size, logged = super().forward(model, sample, reduce)
        logits, target = calls[0][1][1]["next_sentence"], sample["next_sentence"]
        pairs = cross_entropy(logits.float(), target, reduction="sum")
        logged |= {
            "next_sentence_loss": pairs.data,
            "next_sentence_correct": (logits.argmax(1) == target).sum(),
        }
        # fairseq divides by the number of masked tokens.
        return loss + self.weight * pairs * sample_size / len(target), sample_size, logged

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
