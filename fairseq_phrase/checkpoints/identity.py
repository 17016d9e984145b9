"""The identity record of a checkpoint, with its model's options.

A checkpoint of :mod:`fairseq_phrase.tasks` stores its record in the task's state. For a checkpoint of
stock fairseq, the record is derived from its configuration.
"""

from __future__ import annotations

import re
import zipfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, field, fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import torch
from fairseq import checkpoint_utils
from fairseq.data import data_utils
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_NAME_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
    MODEL_REGISTRY,
    BaseFairseqModel,
)
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY as TASK_DATACLASSES
from fairseq.tasks import TASK_REGISTRY, FairseqTask
from fairseq.trainer import Trainer
from fairseq.utils import split_paths
from omegaconf import OmegaConf, open_dict
from torch import Tensor

from fairseq_phrase.checkpoints.trust import (
    check_before_upgrade,
    load_checkpoint,
    plain_options,
    reading,
)
from fairseq_phrase.compat.checkpoints import (
    override_options,
    rename_old_parameters,
    unreadable,
)
from fairseq_phrase.compat.inference import TRUNCATED, options_of
from fairseq_phrase.compat.patches import patch
from fairseq_phrase.data.store.identity import (
    OF_DECODER,
    UNKNOWN,
    Entry,
    Identity,
    compare,
    log_record,
    log_text,
    matches,
    why_free,
)
from fairseq_phrase.data.store.manifest import data_identity
from fairseq_phrase.errors import UserError
from fairseq_phrase.models.config import FlatTransformerConfig, nested_config
from fairseq_phrase.models.encoder_method import ENCODERS, EncoderMethod, neutral_obstacle


def option_entries(
    options: Iterable[Field[Any]], given: Mapping[str, Any], part: str
) -> dict[str, Entry]:
    """Make the entries of options, except free options.

    A difference is refused, unless the option's metadata have ``identity: may`` (a warning) or
    ``identity: free``, or :data:`fairseq_phrase.data.store.identity.FREE` has its name.

    Args:
        given: the values of a configuration. A missing option has its default, or the value that
            models had before the option existed.
        part: one of :data:`fairseq_phrase.data.store.identity.PARTS`. Metadata ``part`` overrule it.
    """
    entries = {}
    for option in options:
        kind = identity_kind(option)
        if kind != "free" and not option.name.startswith("_"):
            before = option.metadata.get("before", option.default)
            default = None if before is MISSING else _text(before, option, given)
            value = _text(given.get(option.name, before), option, given)
            name = option.name.replace("_", "-")
            entries[name] = Entry(value, value, option.metadata.get("part", part), kind, default)
    return entries


def identity_kind(option: Field[Any]) -> str:
    """Return how an option is compared: ``must``, ``may`` or ``free``."""
    kind = str(option.metadata.get("identity") or "must")
    is_free = why_free(option.name) and option.metadata.get("identity") != "must"
    return "free" if is_free else kind


def _text(value: Any, option: Field[Any], given: Mapping[str, Any]) -> str:
    """Write a value: interpolations are resolved, and whole numbers of float options are floats."""
    if isinstance(value, str) and (found := _OF_MODEL.fullmatch(value)):
        value = given.get(found[1])
    is_float = option.type is float and isinstance(value, int)
    return str(float(value) if is_float else None if value is MISSING else value)


_OF_MODEL = re.compile(r"\$\{model\.(\w+)\}")


def model_entries(cfg: Any) -> dict[str, Entry]:
    """Make the entries of a model: its encoder's name and its options.

    Options of other encoders are omitted.

    Args:
        cfg: a checkpoint's configuration of its model, or a training's configuration of it.
    """
    given = plain_options(cfg)
    # fairseq also shares the output, but only some architectures set the option.
    if given.get("share_all_embeddings") or given.get("merge_src_tgt_embed"):
        given["share_decoder_input_output_embed"] = True
    name = given.get("_name") or given.get("arch") or ""
    method, options, others = _encoder_options(given)
    encoder = method.name if method else ARCH_MODEL_NAME_REGISTRY.get(name, name)
    # BART's encoder is fairseq's Transformer.
    if encoder == "bart" or (method and _is_plain(method.encoder, options, given)):
        encoder = "transformer"
    parts: dict[str, list[Field[Any]]] = {"encoder": [], "decoder": []}
    for option in options.values():
        if option.name not in others or not (method or "encoder" in options):
            parts["decoder" if matches(option.name, OF_DECODER) else "encoder"].append(option)
    entries = {
        name: e for part in parts for name, e in option_entries(parts[part], given, part).items()
    }
    return {**entries, "encoder": Entry(encoder, encoder, "encoder")}


