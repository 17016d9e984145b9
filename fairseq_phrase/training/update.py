"""Which parts of a training's update are faster than fairseq's, and the line of the log about it."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from fairseq.distributed import (
    DistributedTimeoutWrapper,
    LegacyDistributedDataParallel,
    ModuleProxyWrapper,
)
from fairseq.tasks import FairseqTask
from torch.nn.parallel import DistributedDataParallel

from fairseq_phrase.models.encoder_method import option
from fairseq_phrase.training.adam import take_fused_adam
from fairseq_phrase.training.attention import take_fused_attention
from fairseq_phrase.training.cross_entropy import reads_attention, take_loss_by_parts

logger = logging.getLogger(__name__)


@dataclass
class UpdateOptions:
    """The option of updates."""

    fairseq_update: bool = option(
        False,
        "train with fairseq's own update, to the last bit: without fused Adam, with the scores of "
        "all words in memory; the losses are the same, to rounding",
    )


class Training(NamedTuple):
    """What an update is made of, as fairseq's trainer has it.

    Attributes:
        cfg: the task's options.
        model: may be wrapped for several processes.
        criterion: may be wrapped, too.
    """

    cfg: Any
    model: Any
    criterion: Any
    optimizer: Any


#: Changes the objects of a training; returns why a part stays fairseq's own, or None.
Part = Callable[[Training], str | None]
#: The parts, by their names in the log.
PARTS: Mapping[str, Part] = {
    "Adam": lambda training: take_fused_adam(training.optimizer),
    "loss": lambda training: take_loss_by_parts(
        unwrapped(training.model), unwrapped(training.criterion), training.optimizer
    ),
    "attention": lambda training: take_fused_attention(
        unwrapped(training.model),
        reads_weights=reads_attention(unwrapped(training.model), unwrapped(training.criterion)),
        left_pad_target=getattr(training.cfg, "left_pad_target", True),
    ),
}


_WRAPPERS = (
    DistributedTimeoutWrapper, ModuleProxyWrapper, LegacyDistributedDataParallel,
    DistributedDataParallel,
)  # fmt: skip


def unwrapped(module: Any) -> Any:
    """Return a model or a criterion without fairseq's wrappers for several processes."""
    while isinstance(module, _WRAPPERS):
        module = module.module
    return module


class UpdateTask(FairseqTask):
    """A task whose updates are faster than fairseq's, unless ``--fairseq-update`` is given."""

    #: The names of the parts that may be faster, for measurements.
    update_parts: ClassVar[frozenset[str]] = frozenset(PARTS)
    _prepared: Training | None = None

    def train_step(
        self, sample: Any, model: Any, criterion: Any, optimizer: Any, *args: Any, **options: Any
    ) -> Any:
        """Compute the gradients of a batch; the first call prepares the training."""
        training = Training(self.cfg, model, criterion, optimizer)
        if self._prepared is None or any(
            now is not before for now, before in zip(training, self._prepared, strict=True)
        ):
            self._prepared = training
            prepare(training, self.update_parts)
        return super().train_step(sample, model, criterion, optimizer, *args, **options)


def prepare(training: Training, parts: frozenset[str]) -> None:
    """Make the update of a training faster, and log which parts stay fairseq's own."""
    if training.cfg.fairseq_update:
        logger.info("update: fairseq's own (--fairseq-update)")
        return
    reasons = {name: part(training) for name, part in PARTS.items() if name in parts}
    faster = ", ".join(name for name, reason in reasons.items() if reason is None)
    stays = [f"{name} ({reason})" for name, reason in reasons.items() if reason is not None]
    logger.info(
        "update: %s faster than in fairseq, with the same losses to rounding%s; --fairseq-update "
        "gives fairseq's own",
        faster or "nothing",
        f"; as in fairseq: {', '.join(stays)}" if stays else "",
    )
