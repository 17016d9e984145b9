"""Resumed trainings: the order of batches, and state that fairseq 0.12.3 does not save.

fairseq forgets the number of validations without improvement (``--patience``, and the bad epochs of
``reduce_lr_on_plateau``); the last validation of a finished epoch, which it gives to the scheduler
only after saving; and the loss scaler's history in half precision. It loses or repeats batches of an
epoch if the number of processes changes. Without an optimizer's state it starts at update 0 without a
message, and without the file of ``--restore-file`` with new parameters. A process that is killed while
it copies a checkpoint leaves a part of ``checkpoint_last.pt``.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.file_io import PathManager
from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRSchedule
from fairseq.trainer import Trainer

from fairseq_phrase.errors import UserError

logger = logging.getLogger(__name__)
_NAME = "continued"
#: The key of the number of processes in an iterator's state.
_SHARDS = "num_shards"
#: Attributes of torch's scheduler. fairseq saves only the best value.
_OF_PLATEAU = ("num_bad_epochs", "cooldown_counter")


def resume_the_same_training(
    original: Callable[..., Any], self: Trainer, epoch: int, combine: bool = True,
    load_dataset: bool = True, **options: Any,
) -> Any:  # fmt: skip
    """Give a resumed training the same batches in the same order as without a stop.

    Symptom: resumed in its second epoch or later, a training gets other batches (the iterator that
    epochs share: fairseq's issue 1156). fairseq makes batches for the epoch in which a training starts
    or is resumed. Most tasks keep them for all later epochs, together with the data loader, its workers
    and whether it shuffles (``--curriculum``). Without an interruption, all these come from the first
    epoch. When a training is resumed in a later epoch, the objects that a task keeps are therefore made
    for the first epoch, too. Objects made for each epoch (``--update-epoch-batch-itr``, several data
    directories) are unchanged.
    """
    # Only the first call of a training loads data that are not split into several directories.
    if epoch == 1 or not load_dataset or options.get("disable_iterator_cache"):
        return original(self, epoch, combine, load_dataset, **options)
    iterator = original(self, 1, combine, **options)
    is_kept = any(
        iterator is epoch_iterator for epoch_iterator in self.task.dataset_to_epoch_iter.values()
    )
    if not is_kept or not isinstance(iterator, EpochBatchIterator):
        return original(self, epoch, combine, load_dataset=False, **options)
    if iterator.reuse_dataloader:
        iterator._get_iterator_for_epoch(
            1,
            shuffle=self.cfg.dataset.curriculum < 1,
            fix_batches_to_gpus=self.cfg.distributed_training.fix_batches_to_gpus,
        )
        if iterator.dataloader.persistent_workers:
            iter(iterator.dataloader)  # its workers keep the epoch in which they start
    if callable(iterator.batch_sampler):  # makes batches for each epoch
        iterator._frozen_batches = None
    iterator.epoch = epoch
    iterator.dataset.set_epoch(epoch)
    return iterator


def record_processes(state: dict[str, Any]) -> None:
    """Add to the position of a checkpoint's iterator the number of processes that shared the batches."""
    iterator = (state.get("extra_state") or {}).get("train_iterator")
    cfg = state.get("cfg")
    if iterator is not None and cfg is not None and {"common", "distributed_training"} <= {*cfg}:
        processes = cfg.distributed_training.distributed_world_size
        iterator[_SHARDS] = max(1, processes // (cfg.common.model_parallel_size or 1))


def continue_among_shards(self: Trainer, position: dict[str, Any]) -> None:
    """Continue an epoch with another number of processes than before.

    fairseq stores how many batches each process has read, and lets each new process skip as many: with
    more processes than before, batches are lost, and with fewer, they are repeated. If the new processes
    do not divide the batches that were read, the rest is repeated.

    Args:
        position: the checkpoint's state of the iterator; changed.
    """
    before = position.pop(_SHARDS, None)
    if before is not None:
        read = position.get("iterations_in_epoch", 0) * before
        position["iterations_in_epoch"] = read // self.data_parallel_world_size


def copy_whole(original: Callable[..., Any], source: str, target: str, **options: Any) -> Any:
    """Copy a checkpoint under another name, and rename the copy when it is complete.

    Symptom: a kill leaves a part of ``checkpoint_last.pt`` (fairseq's issue 2684). fairseq writes a
    checkpoint so, but copies it over ``checkpoint_last.pt`` and ``checkpoint_best.pt``.
    """
    if not PathManager.supports_rename(target):
        return original(source, target, **options)
    partial = f"{target}.tmp"
    try:
        copied = original(source, partial, **options)
        PathManager.rename(partial, target)
    except OSError:  # a full disk
        if os.path.lexists(partial):
            os.remove(partial)
        raise
    return copied


def _scaler_of(trainer: Trainer) -> Any:
    """Return what scales the losses of half precision; None if nothing does."""
    return getattr(trainer.optimizer, "scaler", None)


def save_all_state(save: Any, self: Trainer, filename: str, extra_state: dict[str, Any]) -> Any:
    """Add to a checkpoint the state that fairseq leaves out.

    Symptom: a resumed training counts from 0 again, for ``--patience`` (fairseq's issue 3531),
    ``reduce_lr_on_plateau``, the loss scale and ``--ema-update-freq``.
    """
    state: dict[str, Any] = {"plateaus": [], "patience": {}}
    for counting in _early_stops():
        state["patience"] |= vars(counting)
    for plateau in _plateaus(self.lr_scheduler):
        counts = {name: vars(plateau.lr_scheduler)[name] for name in _OF_PLATEAU}
        state["plateaus"].append(counts)
    scaler = _scaler_of(self)
    if scaler is not None:
        has_state = hasattr(scaler, "state_dict")  # torch's of --amp, not fairseq's of --fp16
        state["loss_scaler"] = scaler.state_dict() if has_state else dict(vars(scaler))
    return save(self, filename, {**extra_state, _NAME: state})


def continue_all_state(
    load: Any, self: Trainer, filename: str, reset_optimizer: bool = False,
    reset_lr_scheduler: bool = False, optimizer_overrides: Any = None, reset_meters: bool = False,
) -> Any:  # fmt: skip
    """Restore the state that :func:`save_all_state` saved, and refuse what is not that training's.

    Symptom: see :func:`save_all_state` and :func:`continue_among_shards`; ``--restore-file`` of a missing
    file begins with new parameters; ``--store-ema`` over a checkpoint without an average is a KeyError.

    Raises:
        UserError: the checkpoint has no optimizer state, or is not there although it was named.
    """
    # From another training in this process.
    vars(checkpoint_utils.save_checkpoint).pop("best", None)
    for counting in _early_stops():
        vars(counting).clear()

    extra_state = _with_average(
        lambda: load(
            self, filename, reset_optimizer, reset_lr_scheduler, optimizer_overrides,
            reset_meters=reset_meters,
        ),
        self,
        filename,
    )  # fmt: skip
    if extra_state is None:
        _check_is_last(self, filename)
        return None
    if not reset_optimizer:
        _continue_counts(self, filename, extra_state, reset_lr_scheduler, reset_meters)
    continue_among_shards(self, extra_state["train_iterator"])
    return extra_state


def _continue_counts(
    self: Trainer,
    filename: str,
    extra_state: dict[str, Any],
    reset_lr_scheduler: bool,
    reset_meters: bool,
) -> None:
    """Restore the counts of the loss scaler, the schedulers and the validations."""
    trained = self._optim_history[-1]["num_updates"] if self._optim_history else 0
    if self.get_num_updates() < trained:
        raise UserError(
            f"{filename} has no optimizer's state (--no-save-optimizer-state), so its training cannot be "
            "resumed: begin a new one in another --save-dir, or give --reset-optimizer to fine-tune its "
            "parameters from update 0"
        )
    state = extra_state.get(_NAME, {})
    scaler = _scaler_of(self)
    if scaler is not None and "loss_scaler" in state:
        getattr(scaler, "load_state_dict", vars(scaler).update)(state["loss_scaler"])
    if self.cfg.ema.store_ema:
        self.ema.update_freq_counter = trained % self.cfg.ema.ema_update_freq
    if not reset_lr_scheduler:
        continue_plateaus(self, extra_state, state.get("plateaus", ()))
    if not reset_meters:
        _continue_patience(self, filename, state)
    if self.cfg.optimization.use_bmuf:
        logger.warning("%s has no block momentum: that of --use-bmuf begins at 0", filename)


def _check_is_last(self: Trainer, filename: str) -> None:
    """Check that a missing checkpoint is that of this training, which begins then."""
    last = Path(self.cfg.checkpoint.save_dir) / f"checkpoint_last{self.checkpoint_suffix}.pt"
    if Path(filename).resolve() != last.resolve():
        raise UserError(
            f"{filename} is not there: name a checkpoint that is (--restore-file), or leave the option "
            "out to begin with new parameters"
        )


def _with_average(load: Callable[[], Any], self: Trainer, filename: str) -> Any:
    """Load a checkpoint; ``--store-ema`` starts from its parameters if it has no average.

    fairseq intends this, but deletes the parameters before.
    """
    try:
        return load()
    except KeyError as error:
        if not self.cfg.ema.store_ema or error.args != ("model",):
            raise
    self.cfg.ema.store_ema = False
    extra_state = load()
    self.cfg.ema.store_ema = True
    self.ema.restore(self.model.state_dict(), build_fp32_params=self.cfg.ema.ema_fp32)
    logger.warning("%s has no average of parameters: that of --store-ema begins here", filename)
    return extra_state


def continue_plateaus(
    self: Trainer, extra_state: dict[str, Any], counts: list[dict[str, int]]
) -> None:
    """Give the plateaus of learning rates the counts of a checkpoint, and its last validation."""
    plateaus = list(_plateaus(self.lr_scheduler))
    for plateau, counters in zip(plateaus, counts, strict=False):
        vars(plateau.lr_scheduler).update(counters)
    iterator, validation = extra_state["train_iterator"], extra_state.get("val_loss")
    if validation is not None and iterator.get("iterations_in_epoch") == 0:
        for plateau in plateaus:
            plateau.step(iterator["epoch"] - 1, validation)


def _continue_patience(self: Trainer, filename: str, state: dict[str, Any]) -> None:
    patience = self.cfg.checkpoint.patience
    if patience > 0 and "patience" not in state:
        logger.warning("%s does not record its validations: --patience counts from here", filename)
    for counting in _early_stops():
        vars(counting).update(state.get("patience", {}))
    if 0 < patience <= state.get("patience", {}).get("num_runs", 0):
        logger.info("the training has ended: no improvement in the last %d validations", patience)
        self.cfg.optimization.max_epoch = -1


def _early_stops() -> Iterator[Callable[..., bool]]:
    """Yield the functions whose attributes count validations without improvement.

    ``fairseq-train`` is an imported module or the main program.
    """
    for name in ("fairseq_cli.train", "__main__"):
        function = getattr(sys.modules.get(name), "should_stop_early", None)
        if function is not None:
            yield function


def _plateaus(scheduler: Any) -> Iterator[ReduceLROnPlateauLRSchedule]:
    """Yield the schedulers that read validations; one scheduler may consist of several."""
    for schedule in getattr(scheduler, "lr_schedulers", {"": scheduler}).values():
        if isinstance(schedule, ReduceLROnPlateauLRSchedule):
            yield schedule