def _encoder_options(
    given: Mapping[str, Any],
) -> tuple[EncoderMethod | None, dict[str, Field[Any]], set[str]]:
    """Return a model's encoder, its options by name, and the names of other encoders' options."""
    options = {option.name: option for option in model_options(given)}
    chosen = given.get("encoder", getattr(options.get("encoder"), "default", None))
    model = MODEL_REGISTRY.get(given.get("_name") or given.get("arch") or "")
    method = getattr(model, "method", ENCODERS.get(str(chosen)))
    of_encoder = {each.name for each in method.options} if method else set()
    return method, options, {o.name for m in ENCODERS.values() for o in m.options} - of_encoder


def model_options(given: Mapping[str, Any]) -> list[Field[Any]]:
    """Return the options of a model: the options of its dataclass, or all that no other part has.

    The configuration of an old architecture, without a dataclass, has the options of all parts.

    Args:
        given: a configuration, as :func:`plain_options` returns it.
    """
    name = given.get("_name") or given.get("arch") or ""
    if name in MODEL_DATACLASS_REGISTRY:
        return list(fields(MODEL_DATACLASS_REGISTRY[name]))
    known = {option.name: option for option in fields(FlatTransformerConfig)}
    defaults = _architecture_defaults(name)
    options = []
    for each in given.keys() - (_of_other_parts(given) - known.keys()):
        made: Any = field(default=defaults.get(each, getattr(known.get(each), "default", MISSING)))
        made.name, made.type = each, getattr(known.get(each), "type", None)
        options.append(made)
    return sorted(options, key=lambda option: option.name)


@lru_cache
def _architecture_defaults(name: str) -> dict[str, Any]:
    """Return the options that fairseq's function of an architecture fills in."""
    made = Namespace()
    with suppress(AttributeError, TypeError):  # it may expect flags that a parser sets
        ARCH_CONFIG_REGISTRY.get(name, lambda _: None)(made)
    return vars(made)


def _of_other_parts(given: Mapping[str, Any]) -> set[str]:
    """Return the options of fairseq's commands, and of the named task, criterion, …."""
    names = {"arch"}
    for part in fields(FairseqConfig):
        names.add(part.name)
        names |= {each.name for each in fields(part.type)} if is_dataclass(part.type) else set()
    kinds = {
        **REGISTRIES,
        "task": {"registry": TASK_REGISTRY, "dataclass_registry": TASK_DATACLASSES},
    }
    for kind, registries in kinds.items():
        found, options = (registries[each].get(given.get(kind)) for each in _REGISTRIES)
        names |= {each.name for each in declared_options(found, options)}
    return names


_REGISTRIES = ("registry", "dataclass_registry")


def declared_options(kind: Any, dataclass: type | None) -> list[Field[Any]]:
    """Return the options of a registered class, of its dataclass or of the parser flags that it adds."""
    if dataclass is not None:
        return list(fields(dataclass))
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    getattr(kind, "add_args", lambda _: None)(parser)
    options = []
    for action in parser._actions:
        made: Any = field(default=action.default)
        made.name, made.type = action.dest, None
        options.append(made)
    return options


def task_entries(cfg: Any) -> dict[str, Entry]:
    """Make the entries of a task's options.

    Args:
        cfg: a checkpoint's configuration of its task, or a training's configuration of it.
    """
    given = plain_options(cfg)
    name = given.get("_name") or given.get("task")
    if given.get("truncate_source"):
        given["truncate_source"] = f"to {given.get('max_source_positions')}"
    dataclass = TASK_DATACLASSES.get(name, type(cfg) if is_dataclass(cfg) else None)
    options = declared_options(TASK_REGISTRY.get(name), dataclass)
    entries = option_entries(options, given, "task")
    if "denoising" in str(name) and not given.get("langs"):
        # An mBART model may have tags of all folders of its data.
        entries["langs"] = Entry(UNKNOWN, UNKNOWN, "source", default="None")
    return entries


