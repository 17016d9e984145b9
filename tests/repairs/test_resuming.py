"""State of schedulers that fairseq's checkpoints lack, against torch's scheduler without a stop."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRSchedule

from fairseq_phrase.repairs import resuming

# Improvements, and plateaus that are longer and shorter than the patience.
LOSSES = [9.0, 8.0, 8.5, 8.6, 7.0, 7.1, 7.2, 7.3, 7.4, 7.5, 7.6, 6.0, 6.5, 6.4, 6.3, 6.2]


def scheduler(cooldown: int) -> ReduceLROnPlateauLRSchedule:
    """The scheduler of a new training."""
    options = SimpleNamespace(
        lr=[1.0], lr_shrink=0.5, lr_threshold=1e-4, lr_patience=2, warmup_updates=0,
        warmup_init_lr=-1, maximize_best_checkpoint_metric=False,
    )  # fmt: skip
    optimizer = FairseqOptimizer(None)
    optimizer._optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = ReduceLROnPlateauLRSchedule(options, optimizer)
    schedule.lr_scheduler.cooldown = cooldown
    return schedule


def rates_without_a_stop(cooldown: int) -> list[float]:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, patience=2, factor=0.5, threshold=1e-4, cooldown=cooldown
    )
    rates = []
    for loss in LOSSES:
        plateau.step(loss)
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


@pytest.mark.parametrize("cooldown", [0, 2])
@pytest.mark.parametrize("stop", range(1, len(LOSSES)))
def test_a_stopped_training_has_the_learning_rates_of_one_without_a_stop(cooldown, stop):
    """A checkpoint is saved before fairseq gives the last validation to the scheduler."""
    expected = rates_without_a_stop(cooldown)
    assert len({*expected}) > 2
    first, rates = scheduler(cooldown), []
    for loss in LOSSES[: stop - 1]:
        rates.append(first.step(None, loss))
    saved = {}
    resuming.save_all_state(
        lambda trainer, name, extra_state: saved.update(extra_state),
        SimpleNamespace(lr_scheduler=first, optimizer=None),
        "checkpoint_last.pt",
        {
            "train_iterator": {"epoch": stop + 1, "iterations_in_epoch": 0},
            "val_loss": LOSSES[stop - 1],
        },
    )
    second = scheduler(cooldown)
    second.load_state_dict(first.state_dict())
    second.optimizer.set_lr(first.optimizer.get_lr())  # of the optimizer's state
    trainer = SimpleNamespace(lr_scheduler=second)
    resuming.continue_plateaus(trainer, saved, saved["continued"]["plateaus"])
    rates.append(second.optimizer.get_lr())
    for loss in LOSSES[stop:]:
        rates.append(second.step(None, loss))
    assert rates == expected
