"""The parse loss: it teaches one head of the encoder to point at parents.

``--parse-loss`` and ``--parse-loss-layer`` of ``--task syntax_translation`` switch it on. The loss is
added to that of any criterion. The model does not change. Queries and keys are those of the first head of
the layer's self-attention, computed from the layer's input states. The matrix between them is a parameter
of the criterion. So translation needs neither parses nor this module.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fairseq.criterions import FairseqCriterion
from fairseq.logging import metrics
from torch import Tensor, nn
from torch.nn.functional import linear

from fairseq_phrase.errors import UserError
from fairseq_phrase.modules.positions.parent_pointer import ParentPointer, Pointed

__all__ = ["ParseLossCriterion", "head_width", "with_parse_loss"]


def pointing_layer(model: Any, number: int) -> Any:
    """Find the encoder layer whose first head points.

    Args:
        model: a translation model.
        number: the layer, from 1; 0 for the middle layer.

    Raises:
        UserError: the encoder has no such layer, or it has no attention that can point.
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
    return attention.q_proj.weight.size(0) // attention.num_heads


def with_parse_loss(
    criterion: FairseqCriterion, weight: float, layer: int, width: int
) -> ParseLossCriterion:
    """Add the parse loss to a criterion.

    Args:
        criterion: any criterion.
        weight: λ, by which the loss is multiplied.
        layer: as for :func:`pointing_layer`.
        width: of the head that points.
    """
    kind = type(criterion)
    # fairseq calls reduce_metrics on the class, and compares classes by their names when it resumes.
    own = type(f"{kind.__name__}WithParseLoss", (ParseLossCriterion,), {"inner_class": kind})
    return own(criterion, weight, layer, width)


class ParseLossCriterion(FairseqCriterion):
    """A criterion with the parse loss added; :func:`with_parse_loss` makes it.

    Args:
        inner: the criterion.
        weight: λ.
        layer: as for :func:`pointing_layer`.
        width: of the head that points.
    """

    inner_class: type[FairseqCriterion]

    def __init__(self, inner: FairseqCriterion, weight: float, layer: int, width: int):
        super().__init__(inner.task)
        self.inner, self.parse_loss, self.layer = inner, weight, layer
        self.pointer = ParentPointer(width)

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple:
        """Compute the criterion's loss, plus λ times the parse loss averaged over words.

        The average is multiplied by the sample size, because fairseq divides losses by it. R-Drop repeats
        the batch and sums the losses of both copies, but its sample size is that of one.
        """
        trees = sample.get("trees")
        layer = pointing_layer(model, self.layer)
        with entering(layer) as states:
            loss, sample_size, logging_output = self.inner(model, sample, reduce)
        # A layer that was dropped (--encoder-layerdrop) has no input states.
        if trees is not None and states and reduce:
            entered = states[0].transpose(0, 1) if getattr(layer, "time_first", True) else states[0]
            copies = len(entered) // len(trees["words"])
            pointed = self._point(layer, entered, trees, copies)
            average = pointed.loss / pointed.words.clamp(min=1)
            loss = loss + self.parse_loss * copies * sample_size * average
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
        return self.pointer(query, key, words, heads)

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """Load the matrix; a checkpoint that was trained without a parse loss has no matrix."""
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

    def logging_outputs_can_be_summed(self) -> bool:  # type: ignore[override]
        """Tell whether logged values of processes may be summed, as for the criterion."""
        return self.inner.logging_outputs_can_be_summed()


@contextmanager
def entering(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the input states of a layer in a list."""
    states: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
    try:
        yield states
    finally:
        handle.remove()
