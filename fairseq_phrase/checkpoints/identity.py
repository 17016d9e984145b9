"""The identity record of a checkpoint, with its model's options.

A checkpoint of :mod:`fairseq_phrase.tasks` stores its record in the task's state. For a checkpoint of
stock fairseq, the record is derived from its configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fairseq.data import data_utils
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.utils import split_paths

from fairseq_phrase.checkpoints.options import (
    model_entries,
    model_options,
    sections_of,
    task_entries,
)
from fairseq_phrase.checkpoints.trust import plain_options
from fairseq_phrase.data.store.identity import Entry, Identity
from fairseq_phrase.data.store.manifest import data_identity
from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.encoder_method import ENCODERS, neutral_obstacle

#: The entries of fairseq's ``extra_state`` with the number of a training and the record of its data.
NUMBER, DATA = "training", "data"


@runtime_checkable
class RecordingTask(Protocol):
    """A task that records the data and options of its models, and compares records itself."""

    cfg: Any
    identity: Identity
    source_dictionary: Any
    target_dictionary: Any

    def check_record(self, trained: Identity, use: str, without: Sequence[str] = ()) -> None:
        """Compare a checkpoint's record with this run's."""

    def continue_training(self, trained: Identity) -> None:
        """Adopt the number of a training."""


def identity_of(state: Mapping[str, Any], path: str | Path) -> Identity:
    """Return the record of a checkpoint; without one, derive it as far as possible.

    What a record of an earlier version lacks is also derived, unless the model is of a plugin that is
    not imported here: only its options tell which of them are free.
    """
    model, task = sections_of(state)
    recorded = (state.get("task_state") or {}).get("identity")
    record = None if recorded is None else Identity.from_dict(recorded, path)
    name = model.get("_name") or model.get("arch")
    is_known = not name or name in MODEL_REGISTRY or name in ARCH_MODEL_REGISTRY
    if record is not None and name and is_known and not model_options(model):
        # Earlier versions recorded options of architectures that declare none.
        options = [
            option
            for option, entry in record.entries.items()
            if entry.part in ("encoder", "decoder")
        ]
        record = record.only_named(record.entries.keys() - {*options} | {"encoder"})
    if record is not None and (record.is_whole or not is_known):
        return record
    entries = {**task_entries(task), **model_entries(model), **_training_entry(state)}
    if record is not None:
        for name, entry in record.entries.items():
            now = entries.pop(name, entry)
            entries[name] = replace(entry, part=now.part, kind=now.kind)
        return replace(record, entries=entries)
    stored = (state.get("extra_state") or {}).get(DATA)
    data = data_record_of(task) if stored is None else Identity.from_dict(stored, path)
    return Identity({**entries, **data.entries}, is_whole=False, where=path)


def data_record_of(task: Mapping[str, Any]) -> Identity:
    """Return the record of the dictionaries of a task's data directory, if it is there."""
    directory = split_paths(str(task.get("data") or "."))[0]
    source, target = task.get("source_lang"), task.get("target_lang")
    record = Identity()
    if task.get("data") and Path(directory).is_dir():
        if source is None:
            source, target = data_utils.infer_language_pair(directory)
        if source is not None:
            record = data_identity(directory, source, target)
    return replace(record.only("languages", "source", "target"), is_whole=False)


def _training_entry(state: Mapping[str, Any]) -> dict[str, Entry]:
    """Return the number of a training; without one, its seed and its folder of checkpoints."""
    number = (state.get("extra_state") or {}).get(NUMBER)
    if number is None:
        options = plain_options(state.get("args"))
        for section in ("common", "checkpoint"):
            options |= plain_options(plain_options(state.get("cfg")).get(section))
        if options.get("seed") is None or options.get("save_dir") is None:
            return {}
        number = f"seed {options['seed']} in {options['save_dir']}"
    return {"training": Entry(str(number), str(number), "training")}


def prune(trained: Identity, options: Identity) -> Identity:
    """Let a trained model be used without some of its layers, which ``--model-overrides`` leaves out.

    fairseq drops the parameters of the other layers, after a training with ``--encoder-layerdrop``. No
    other option of a model may be overridden.

    Returns:
        The record of the checkpoint, with the layers of the pruned model.
    """
    pruned: dict[str, Entry] = {}
    for side in ("encoder", "decoder"):
        layers = f"{side}-layers-to-keep"
        is_whole = trained.value(layers) in (None, "None")
        if is_whole and options.value(layers) not in (None, "None"):
            pruned |= {name: options.entries[name] for name in (f"{side}-layers", layers)}
    return trained.with_entries(pruned)


def begin_neutrally(
    trained: Identity, current: Identity, encoder: Any, allow: str | None
) -> Identity:
    """Let an encoder start from fairseq's, if it initially computes the same.

    Args:
        allow: names of entries that may differ, separated by commas.

    Returns:
        The record of the checkpoint; if the encoder differs, with the entries that the encoder adds.
        Shared entries keep the checkpoint's values.

    Raises:
        UserError: the encoder does not initially compute fairseq's.
    """
    name = current.value("encoder")
    if trained.value("encoder") != "transformer" or name is None:
        return trained
    if "encoder" in (allow or "").split(","):
        return trained
    obstacle = neutral_obstacle(encoder, getattr(encoder, "cfg", None))
    if name != "transformer" and obstacle:
        raise UserError(
            f"{trained.where} has fairseq's Transformer encoder, and {name} does not start as it: "
            f"{obstacle}; or begin from parts of it, with --pretrained {trained.where} "
            "--allow-difference encoder"
        )
    # fairseq's encoder lacks these entries, even if an encoder with all options off records them.
    of_encoders = {"encoder"}
    for option in (option for method in ENCODERS.values() for option in method.options):
        if not option.metadata.get("of_plain"):
            of_encoders.add(option.name.replace("_", "-"))
    entries = {name: e for name, e in trained.entries.items() if name not in of_encoders}
    for entry_name, entry in current.entries.items():
        is_read = entry_name not in entries and entry.part in ("labels", "parser", "trees")
        if entry_name in of_encoders or is_read:
            entries[entry_name] = entry
    return replace(trained, entries=entries)
