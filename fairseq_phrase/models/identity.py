"""The identity record of a checkpoint: its model's options, and what is read from files of others.

A checkpoint of :mod:`fairseq_phrase.tasks` holds its record in the task's state. For one of stock
fairseq, what its configuration names is derived.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, replace
from pathlib import Path
from typing import Any, cast

from fairseq import checkpoint_utils
from fairseq.data import data_utils
from fairseq.dataclass.utils import overwrite_args_by_name
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from fairseq.trainer import Trainer
from fairseq.utils import split_paths
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_phrase.compat import load_checkpoint as load_checkpoint_file
from fairseq_phrase.compat import mend
from fairseq_phrase.errors import UserError
from fairseq_phrase.models.config import FlatTransformerConfig, nested_config
from fairseq_phrase.models.encoder_method import ENCODERS
from fairseq_phrase.models.syntax_encoder import neutral_obstacle
from fairseq_phrase.parsers import names_path
from fairseq_phrase.store.identity import Entry, Identity, compare
from fairseq_phrase.store.manifest import data_identity

#: Fields of a checkpoint's or a bundle's configuration that would make the program open files, or let
#: differences pass, which the user did not name, by section. They are removed when the file is read;
#: a parser is removed if its name is a path. The source of trees is that of the record, for each model of
#: an ensemble its own.
UNTRUSTED = {
    "model": ("encoder_embed_path", "decoder_embed_path", "huggingface_model"),
    "task": (
        *("source_parser", "allow_difference", "tree_source", "tree_seed"),
        *("pretrained", "pretrained_model"),
    ),
    "bpe": ("syntax_parser",),
    "tokenizer": ("syntax_parser",),
}
# fairseq's own options that change the function but not the shape of any parameter.
FAIRSEQS = (
    "activation_fn", "cross_self_attention", "decoder_attention_heads", "decoder_normalize_before",
    "encoder_attention_heads", "encoder_normalize_before", "no_decoder_final_norm",
    "no_scale_embedding", "no_token_positional_embeddings",
)  # fmt: skip


def option_entries(
    options: Iterable[Field[Any]], given: Mapping[str, Any], part: str
) -> dict[str, Entry]:
    """Make the entries of options.

    A difference in an option is refused, unless its metadata have ``identity: may`` (a warning) or
    ``identity: free`` (it is not recorded).

    Args:
        part: one of :data:`fairseq_phrase.store.identity.PARTS`.
    """
    entries = {}
    for option in options:
        kind = option.metadata.get("identity", "must")
        if kind != "free":
            default = None if option.default is MISSING else option.default
            value = str(given.get(option.name, default))
            name = option.name.replace("_", "-")
            entries[name] = Entry(value, value, part, kind, str(default))
    return entries


def model_entries(cfg: Any) -> dict[str, Entry]:
    """Make the entries of a model: its encoder's name and its options.

    Args:
        cfg: a checkpoint's configuration of its model, or that of a training.
    """
    given = plain(cfg)
    name = given.get("_name") or given.get("arch") or ""
    dataclass = MODEL_DATACLASS_REGISTRY.get(name)
    options = {option.name: option for option in fields(dataclass or FlatTransformerConfig)}
    method = getattr(MODEL_REGISTRY.get(name), "method", ENCODERS.get(given.get("encoder", "")))
    encoder = method.name if method else ARCH_MODEL_NAME_REGISTRY.get(name, name)
    of_encoders = {each.name for one in ENCODERS.values() for each in one.options} | {"encoder"}
    of_fairseq = {each.name for each in fields(FlatTransformerConfig)}
    of_encoder = {each.name for each in method.options} if method else set()
    # BART's encoder is fairseq's Transformer.
    if encoder == "bart" or (method and _is_plain(method.encoder, options, given)):
        encoder = "transformer"
    parts: dict[str, list[Field[Any]]] = {"encoder": [], "decoder": []}
    for option in options.values():
        if option.name in FAIRSEQS:
            # Old architectures of fairseq have no dataclass, but all values that they use.
            if dataclass or option.name in given:
                parts["decoder" if "decoder" in option.name else "encoder"].append(option)
        elif option.name in of_encoder:
            parts["encoder"].append(option)
        elif option.name not in of_fairseq | of_encoders:
            parts["decoder"].append(option)
    entries = {"encoder": Entry(encoder, encoder, "encoder")}
    for part, chosen in parts.items():
        entries |= option_entries(chosen, given, part)
    return entries


def _is_plain(encoder: Any, options: Mapping[str, Field[Any]], given: Mapping[str, Any]) -> bool:
    """Return whether no option of an encoder is on, so that it is fairseq's."""
    values = {name: each.default for name, each in options.items() if each.default is not MISSING}
    cfg = nested_config(Namespace(**{**values, **given}))
    return hasattr(encoder, "is_plain") and bool(encoder.is_plain(cfg))


def plain(cfg: Any) -> dict[str, Any]:
    """Return a configuration of any kind as a dictionary."""
    if OmegaConf.is_config(cfg):
        cfg = OmegaConf.to_container(cfg, enum_to_str=True)
    return dict(cfg) if isinstance(cfg, Mapping) else dict(vars(cfg) if cfg else {})