def _is_plain(encoder: Any, options: Mapping[str, Field[Any]], given: Mapping[str, Any]) -> bool:
    """Return whether all options of an encoder are off, which makes it fairseq's."""
    values = {name: each.default for name, each in options.items() if each.default is not MISSING}
    cfg = nested_config(Namespace(**{**values, **given}))
    return hasattr(encoder, "is_plain") and bool(encoder.is_plain(cfg))


def identity_of(state: dict[str, Any], path: str | Path) -> Identity:
    """Return the record of a checkpoint; without one, derive it as far as possible.

    Entries that a record of an earlier version lacks are also derived.
    """
    sections = plain_options(state.get("cfg"))
    model, task = (
        plain_options(sections.get(each) or state.get("args")) for each in ("model", "task")
    )
    entries = {**task_entries(task), **model_entries(model), **_training_entry(state)}
    recorded = (state.get("task_state") or {}).get("identity")
    if recorded is not None:
        found = Identity.from_dict(recorded, path)
        for name, entry in found.entries.items():
            now = entries.pop(name, entry)
            entries[name] = replace(entry, part=now.part, kind=now.kind)
        return replace(found, entries=entries)
    stored = (state.get("extra_state") or {}).get(DATA)
    data = _data_of(task) if stored is None else Identity.from_dict(stored, path)
    return Identity({**entries, **data.entries}, is_whole=False)


def _data_of(task: Mapping[str, Any]) -> Identity:
    """Return the record of the dictionaries of a task's data directory, if it is there."""
    directory = split_paths(str(task.get("data") or "."))[0]
    source, target = task.get("source_lang"), task.get("target_lang")
    if not task.get("data") or not Path(directory).is_dir():
        return Identity(is_whole=False)
    if source is None:
        source, target = data_utils.infer_language_pair(directory)
    if source is None:
        return Identity(is_whole=False)
    found = data_identity(directory, source, target).only("languages", "source", "target")
    return replace(found, is_whole=False)


#: The entries of fairseq's ``extra_state`` with the number of a training and the record of its data.
NUMBER, DATA = "training", "data"
#: The entry with the numbers of the processes that trained a checkpoint, in order: each resume adds one.
#: If neither of two lists begins the other, a training was continued twice from one checkpoint.
PROCESSES = "processes"


def _training_entry(state: dict[str, Any]) -> dict[str, Entry]:
    """Return the number of a training; without one, its seed and its folder of checkpoints."""
    if number := (state.get("extra_state") or {}).get(NUMBER):
        return {"training": Entry(str(number), str(number), "training")}
    given = plain_options(state.get("args"))
    for section in ("common", "checkpoint"):
        given |= plain_options(plain_options(state.get("cfg")).get(section))
    if given.get("seed") is None or given.get("save_dir") is None:
        return {}
    value = f"seed {given['seed']} in {given['save_dir']}"
    return {"training": Entry(value, value, "training")}


def prune(trained: Identity, here: Identity) -> Identity:
    """Let a trained model be used without some of its layers, which ``--model-overrides`` leaves out.

    fairseq drops the parameters of the other layers, after a training with ``--encoder-layerdrop``.

    Returns:
        The record of the checkpoint, with the layers of the pruned model.
    """
    entries = dict(trained.entries)
    for side in ("encoder", "decoder"):
        kept = f"{side}-layers-to-keep"
        if trained.value(kept) in _ALL_LAYERS and here.value(kept) not in _ALL_LAYERS:
            entries |= {name: here.entries[name] for name in (f"{side}-layers", kept)}
    return replace(trained, entries=entries)


_ALL_LAYERS = (None, "None")


