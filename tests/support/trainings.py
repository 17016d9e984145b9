"""Trainings by fairseq's trainer in this process, whose losses are not rounded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from fairseq import options
from fairseq.data.iterators import GroupedIterator
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.tasks import setup_task
from fairseq.trainer import Trainer

SIZES = {"layers": 1, "embed-dim": 16, "ffn-embed-dim": 32, "attention-heads": 2}
FLAGS = [
    "--task", "syntax_translation", "--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", "0.002",
    "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "20", "--dropout", "0", "--max-tokens", "150",
    "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", "--clip-norm", "1",
    "--train-subset", "valid", "--num-workers", "0", "--cpu", "--seed", "1", "--no-progress-bar",
]  # fmt: skip


def size_flags(**sizes: int) -> list[str]:
    """Sizes of small models; by default :data:`SIZES`."""
    return [
        f"--{side}-{name}={value}"
        for side in ("encoder", "decoder")
        for name, value in (sizes or SIZES).items()
    ]


class Training:
    """A training whose updates are taken on demand, on the same few batches in turn.

    Args:
        data: a data directory, of whose validation set the batches are.
        flags: of fairseq-train, in addition to :data:`FLAGS`.
        batches: their number.

    Attributes:
        losses: the loss of each update for each target word, not rounded.
    """

    def __init__(self, data: Path, *flags: object, batches: int = 4, samples: int = 1) -> None:
        parser = options.get_training_parser()
        arguments = [str(data), *FLAGS, *map(str, flags)]
        self.cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, arguments))
        torch.manual_seed(1)
        self.task = setup_task(self.cfg.task)
        self.model = self.task.build_model(self.cfg.model)
        self.criterion = self.task.build_criterion(self.cfg.criterion)
        self.trainer = Trainer(self.cfg, self.task, self.model, self.criterion)
        iterator = self.trainer.get_train_iterator(epoch=1).next_epoch_itr(shuffle=False)
        self.batches = list(islice(GroupedIterator(iterator, samples), batches))
        self.losses: list[float] = []

    def update(self, updates: int) -> Training:
        """Take updates, from the next batch on."""
        step, collected = self.task.train_step, []

        def watched(*args: Any, **options: Any) -> Any:
            loss, sample_size, logged = step(*args, **options)
            collected.append((loss.double().item(), float(sample_size)))
            return loss, sample_size, logged

        self.task.train_step = watched
        first = self.trainer.get_num_updates()
        for batch in islice(cycle(self.batches), first, first + updates):
            collected.clear()
            with metrics.aggregate("train_inner"):
                self.trainer.train_step(batch)
            loss, size = map(sum, zip(*collected, strict=True))
            self.losses.append(loss / size)
        del self.task.train_step
        return self

    def save(self, path: Path) -> Path:
        """Write a checkpoint."""
        self.trainer.consolidate_optimizer()
        self.trainer.save_checkpoint(str(path), {"train_iterator": {"epoch": 1}})
        return path

    def load(self, path: Path) -> Training:
        """Continue a checkpoint's training."""
        self.trainer.load_checkpoint(str(path))
        return self


def losses_of(data: Path, flags: Sequence[object], updates: int, **options: Any) -> list[float]:
    """The losses of a new training."""
    return Training(data, *flags, **options).update(updates).losses