def identity_of(state: dict[str, Any], path: str | Path) -> Identity:
    """Return the record of a checkpoint; without one, what can be derived.

    Raises:
        UserError: the record is damaged.
    """
    recorded = (state.get("task_state") or {}).get("identity")
    if recorded is not None:
        return Identity.from_dict(recorded, path)
    sections = plain(state.get("cfg"))
    entries = model_entries(sections.get("model") or state.get("args"))
    task = plain(sections.get("task") or state.get("args"))
    directory = split_paths(str(task.get("data") or "."))[0]
    if task.get("data") and Path(directory).is_dir():
        source, target = task.get("source_lang"), task.get("target_lang")
        if source is None:
            source, target = data_utils.infer_language_pair(directory)
        if source is not None:
            data = data_identity(directory, source, target).only("languages", "source", "target")
            entries |= data.entries
    return Identity(entries, is_whole=False)


def begin_neutrally(
    trained: Identity, here: Identity, encoder: Any, path: str | Path, allow: str | None
) -> Identity:
    """Let an encoder begin from fairseq's, if it computes the same at the start.

    Args:
        allow: names of entries that may differ, as in :func:`~fairseq_phrase.store.identity.compare`.

    Returns:
        The record of the checkpoint; if the encoder differs, with the entries that this adds.

    Raises:
        UserError: the encoder does not compute fairseq's at the start.
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
    method = ENCODERS[str(name)]
    own = {"encoder", *(option.name.replace("_", "-") for option in method.options)}
    added = {
        each: entry
        for each, entry in here.entries.items()
        if each in own or entry.part in ("labels", "parser", "trees")
    }
    return replace(trained, entries={**trained.entries, **added})


def check_sizes(saved: Mapping[str, Tensor], own: Mapping[str, Tensor], path: str | Path) -> None:
    """Check that the parameters of a checkpoint have the sizes of a model.

    Args:
        saved: the checkpoint's parameters, by name.

    Raises:
        UserError: number of layers, dictionary or another size differ.
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


def check_trusted(state: dict[str, Any], path: str | Path) -> None:
    """Remove the values of a configuration that name files, and refuse interpolations.

    Args:
        state: what a checkpoint or a bundle holds.

    Raises:
        UserError: a value is an interpolation, which could read the environment.
    """
    for name, value in _texts(state.get("cfg") or state.get("args"), "cfg"):
        if "${" in value:
            raise UserError(
                f"{path} was not loaded: its {name} is the interpolation {value}, which fairseq does not "
                "save, and which could read this machine's environment"
            )
    for section, names in UNTRUSTED.items():
        for part in (state.get("args"), getattr(state.get("cfg"), section, None)):
            for name in names:
                given = getattr(part, name, None)
                if given is not None and (not name.endswith("parser") or names_path(str(given))):
                    setattr(part, name, None)


def _texts(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield all texts in a configuration, with their names."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, name)
    elif OmegaConf.is_config(value) or isinstance(value, Mapping | Namespace):
        for key, inner in plain(value).items():
            yield from _texts(inner, f"{name}.{key}")


def guard_checkpoints() -> None:
    """Make fairseq's commands compare the records of the checkpoints that they load."""
    mend(checkpoint_utils, "load_checkpoint_to_cpu", _load_with_record)
    mend(Trainer, "load_checkpoint", _resume)


def _load_with_record(read: Any, path: str, *args: Any, **options: Any) -> dict[str, Any]:
    """Put the record and the checkpoint's path into the task's state.

    fairseq gives this state to the task before it builds a trained model.
    """
    state = read(path, *args, **options)
    check_trusted(state, path)
    overrides = options.get("arg_overrides", args[0] if args else None)
    if overrides and state.get("cfg"):
        overwrite_args_by_name(state["cfg"], overrides)  # these the user named
    state["task_state"] = {
        **(state.get("task_state") or {}),
        "identity": identity_of(state, path).as_dict(),
        "checkpoint": path,
    }
    return cast(dict[str, Any], state)


def _resume(
    resume: Any, self: Trainer, filename: str, reset_optimizer: bool = False,
    *args: Any, **options: Any,
) -> Any:  # fmt: skip
    """Compare the record of a training's first checkpoint, whose state fairseq's trainer ignores."""
    if Path(filename).is_file():
        state = load_checkpoint_file(Path(filename))
        trained = identity_of(state, filename)
        if hasattr(self.task, "meet"):
            self.task.meet(trained, filename, "train")
            here = self.task.identity
        else:
            here = identity_of({"cfg": self.cfg}, "this run")
            encoder = getattr(self.model, "encoder", None)
            compare(
                begin_neutrally(trained, here, encoder, filename, None), here, "train",
                trained_name=filename, here_name="this run",
            )  # fmt: skip
        if not self.is_fsdp:
            check_sizes(state.get("model", {}), self.model.state_dict(), filename)
        if not reset_optimizer and trained.value("encoder") != here.value("encoder"):
            raise UserError(
                f"{filename} has no optimizer's state for the parameters that "
                f"{here.value('encoder')} adds: give --finetune-from-model {filename}, or "
                "--reset-optimizer and the other --reset-* with --restore-file"
            )
    return resume(self, filename, reset_optimizer, *args, **options)
