"""``--criterion next_sentence``: fairseq's masked loss and that of pairs of segments."""

import math
from dataclasses import dataclass, field
from typing import Any

from fairseq.criterions import register_criterion
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.logging import metrics
from torch.nn.functional import cross_entropy


@dataclass
class NextSentenceConfig(MaskedLmConfig):
    """Options of the joint loss."""

    next_sentence_weight: float = field(
        default=1.0,
        metadata={
            "help": "weight of the loss of a pair; that of the masked tokens has the weight 1"
        },
    )


class _KeptOutput:
    """A model whose last output can be read again, because fairseq's criterion returns only the loss."""

    def __init__(self, model: Any):
        self._model, self.get_targets = model, model.get_targets
        self.output: Any = None

    def __call__(self, **inputs: Any) -> Any:
        self.output = self._model(**inputs)
        return self.output


@register_criterion("next_sentence", dataclass=NextSentenceConfig)
class NextSentenceLoss(MaskedLmLoss):
    """BERT's loss: the mean over masked tokens, and the mean over pairs of segments.

    Args:
        cfg: the weight.
        task: fairseq's task.
    """

    def __init__(self, cfg: NextSentenceConfig, task: Any):
        super().__init__(cfg, task)
        self.weight = cfg.next_sentence_weight

    def forward(
        self, model: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Compute the loss, as fairseq's criteria do."""
        kept = _KeptOutput(model)
        loss, sample_size, logged = super().forward(kept, sample, reduce)
        logits, target = kept.output[1]["next_sentence"], sample["next_sentence"]
        pairs = cross_entropy(logits.float(), target, reduction="sum")
        logged |= {
            "next_sentence_loss": pairs.data,
            "next_sentence_correct": (logits.argmax(1) == target).sum(),
        }
        # fairseq divides by the number of masked tokens.
        return loss + self.weight * pairs * sample_size / len(target), sample_size, logged

    @staticmethod
    def reduce_metrics(logging_outputs: Any) -> None:
        """Aggregate; ``loss`` and ``ppl`` are those of the masked tokens."""
        MaskedLmLoss.reduce_metrics(logging_outputs)
        pairs = sum(log.get("nsentences", 0) for log in logging_outputs)
        if pairs:
            for name, unit in (("loss", 1 / math.log(2)), ("correct", 100.0)):
                total = sum(log.get(f"next_sentence_{name}", 0) for log in logging_outputs)
                label = {"loss": "next_sentence_loss", "correct": "next_sentence_accuracy"}[name]
                metrics.log_scalar(label, float(total) * unit / pairs, pairs, round=3)
