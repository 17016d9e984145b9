"""Tasks whose updates cost less than fairseq's, with the same losses to rounding."""

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from fairseq.tasks import FairseqTask

from fairseq_phrase.methods.encoder_method import option
from fairseq_phrase.tasks.adam import few_launches
from fairseq_phrase.tasks.cross_entropy import by_parts

logger = logging.getLogger(__name__)


@dataclass
class UpdateOptions:
    """The option of updates."""

    fairseq_update: bool = option(
        False,
        "train with fairseq's own update, to the last bit: without fused Adam, with the scores of "
        "all words in memory; the losses are the same, to rounding",
    )


class UpdateTask(FairseqTask):
    """A task whose updates are faster than fairseq's, unless ``--fairseq-update`` is given.

    Attributes:
        loss_scale: by which the loss is multiplied before the backward pass, in half precision.
    """

    loss_scale: float = 1.0

    def build_criterion(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build a criterion that computes its loss by parts, if it can."""
        is_fairseqs = self.cfg.fairseq_update
        logger.info(
            "update: %s",
            "fairseq's own (--fairseq-update)"
            if is_fairseqs
            else "faster than fairseq's where it can be (Adam, cross entropy), with the same losses to "
            "rounding; --fairseq-update gives fairseq's own",
        )
        with nullcontext() if is_fairseqs else by_parts():
            return super().build_criterion(cfg, from_checkpoint)

    def optimizer_classes(self) -> AbstractContextManager[None]:
        """Return a block in which fairseq builds the classes of this task's optimizers."""
        return nullcontext() if self.cfg.fairseq_update else few_launches()

    def train_step(
        self, sample: Any, model: Any, criterion: Any, optimizer: Any, *args: Any, **options: Any
    ) -> Any:
        """Compute the gradients of a batch; the criterion reads the scale of the loss."""
        wrapped = getattr(optimizer, "_optimizer", optimizer)  # by --use-bmuf
        scaler = getattr(wrapped, "scaler", None)
        self.loss_scale = float(getattr(scaler, "loss_scale", 1.0))
        return super().train_step(sample, model, criterion, optimizer, *args, **options)
