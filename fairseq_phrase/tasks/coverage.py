"""The coverage loss: attending again to the same source words costs something.

``--coverage`` of ``--task syntax_translation`` switches it on (See et al., 2017). The loss is added to
that of any criterion, for every decoder that returns its attention weights. It has no parameters, so a
training can go on with it that began without it, as See et al. train.

*Decision*: only attention to tokens is covered, with the weights as they are. Where the decoder attends
to constituents, too, the weights of tokens sum to less than 1, and attending twice to a constituent costs
nothing.
"""

from __future__ import annotations

import math
from typing import Any

from fairseq.criterions import FairseqCriterion
from fairseq.logging import metrics
from torch import Tensor

from fairseq_phrase.errors import UserError
from fairseq_phrase.modules.recurrent_attention.coverage import coverage_loss

__all__ = ["CoverageCriterion", "check_layers", "with_coverage"]


def check_layers(model: Any) -> None:
    """Check that training does not drop layers of the decoder: the last one's attention is covered.

    Args:
        model: a translation model. Decoders without ``decoder_layerdrop`` drop no layers.

    Raises:
        UserError: it does.
    """
    dropped = getattr(getattr(model, "decoder", None), "decoder_layerdrop", 0.0)
    if dropped:
        raise UserError(
            "--coverage needs the attention of the decoder's last layer, and with --decoder-layerdrop "
            f"{dropped} a training step may lack it: leave --decoder-layerdrop or --coverage out"
        )


def with_coverage(criterion: FairseqCriterion, weight: float) -> CoverageCriterion:
    """Add the coverage loss to a criterion.

    Args:
        criterion: any criterion.
        weight: λ, by which the loss is multiplied.
    """
    kind = type(criterion)
    # fairseq calls reduce_metrics on the class, and compares classes by their names when it resumes. The
    # name is the criterion's own, so that a training can go on with coverage, or without it.
    own = type(kind.__name__, (CoverageCriterion,), {"inner_class": kind})
    return own(criterion, weight)


class CoverageCriterion(FairseqCriterion):
    """A criterion with the coverage loss added; :func:`with_coverage` makes it.

    Args:
        inner: the criterion.
        weight: λ.
    """

    inner_class: type[FairseqCriterion]

    def __init__(self, inner: FairseqCriterion, weight: float):
        super().__init__(inner.task)
        self.inner, self.weight = inner, weight

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple:
        """Compute the criterion's loss, plus λ times the coverage loss summed over target words.

        Raises:
            UserError: the decoder returns no attention weights.
        """
        seen: list[Tensor | None] = []
        handle = model.decoder.register_forward_hook(
            lambda module, inputs, output: seen.append(_weights(output))
        )
        try:
            loss, sample_size, logging_output = self.inner(model, sample, reduce)
        finally:
            handle.remove()
        if not seen or seen[0] is None:
            raise UserError(
                f"--coverage needs a decoder with attention, and {type(model.decoder).__name__} returns "
                "no weights: choose another --attention than none, or leave --coverage out"
            )
        if reduce:
            padding = sample["target"].eq(self.padding_idx)
            # R-Drop repeats the batch.
            repeated = coverage_loss(seen[0], padding.repeat(len(seen[0]) // len(padding), 1))
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

    def logging_outputs_can_be_summed(self) -> bool:  # type: ignore[override]
        """Tell whether logged values of processes may be summed, as for the criterion."""
        return self.inner.logging_outputs_can_be_summed()


def _weights(output: Any) -> Tensor | None:
    """Return the attention weights in a decoder's output, as fairseq's decoders return them."""
    extra = output[1] if isinstance(output, tuple) and len(output) > 1 else None
    weights = extra.get("attn") if isinstance(extra, dict) else extra
    return weights[0] if isinstance(weights, list) else weights
