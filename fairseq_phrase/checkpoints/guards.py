"""Checks in fairseq's functions that load, resume and save checkpoints; and of their parameters."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from fairseq import checkpoint_utils
from fairseq.data import encoders
from fairseq.file_io import PathManager
from fairseq.models import BaseFairseqModel
from fairseq.registry import REGISTRIES
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from fairseq.utils import split_paths
from omegaconf import MISSING, OmegaConf
from torch import Tensor

from fairseq_phrase.checkpoints.identity import (
    DATA,
    NUMBER,
    RecordingTask,
    begin_neutrally,
    data_record_of,
    identity_of,
)
from fairseq_phrase.checkpoints.options import (
    check_name,
    check_removed_options,
    complete_options,
    sections_of,
)
from fairseq_phrase.checkpoints.trust import load_checkpoint, plain_options
from fairseq_phrase.data.store.identity import Identity, Tolerance, check_identity, log_record
from fairseq_phrase.data.store.parts import log_text
from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.model_parts import encoder_of
from fairseq_phrase.repairs.checkpoints import override_options, rename_old_parameters
from fairseq_phrase.repairs.inference import TRUNCATED, command_options
from fairseq_phrase.repairs.patches import patch
from fairseq_phrase.repairs.resuming import record_processes

#: fairseq's own tasks have no options of the comparison.
WITHOUT_OPTIONS = Tolerance(option="")


def guard_checkpoints() -> None:
    """Make fairseq's commands compare the records of the checkpoints that they load."""
    patch(checkpoint_utils, "load_checkpoint_to_cpu", _load_with_record)
    patch(Trainer, "load_checkpoint", _resume)
    patch(Trainer, "save_checkpoint", _save_record)
    patch(FairseqTask, "load_state_dict", _compare_data)
    patch(BaseFairseqModel, "load_state_dict", _load_untied)
    patch(encoders, "build_bpe", _build_bpe)


def _load_with_record(
    read: Any, path: str, arg_overrides: Any = None, load_on_all_ranks: bool = False
) -> dict[str, Any]:
    """Read a checkpoint by :func:`load_checkpoint`; store its record and path in the task's state.

    fairseq gives this state to the task before it builds a trained model.

    Args:
        read: fairseq's function, which is not called: it evaluates options before they are checked.
        arg_overrides: options that the user sets, by name.
        load_on_all_ranks: unused.
    """
    state = load_checkpoint(Path(PathManager.get_local_path(path, force=True)), mmap=False)
    sections = plain_options(state.get("cfg"))
    for name in ("task", "model"):
        if state.get("args") is None and not isinstance(sections.get(name), dict | Namespace):
            raise UserError(f"{path} is not a fairseq checkpoint: it has no options of a {name}")
    if sections:
        state["cfg"] = OmegaConf.create(state["cfg"], flags={"allow_objects": True})
    elif arch := plain_options(state["args"]).get("arch"):
        check_name("model", arch, path)
    state = dict(checkpoint_utils._upgrade_state_dict(state))
    complete_options(state, path)
    record_processes(state)
    record = identity_of(state, path)
    override_options(state, arg_overrides or {})  # set by the user
    _, task = sections_of(state)
    state["task_state"] = {
        **(state.get("task_state") or {}),
        "identity": record.as_dict(),
        "checkpoint": path,
        TRUNCATED: task.get("max_source_positions") if task.get("truncate_source") else None,
    }
    return state


def _resume(
    resume: Any, self: Trainer, filename: str, reset_optimizer: bool = False,
    *args: Any, **options: Any,
) -> Any:  # fmt: skip
    """Compare the record of a training's first checkpoint, whose state fairseq's trainer ignores."""
    _log_text_of(plain_options(self.cfg))
    if not isinstance(self.task, RecordingTask):  # other tasks log their records
        current = identity_of({"cfg": self.cfg}, "this run")
        log_record(current)
    if Path(filename).is_file():
        state = load_checkpoint(Path(filename))
        check_removed_options(state, filename)
        trained = identity_of(state, filename)
        encoder = encoder_of(self.model)
        if isinstance(self.task, RecordingTask):
            if not reset_optimizer:
                self.task.continue_training(trained)
            self.task.check_record(trained, "continue")
            current = self.task.identity
        else:
            if not reset_optimizer:
                vars(self)[NUMBER] = trained.value("training")
            begun = begin_neutrally(trained, current, encoder, None)
            check_identity(begun, current, "continue", WITHOUT_OPTIONS)
        added = trained.value("encoder") != current.value("encoder")
        if not self.is_fsdp:
            saved, parameters = state.get("model", {}), self.model.state_dict()
            check_sizes(saved, parameters, filename)
            check_ties(saved, parameters, filename)
            names = set(getattr(encoder, "neutral_parameters", ()))
            added |= any(
                not names.isdisjoint(new.split(".")) for new in parameters.keys() - saved.keys()
            )
        if added and not reset_optimizer:
            raise UserError(
                f"{filename} has no optimizer's state for the parameters that {current.value('encoder')} "
                f"adds: give --finetune-from-model {filename}, or --reset-optimizer and the other "
                "--reset-* with --restore-file"
            )
    return resume(self, filename, reset_optimizer, *args, **options)


