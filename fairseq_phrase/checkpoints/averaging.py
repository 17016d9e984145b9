"""Average the parameters of several checkpoints of one training."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fairseq_phrase.checkpoints.identity import identity_of
from fairseq_phrase.checkpoints.loading import register_all
from fairseq_phrase.checkpoints.trust import load_checkpoint
from fairseq_phrase.data.store.identity import Tolerance, check_identity
from fairseq_phrase.errors import UserError


def last_checkpoints(directory: Path, count: int) -> list[Path]:
    """Find the newest epoch checkpoints ``checkpointN.pt`` of a training, the oldest first.

    Args:
        directory: fairseq's ``--save-dir``.
    """
    epochs = _epoch_checkpoints(directory, count)
    return [epochs[epoch] for epoch in sorted(epochs)[-count:]]


def checkpoints_around_best(directory: Path, count: int) -> list[Path]:
    """Find the epoch checkpoints around the epoch of ``checkpoint_best.pt``, the oldest first.

    A training with ``--patience`` ends long after its best epoch; its last checkpoints are worse.

    Args:
        directory: fairseq's ``--save-dir``.
        count: number of checkpoints. The best is in the middle, unless too few are before or after it.

    Raises:
        UserError: there are fewer checkpoints, the folder does not exist, or the best one is older than
            all of them.
    """
    epochs = _epoch_checkpoints(directory, count)
    best = directory / "checkpoint_best.pt"
    iterator = load_checkpoint(best)["extra_state"]["train_iterator"]
    # At the end of an epoch fairseq writes the number of the next one.
    epoch = iterator["epoch"] - (not iterator["iterations_in_epoch"])
    until = [number for number in sorted(epochs) if number <= epoch]
    if not until:
        raise UserError(
            f"{best} is of epoch {epoch}, and the oldest epoch checkpoint is of epoch {min(epochs)}: "
            f"use --last {count}, or train with --keep-last-epochs of more than --patience"
        )
    start = max(0, min(len(until) - 1 - (count - 1) // 2, len(epochs) - count))
    return [epochs[epoch] for epoch in sorted(epochs)[start : start + count]]


def checkpoint_after(directory: Path, updates: int) -> Path:
    """Find the checkpoint ``checkpoint_EPOCH_UPDATES.pt`` of a training with ``--save-interval-updates``.

    Args:
        directory: fairseq's ``--save-dir``.

    Raises:
        UserError: the training did not write one after so many updates, or has removed it.
    """
    names = {path.name: path for path in directory.glob("checkpoint_*.pt")}
    for name, path in names.items():
        if re.fullmatch(rf"checkpoint_\d+_{updates}\.pt", name):
            return path
    raise UserError(
        f"{directory} has no checkpoint after {updates} updates (the checkpoints are "
        f"{', '.join(sorted(names)) or 'none'}): train with --save-interval-updates, and keep it with "
        "--keep-interval-updates-pattern"
    )


def _epoch_checkpoints(directory: Path, count: int) -> dict[int, Path]:
    """Find the checkpoints ``checkpointN.pt`` by epoch, at least a given number."""
    if not directory.is_dir():
        raise UserError(f"{directory} is not a folder of checkpoints: name a training's --save-dir")
    epochs = {
        int(match[1]): path
        for path in directory.glob("checkpoint*.pt")
        if (match := re.fullmatch(r"checkpoint(\d+)\.pt", path.name))
    }
    if len(epochs) < count:
        there = sorted(path.name for path in directory.glob("checkpoint*.pt"))
        instead = f"use --last {len(epochs)}" if epochs else "name files instead of --last"
        raise UserError(
            f"{directory} has {len(epochs)} epoch checkpoints, fewer than {count}: {instead} (the "
            f"checkpoints are {', '.join(there) or 'none'}), or train at least {count} epochs with "
            f"--keep-last-epochs {count}"
        )
    return epochs


def average_checkpoints(
    paths: Sequence[Path], out: Path, allow: str | None = None, *, strict: bool = False
) -> None:
    """Write a checkpoint with the mean of several checkpoints' parameters.

    Everything else is copied from the last checkpoint. Parameters of 16 bits (``--fp16``, ``--bf16``)
    get a mean of 32 bits: rounding it would lose part of what averaging gains.

    Args:
        allow: names of entries that may differ, separated by commas.
        strict: also refuse other parsers and trees.

    Raises:
        UserError: a checkpoint is missing or damaged, or belongs to another model; or ``out`` cannot be
            written or is one of ``paths``.
    """
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: the folder {out.parent} is not there; create it first")
    if out.resolve() in [path.resolve() for path in paths]:
        raise UserError(f"--out {out} is one of the checkpoints to average: give another file")
    register_all()
    mean: dict[str, torch.Tensor] = {}
    first: dict[str, Any] = {}
    state: dict[str, Any] = {}
    allowed: dict[str, None] = {}
    for path in paths:
        state = load_checkpoint(path)
        first = first or state
        _check_same_parameters(first, paths[0], state, path)
        identity = identity_of(state, path)
        passed = check_identity(
            identity_of(first, paths[0]), identity, "join", Tolerance(allow, strict)
        )
        allowed |= dict.fromkeys(passed)
        for name, value in state["model"].items():
            # In double precision, because then the order of the checkpoints does not matter.
            share = value.double() / len(paths)
            mean[name] = mean[name] + share if name in mean else share
    state["model"] = {
        name: mean[name].to(_mean_type(value)) for name, value in state["model"].items()
    }
    record = replace(identity, allowed=tuple(allowed)).as_dict()
    state["task_state"] = {**(state.get("task_state") or {}), "identity": record}
    partial = out.with_name(out.name + ".partial")
    try:
        with open(partial, "wb") as stream:
            torch.save(state, stream)
        os.replace(partial, out)
    except (OSError, RuntimeError) as error:  # torch's writer raises the latter on a full disk
        partial.unlink(missing_ok=True)
        message = error.strerror if isinstance(error, OSError) else None
        reason = message or str(error).partition("\n")[0]
        raise UserError(f"--out {out} cannot be written: {reason}") from None


def _mean_type(value: torch.Tensor) -> torch.dtype:
    sixteen_bits = value.is_floating_point() and value.element_size() == 2
    return torch.float32 if sixteen_bits else value.dtype


def _check_same_parameters(
    first: dict[str, Any], first_path: Path, state: dict[str, Any], path: Path
) -> None:
    pair = f"{path} and {first_path} are checkpoints of different models"
    shapes, expected = (
        {name: tuple(value.shape) for name, value in checkpoint["model"].items()}
        for checkpoint in (state, first)
    )
    for name in sorted(shapes.keys() ^ expected.keys()):
        where = path if name in shapes else first_path
        raise UserError(f"{pair}: only {where} has the parameter {name}")
    for name, shape in shapes.items():
        if shape != expected[name]:
            raise UserError(f"{pair}: {name} has the shape {shape} and {expected[name]}")
