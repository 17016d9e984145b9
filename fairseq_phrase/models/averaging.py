"""Average the parameters of several checkpoints of one training."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import torch

import fairseq_phrase.models  # noqa: F401 - makes checkpoints loadable
from fairseq_phrase.errors import UserError
from fairseq_phrase.modules.trees.hierarchical_accumulation import refuse_projected_leaf_weights


def last_checkpoints(directory: Path, count: int) -> list[Path]:
    """Find the newest epoch checkpoints ``checkpointN.pt`` of a training.

    Args:
        directory: fairseq's ``--save-dir``.
        count: how many.

    Returns:
        Their paths, the oldest first.

    Raises:
        UserError: there are fewer.
    """
    epochs = {
        int(match[1]): path
        for path in directory.glob("checkpoint*.pt")
        if (match := re.fullmatch(r"checkpoint(\d+)\.pt", path.name))
    }
    if len(epochs) < count:
        raise UserError(
            f"{directory} has {len(epochs)} epoch checkpoints, fewer than {count}: train with "
            f"--keep-last-epochs {count} or more, for at least {count} epochs"
        )
    return [epochs[epoch] for epoch in sorted(epochs)[-count:]]


def average_checkpoints(paths: Sequence[Path], out: Path) -> None:
    """Write a checkpoint with the mean of others' parameters, and the rest as in the last.

    Args:
        paths: checkpoints of one model.
        out: where it goes.

    Raises:
        UserError: a checkpoint is missing or damaged, or is of another model or an
            earlier version of it.
    """
    mean: dict[str, torch.Tensor] = {}
    state: dict = {}
    for path in paths:
        if not path.is_file():
            raise UserError(f"the checkpoint {path} is not there")
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            parameters = state["model"]
        except (RuntimeError, KeyError, EOFError) as error:
            raise UserError(f"{path} is no fairseq checkpoint: {error}") from None
        try:
            refuse_projected_leaf_weights(parameters)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        if mean and parameters.keys() != mean.keys():
            raise UserError(f"{path} and {paths[0]} are checkpoints of different models")
        for name, value in parameters.items():
            # In double precision, so that the order of the checkpoints does not matter.
            share = value.double() / len(paths)
            mean[name] = mean[name] + share if name in mean else share
    state["model"] = {name: mean[name].to(value) for name, value in state["model"].items()}
    partial = out.with_name(out.name + ".partial")
    torch.save(state, partial)
    os.replace(partial, out)