def _log_text_of(sections: Mapping[str, Any]) -> None:
    """Log the training text that a configuration names; see :func:`log_text`."""
    data = plain_options(sections.get("task")).get("data")
    subset = plain_options(sections.get("dataset")).get("train_subset")
    if data:
        log_text(split_paths(str(data)), str(subset))


def _save_record(save: Any, self: Trainer, filename: str, extra_state: dict[str, Any]) -> Any:
    """Store what fairseq's own tasks do not: the training's number, and the record of the data."""
    attributes = vars(self)
    state = {**extra_state, NUMBER: attributes.setdefault(NUMBER, uuid4().hex[:8])}
    if not isinstance(self.task, RecordingTask):
        if DATA not in attributes:
            attributes[DATA] = data_record_of(plain_options(self.cfg.task)).as_dict()
        state[DATA] = attributes[DATA]
    return save(self, filename, state)


def _compare_data(load: Any, self: FairseqTask, state_dict: dict[str, Any]) -> None:
    """Compare the dictionaries of fairseq's own task with those of a model that it uses."""
    if "identity" in state_dict and not isinstance(self, RecordingTask):
        trained = Identity.from_dict(
            state_dict["identity"], state_dict.get("checkpoint", "the checkpoint")
        )
        cfg = plain_options(command_options(self))
        current = replace(
            data_record_of(cfg).only("source", "target"), where=f"this run on {cfg.get('data')}"
        )
        check_identity(trained.only_named(current.entries.keys()), current, "use", WITHOUT_OPTIONS)
    load(self, state_dict)


def _load_untied(
    load: Any, self: BaseFairseqModel, state_dict: Any, *args: Any, **options: Any
) -> Any:
    """Check a model's shared parameters, and rename old ones, before fairseq loads them."""
    parameters = self.state_dict()
    rename_old_parameters(state_dict, parameters)
    check_ties(state_dict, parameters, "this checkpoint")
    return load(self, state_dict, *args, **options)


def _build_bpe(build: Any, cfg: Any, *args: Any, **options: Any) -> Any:
    """Name the files that a segmenter of fairseq lacks; a checkpoint's own are not opened."""
    values = {"_name": cfg} if isinstance(cfg, str) else plain_options(cfg)
    name = values.get("_name") or values.get("bpe")
    kind = REGISTRIES["bpe"]["dataclass_registry"].get(name)
    missing = [
        option.name
        for option in (fields(kind) if kind else ())
        if values.get(option.name, option.default) == MISSING
    ]
    if missing:
        flags = " ".join(f"--{option.replace('_', '-')} FILE" for option in missing)
        texts = ", ".join(f'{option}="FILE"' for option in missing)
        raise UserError(
            f"--bpe {name} lacks {' and '.join(missing)}: give {flags}, in Python {texts}. Files that a "
            "checkpoint names are not opened"
        )
    return build(cfg, *args, **options)


def check_sizes(
    saved: Mapping[str, Tensor], parameters: Mapping[str, Tensor], path: str | Path
) -> None:
    """Check that the parameters of a checkpoint have the sizes of a model.

    Args:
        saved: the checkpoint's parameters, by name.

    Raises:
        UserError: the number of layers, the dictionary or another size differs.
    """
    for side in ("encoder", "decoder"):
        layer = re.compile(rf"{side}\.layers\.(\d+)\.")
        before, now = (
            max((int(match[1]) + 1 for name in names if (match := layer.match(name))), default=0)
            for names in (saved, parameters)
        )
        if before != now and before and now:
            raise UserError(
                f"{path}: its {side} has {before} layers, and here {now}: give --{side}-layers {before}"
            )
    for name in sorted(saved.keys() & parameters.keys()):
        old, new = tuple(saved[name].shape), tuple(parameters[name].shape)
        if old == new:
            continue
        if name.endswith("embed_tokens.weight") and old[1] == new[1]:
            raise UserError(
                f"{path}: {name} has {old[0]} entries, and the dictionary here has {new[0]}: make the "
                "data with its dictionary (--srcdict, --tgtdict)"
            )
        raise UserError(
            f"{path}: {name} has the shape {old}, and here {new}: give the sizes of that training "
            "(--encoder-embed-dim, --encoder-ffn-embed-dim, …), and make the data with its dictionary "
            "(--srcdict)"
        )


def check_ties(
    saved: Mapping[str, Tensor], parameters: Mapping[str, Tensor], path: str | Path
) -> None:
    """Check that parameters of a checkpoint are equal where a model shares one parameter.

    Args:
        saved: the checkpoint's parameters, by name.
        parameters: the model's parameters; shared parameters have the same memory.

    Raises:
        UserError: the values differ; the last one loaded would overwrite the others.
    """
    first: dict[tuple[int, tuple[int, ...]], str] = {}
    for name, value in parameters.items():
        if name not in saved or not value.numel() or value.is_meta:
            continue
        memory = value.data_ptr()
        if saved[name].data_ptr() == memory:  # not of a checkpoint
            continue
        first_name = first.setdefault((memory, tuple(value.shape)), name)
        values, other_values = saved[name], saved[first_name]
        if values.data_ptr() != other_values.data_ptr() and not torch.equal(values, other_values):
            raise UserError(
                f"{path}: {first_name} and {name} have different values, and here they are one "
                "parameter: leave out --share-all-embeddings, --share-decoder-input-output-embed and "
                "other options that share parameters, as that training did"
            )
