"""The identity record of a checkpoint, with its model's options.

A checkpoint of :mod:`fairseq_phrase.tasks` stores its record in the task's state. For a checkpoint of
stock fairseq, the record is derived from its configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fairseq.data import data_utils
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.utils import split_paths

from fairseq_phrase.checkpoints.entries import model_entries, task_entries
from fairseq_phrase.checkpoints.trust import plain_options
from fairseq_phrase.data.store.identity import Entry, Identity
from fairseq_phrase.data.store.manifest import data_identity
from fairseq_phrase.errors import UserError
from fairseq_phrase.models.encoder_method import ENCODERS, neutral_obstacle

#: The entries of fairseq's ``extra_state`` with the number of a training and the record of its data.
NUMBER, DATA = "training", "data"

#: The entry with the numbers of the processes that trained a checkpoint, in order: each resume adds one.
#: If neither of two lists begins the other, a training was continued twice from one checkpoint.
PROCESSES = "processes"


@runtime_checkable
class RecordingTask(Protocol):
    """A task that records the data and options of its models, and compares records itself."""

    cfg: Any
    identity: Identity

    @property
    def source_dictionary(self) -> Any:
        """The dictionary of source tokens."""

    @property
    def target_dictionary(self) -> Any:
        """The dictionary of target tokens or labels."""

    def check_record(self, trained: Identity, path: str | Path, entry_point: str) -> None:
        """Compare a checkpoint's record with this run's."""

    def continue_training(self, trained: Identity) -> None:
        """Adopt the number of a training."""


def identity_of(state: dict[str, Any], path: str | Path) -> Identity:
    """Return the record of a checkpoint; without one, derive it as far as possible.

    Entries that a record of an earlier version lacks are also derived, unless the model is of a plugin
    that is not imported here: only its options tell which of them are free.
    """
    sections = plain_options(state.get("cfg"))
    model, task = (
        plain_options(sections.get(section) or state.get("args")) for section in ("model", "task")
    )
    recorded = (state.get("task_state") or {}).get("identity")
    record = None if recorded is None else Identity.from_dict(recorded, path)
    model_name = model.get("_name") or model.get("arch")
    is_foreign = model_name and not (
        model_name in MODEL_REGISTRY or model_name in ARCH_MODEL_REGISTRY
    )
    if record is not None and is_foreign:
        return record
    entries = {**task_entries(task), **model_entries(model), **_training_entry(state)}
    if record is not None:
        for name, entry in record.entries.items():
            now = entries.pop(name, entry)
            entries[name] = replace(entry, part=now.part, kind=now.kind)
        return replace(record, entries=entries)
    stored = (state.get("extra_state") or {}).get(DATA)
    data = data_of(task) if stored is None else Identity.from_dict(stored, path)
    return Identity({**entries, **data.entries}, is_whole=False)


def data_of(task: Mapping[str, Any]) -> Identity:
    """Return the record of the dictionaries of a task's data directory, if it is there."""
    directory = split_paths(str(task.get("data") or "."))[0]
    source, target = task.get("source_lang"), task.get("target_lang")
    if not task.get("data") or not Path(directory).is_dir():
        return Identity(is_whole=False)
    if source is None:
        source, target = data_utils.infer_language_pair(directory)
    if source is None:
        return Identity(is_whole=False)
    record = data_identity(directory, source, target).only("languages", "source", "target")
    return replace(record, is_whole=False)


def _training_entry(state: dict[str, Any]) -> dict[str, Entry]:
    """Return the number of a training; without one, its seed and its folder of checkpoints."""
    if number := (state.get("extra_state") or {}).get(NUMBER):
        return {"training": Entry(str(number), str(number), "training")}
    options = plain_options(state.get("args"))
    for section in ("common", "checkpoint"):
        options |= plain_options(plain_options(state.get("cfg")).get(section))
    if options.get("seed") is None or options.get("save_dir") is None:
        return {}
    value = f"seed {options['seed']} in {options['save_dir']}"
    return {"training": Entry(value, value, "training")}


def prune(trained: Identity, current: Identity) -> Identity:
    """Let a trained model be used without some of its layers, which ``--model-overrides`` leaves out.

    fairseq drops the parameters of the other layers, after a training with ``--encoder-layerdrop``.

    Returns:
        The record of the checkpoint, with the layers of the pruned model.
    """
    entries = dict(trained.entries)
    for side in ("encoder", "decoder"):
        layers = f"{side}-layers-to-keep"
        if trained.value(layers) in _ALL_LAYERS and current.value(layers) not in _ALL_LAYERS:
            entries |= {name: current.entries[name] for name in (f"{side}-layers", layers)}
    return replace(trained, entries=entries)


_ALL_LAYERS = (None, "None")


def begin_neutrally(
    trained: Identity, current: Identity, encoder: Any, path: str | Path, allow: str | None
) -> Identity:
    """Let an encoder start from fairseq's, if it initially computes the same.

    Args:
        allow: names of entries that may differ, as in
            :func:`~fairseq_phrase.data.store.identity.compare`.

    Returns:
        The record of the checkpoint; if the encoder differs, with the entries that the encoder adds.
        Shared entries keep the checkpoint's values.

    Raises:
        UserError: the encoder does not initially compute fairseq's.
    """
    name = current.value("encoder")
    allowed = (allow or "").split(",")
    if trained.value("encoder") != "transformer" or name is None or "encoder" in allowed:
        return trained
    options = [option for method in ENCODERS.values() for option in method.options]
    of_plain = {_entry_name(option) for option in options if option.metadata.get("of_plain")}
    for entry_name in sorted(of_plain - {*allowed}):
        _check_of_plain(trained, current, entry_name, path)
    if name != "transformer" and (
        obstacle := neutral_obstacle(encoder, getattr(encoder, "cfg", None))
    ):
        raise UserError(
            f"{path} has fairseq's Transformer encoder, and {name} does not start as it: {obstacle}; "
            f"or begin from parts of it, with --pretrained {path} --allow-difference encoder"
        )
    # fairseq's encoder lacks these entries, even if an encoder with all options off records them.
    of_encoders = {"encoder", *map(_entry_name, options)} - of_plain
    of_trained = {
        entry_name: entry
        for entry_name, entry in trained.entries.items()
        if entry_name not in of_encoders
    }
    added = {
        entry_name: entry
        for entry_name, entry in current.entries.items()
        if entry_name in of_encoders
        or (entry_name not in trained.entries and entry.part in _READ_BY_ENCODERS)
    }
    return replace(trained, entries={**of_trained, **added})


def _entry_name(option: Field[Any]) -> str:
    return option.name.replace("_", "-")


def _check_of_plain(trained: Identity, current: Identity, name: str, path: str | Path) -> None:
    """Check an option that changes fairseq's own encoder, too, before another encoder starts from it.

    Args:
        name: the option's entry.

    Raises:
        UserError: the trained encoder has the option, and this run's encoder cannot have it.
    """
    encoder = current.value("encoder")
    if trained.value(name) != "True" or (encoder == "transformer" and name in current.entries):
        return
    if encoder == "transformer":
        raise UserError(
            f"{path} was trained with --{name}, which this run's architecture lacks: give --arch "
            f"structural_transformer --{name}, or let this pass with --allow-difference {name}"
        )
    raise UserError(
        f"{path} was trained with --{name}, so its encoder is not fairseq's Transformer, as which "
        f"{encoder} starts; begin from parts of it, with --pretrained {path} --allow-difference "
        f"encoder,{name}"
    )


_READ_BY_ENCODERS = ("labels", "parser", "trees")