def begin_neutrally(
    trained: Identity, here: Identity, encoder: Any, path: str | Path, allow: str | None
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
    name = here.value("encoder")
    if trained.value("encoder") != "transformer" or name in (None, "transformer"):
        return trained
    if "encoder" in (allow or "").split(","):
        return trained
    if obstacle := neutral_obstacle(encoder, getattr(encoder, "cfg", None)):
        raise UserError(
            f"{path} has fairseq's Transformer encoder, and {name} does not start as it: {obstacle}; "
            f"or begin from parts of it, with --pretrained {path} --allow-difference encoder"
        )
    # fairseq's encoder lacks these entries, even if an encoder with all options off records them.
    own = {"encoder", *(option.name.replace("_", "-") for option in ENCODERS[str(name)].options)}
    added = {
        each: entry
        for each, entry in here.entries.items()
        if each in own or (each not in trained.entries and entry.part in _READ_BY_ENCODERS)
    }
    return replace(trained, entries={**trained.entries, **added})


_READ_BY_ENCODERS = ("labels", "parser", "trees")


def check_sizes(saved: Mapping[str, Tensor], own: Mapping[str, Tensor], path: str | Path) -> None:
    """Check that the parameters of a checkpoint have the sizes of a model.

    Args:
        saved: the checkpoint's parameters, by name.

    Raises:
        UserError: the number of layers, the dictionary or another size differs.
    """
    for side in ("encoder", "decoder"):
        layer = re.compile(rf"{side}\.layers\.(\d+)\.")
        before, now = (
            max((int(found[1]) + 1 for name in names if (found := layer.match(name))), default=0)
            for names in (saved, own)
        )
        if before != now and before and now:
            raise UserError(
                f"{path}: its {side} has {before} layers, and here {now}: give --{side}-layers {before}"
            )
    for name in sorted(saved.keys() & own.keys()):
        old, new = tuple(saved[name].shape), tuple(own[name].shape)
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


def check_ties(saved: Mapping[str, Tensor], own: Mapping[str, Tensor], path: str | Path) -> None:
    """Check that parameters of a checkpoint are equal where a model shares one parameter.

    Args:
        saved: the checkpoint's parameters, by name.
        own: the model's parameters; shared parameters have the same memory.

    Raises:
        UserError: the values differ; the last one loaded would overwrite the others.
    """
    first: dict[tuple[int, tuple[int, ...]], str] = {}
    for name, value in own.items():
        if name not in saved or not value.numel() or value.is_meta:
            continue
        memory = value.data_ptr()
        if saved[name].data_ptr() == memory:  # not of a checkpoint
            continue
        other = first.setdefault((memory, tuple(value.shape)), name)
        one, two = saved[other], saved[name]
        if one.data_ptr() != two.data_ptr() and not torch.equal(one, two):
            raise UserError(
                f"{path}: {other} and {name} have different values, and here they are one parameter: "
                "leave out --share-all-embeddings, --share-decoder-input-output-embed and other "
                "options that share parameters, as that training did"
            )


def later_options_of(given: Mapping[str, Any]) -> list[Field[Any]]:
    """Return the options of a model that models were trained before, without those of other encoders.

    Args:
        given: the model's ``_name`` or ``arch``, and its ``encoder`` if it names one.
    """
    _, options, others = _encoder_options(given)
    return [
        each for each in options.values() if "before" in each.metadata and each.name not in others
    ]


def complete_options(state: dict[str, Any]) -> None:
    """Add the options that a model was trained before, with the values that it was trained with.

    Without them a model is built with the options' defaults.

    Args:
        state: the contents of a checkpoint or a bundle.
    """
    # fairseq writes dictionaries, which it turns into its own configuration when it loads them.
    options: Any
    for options in ((state.get("cfg") or {}).get("model"), state.get("args")):
        values = plain_options(options)
        for option in later_options_of(values):
            if option.name in values:
                continue
            before = option.metadata["before"]
            if isinstance(options, Namespace):
                setattr(options, option.name, before)
            elif OmegaConf.is_config(options):
                with open_dict(options):
                    options[option.name] = before
            else:
                options[option.name] = before


def guard_checkpoints() -> None:
    """Make fairseq's commands compare the records of the checkpoints that they load."""
    patch(checkpoint_utils, "load_checkpoint_to_cpu", _load_with_record)
    patch(checkpoint_utils, "_upgrade_state_dict", check_before_upgrade)
    patch(Trainer, "load_checkpoint", _resume)
    patch(Trainer, "save_checkpoint", _save_record)
    patch(FairseqTask, "load_state_dict", _compare_data)
    patch(BaseFairseqModel, "load_state_dict", _load_untied)


def _load_with_record(read: Any, path: str, *args: Any, **options: Any) -> dict[str, Any]:
    """Store the record and the checkpoint's path in the task's state.

    fairseq gives this state to the task before it builds a trained model.
    """
    overrides = options.pop("arg_overrides", args[0] if args else None)
    try:
        with reading(path):
            state = read(path, None, *args[1:], **options)
    except (UserError, FileNotFoundError):
        raise
    except Exception as error:
        if zipfile.is_zipfile(path) or not Path(path).is_file():
            raise
        raise unreadable(Path(path), error) from None
    complete_options(state)
    record = identity_of(state, path)
    override_options(state, overrides or {})  # set by the user
    task = plain_options(plain_options(state.get("cfg")).get("task") or state.get("args"))
    state["task_state"] = {
        **(state.get("task_state") or {}),
        "identity": record.as_dict(),
        "checkpoint": path,
        TRUNCATED: task.get("max_source_positions") if task.get("truncate_source") else None,
    }
    return cast(dict[str, Any], state)


def _resume(
    resume: Any, self: Trainer, filename: str, reset_optimizer: bool = False,
    *args: Any, **options: Any,
) -> Any:  # fmt: skip
    """Compare the record of a training's first checkpoint, whose state fairseq's trainer ignores."""
    _log_text_of(plain_options(self.cfg))
    if not hasattr(self.task, "check_record"):  # other tasks log their records
        here = identity_of({"cfg": self.cfg}, "this run")
        log_record(here)
    vars(self)[PROCESSES] = [uuid4().hex[:8]]
    if Path(filename).is_file():
        state = load_checkpoint(Path(filename))
        if not reset_optimizer:
            vars(self)[PROCESSES][:0] = (state.get("extra_state") or {}).get(PROCESSES, [])
        trained = identity_of(state, filename)
        encoder = getattr(self.model, "encoder", None)
        if hasattr(self.task, "check_record"):
            if not reset_optimizer:
                self.task.continue_training(trained)
            self.task.check_record(trained, filename, "train")
            here = self.task.identity
        else:
            if not reset_optimizer:
                vars(self)[NUMBER] = trained.value("training")
            compare(
                begin_neutrally(trained, here, encoder, filename, None), here, "train",
                trained_name=filename, here_name="this run", has_options=False,
            )  # fmt: skip
        added = trained.value("encoder") != here.value("encoder")
        if not self.is_fsdp:
            saved, own = state.get("model", {}), self.model.state_dict()
            check_sizes(saved, own, filename)
            check_ties(saved, own, filename)
            names = set(getattr(encoder, "neutral_parameters", ()))
            added |= any(not names.isdisjoint(new.split(".")) for new in own.keys() - saved.keys())
        if added and not reset_optimizer:
            raise UserError(
                f"{filename} has no optimizer's state for the parameters that {here.value('encoder')} "
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
    """Store the processes, and what fairseq's own tasks do not: the training's number, the data."""
    made = vars(self)
    state = {**extra_state, NUMBER: made.setdefault(NUMBER, uuid4().hex[:8])}
    state[PROCESSES] = made.get(PROCESSES, [])
    if not hasattr(self.task, "check_record"):
        if DATA not in made:
            made[DATA] = _data_of(plain_options(self.cfg.task)).as_dict()
        state[DATA] = made[DATA]
    return save(self, filename, state)


def _compare_data(load: Any, self: FairseqTask, state_dict: dict[str, Any]) -> None:
    """Compare the dictionaries of fairseq's own task with those of a model that it uses."""
    if "identity" in state_dict and not hasattr(self, "check_record"):
        path, cfg = state_dict.get("checkpoint", "the checkpoint"), plain_options(options_of(self))
        here = _data_of(cfg)
        here = here.only("source", "target")
        trained = Identity.from_dict(state_dict["identity"], path)
        own = {name: each for name, each in trained.entries.items() if name in here.entries}
        compare(
            replace(trained, entries=own), here, "use", trained_name=path,
            here_name=f"this run on {cfg.get('data')}", has_options=False,
        )  # fmt: skip
    load(self, state_dict)


def _load_untied(
    load: Any, self: BaseFairseqModel, state_dict: Any, *args: Any, **options: Any
) -> Any:
    """Check a model's shared parameters, and rename old ones, before fairseq loads them."""
    own = self.state_dict()
    rename_old_parameters(state_dict, own)
    check_ties(state_dict, own, "this checkpoint")
    return load(self, state_dict, *args, **options)
