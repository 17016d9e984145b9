"""The options of checkpoints: of models and tasks that are registered with fairseq, and earlier ones."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_NAME_REGISTRY,
    ARCH_MODEL_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
    MODEL_REGISTRY,
)
from fairseq.models.transformer import TransformerModelBase
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from omegaconf import OmegaConf, open_dict

from fairseq_phrase.checkpoints.trust import plain_options
from fairseq_phrase.data.store.identity import OF_DECODER, UNKNOWN, Entry, matches, why_free
from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.config import FlatTransformerConfig, nested_config
from fairseq_phrase.methods.encoder_method import BROKEN, ENCODERS, EncoderMethod
from fairseq_phrase.models.named_encoder import LOST_OPTIONS

#: Options of development versions that were removed, and the value that models have today.
REMOVED_OPTIONS: dict[str, Any] = {
    "attention_output": "tanh",
    "distance_strength": 0.5,
    "fast_dropout": False,
    "han_sentences": "dependencies",
    "leave_unmasked_prob": 0.1,
    "mask_phrase_words": 4,
    "mask_phrases": "constituents",
    "next_sentence_weight": 1.0,
    "no_sequential_absolute": False,
    "parent_heads": "all",
    "parent_ignoring": 0.0,
    "parent_std": 1.0,
    "parse_loss_layer": 0,
    "path_branches": 4,
    "path_levels": 16,
    "predict_fraction": "1/6",
    "random_token_prob": 0.1,
    "sequential_relative": False,
    "source_factors_combine": "sum",
    "source_factors_dim": None,
    "structural_absolute": False,
    "structural_relative": False,
    "subword_sampling": 0.0,
    "tree_planting_heads": 1,
    "tree_planting_layer": 0,
    "tree_planting_trees": "heads",
    "tree_regularization_heads": 0,
    "tree_regularization_layer": 0,
    "window_size": 10,
}


def sections_of(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a checkpoint's model and task; fairseq 0.10 and older had one namespace."""
    sections, older = plain_options(state.get("cfg")), state.get("args")
    model, task = (plain_options(sections.get(part) or older) for part in ("model", "task"))
    return model, task


def name_of(cfg: Any) -> str | None:
    """Return the name of a model or a task; a model without a data class has only its architecture's.

    Args:
        cfg: a checkpoint's configuration of its model or task.
    """
    name = getattr(cfg, "_name", None) or getattr(cfg, "arch", None)
    return None if name is None else str(name)


def check_name(part: str, name: object, path: str | Path) -> None:
    """Check that the model or the task of a checkpoint is registered.

    Args:
        part: ``model`` or ``task``.
        path: the checkpoint's file.

    Raises:
        UserError: it is not.
    """
    if name not in (ARCH_MODEL_REGISTRY if part == "model" else TASK_REGISTRY):
        unknown = (
            "which neither fairseq nor this package has: install the package that defines it, or import "
            "it, in a command by --user-dir FOLDER"
        )
        raise UserError(f"{path} holds a {part} '{name}', {BROKEN.get(str(name), unknown)}")


def model_options(values: Mapping[str, Any]) -> list[Field[Any]]:
    """Return the options of a model: of its dataclass, or of fairseq's Transformer, if it is one.

    Of other architectures, nothing says which options are the model's.

    Args:
        values: a configuration, as :func:`plain_options` returns it.
    """
    name = str(values.get("_name") or values.get("arch") or "")
    dataclass = MODEL_DATACLASS_REGISTRY.get(name)
    if dataclass is None and issubclass(
        ARCH_MODEL_REGISTRY.get(name, object), TransformerModelBase
    ):
        dataclass = FlatTransformerConfig
    return list(fields(dataclass)) if dataclass else []


def encoder_options(
    values: Mapping[str, Any],
) -> tuple[EncoderMethod | None, dict[str, Field[Any]]]:
    """Return a model's encoder, and the model's options by name, without those of other encoders."""
    options = {option.name: option for option in model_options(values)}
    choice = options.get("encoder")
    model = MODEL_REGISTRY.get(values.get("_name") or values.get("arch") or "")
    encoder = values.get("encoder", choice.default if choice else None)
    method = getattr(model, "method", ENCODERS.get(str(encoder)))
    if method or choice:
        of_all = {
            option.name for encoder_method in ENCODERS.values() for option in encoder_method.options
        }
        foreign = of_all - {option.name for option in (method.options if method else ())}
        options = {name: option for name, option in options.items() if name not in foreign}
    return method, options


def later_options_of(values: Mapping[str, Any]) -> list[Field[Any]]:
    """Return the options of a model that models were trained before, without those of other encoders.

    Args:
        values: the model's ``_name`` or ``arch``, and its ``encoder`` if it names one.
    """
    _, options = encoder_options(values)
    return [option for option in options.values() if "before" in option.metadata]


def with_architecture(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a model with those that its architecture fills in.

    fairseq does so when it parses flags. A file of an older version lacks the later options.

    Args:
        options: a configuration. One without ``arch`` is complete, and so is that of a model with a
            data class: fairseq registers a function under its name that adds nothing.
    """
    complete = Namespace(**options)
    with suppress(Exception):  # it may expect flags that a parser sets
        ARCH_CONFIG_REGISTRY.get(options.get("arch"), lambda _: None)(complete)
    return vars(complete)


def model_entries(cfg: Any) -> dict[str, Entry]:
    """Make the entries of a model: its encoder's name and its options.

    Args:
        cfg: a checkpoint's configuration of its model, or a training's configuration of it.
    """
    values = with_architecture(plain_options(cfg))
    # fairseq also shares the output, but only some architectures set the option.
    if values.get("share_all_embeddings") or values.get("merge_src_tgt_embed"):
        values["share_decoder_input_output_embed"] = True
    name = values.get("_name") or values.get("arch") or ""
    method, options = encoder_options(values)
    encoder = method.name if method else ARCH_MODEL_NAME_REGISTRY.get(name, name)
    # BART's encoder is fairseq's Transformer.
    if encoder == "bart" or (method and _is_plain(method.encoder, options, values)):
        encoder = "transformer"
    of_decoder = [option for option in options.values() if matches(option.name, OF_DECODER)]
    of_encoder = [option for option in options.values() if option not in of_decoder]
    return {
        **option_entries(of_encoder, values, "encoder"),
        **option_entries(of_decoder, values, "decoder"),
        "encoder": Entry(encoder, encoder, "encoder"),
    }


def _is_plain(encoder: Any, options: Mapping[str, Field[Any]], values: Mapping[str, Any]) -> bool:
    """Return whether all options of an encoder are off, which makes it fairseq's."""
    defaults = {
        name: option.default for name, option in options.items() if option.default is not MISSING
    }
    cfg = nested_config(Namespace(**{**defaults, **values}))
    return hasattr(encoder, "is_plain") and bool(encoder.is_plain(cfg))


def task_entries(cfg: Any) -> dict[str, Entry]:
    """Make the entries of a task's options; of a task without a dataclass, only its language tags.

    Args:
        cfg: a checkpoint's configuration of its task, or a training's configuration of it.
    """
    values = plain_options(cfg)
    name = values.get("_name") or values.get("task")
    if values.get("truncate_source"):
        values["truncate_source"] = f"to {values.get('max_source_positions')}"
    dataclass = TASK_DATACLASS_REGISTRY.get(name, type(cfg) if is_dataclass(cfg) else None)
    entries = option_entries(fields(dataclass) if dataclass else (), values, "task")
    # An mBART model may have tags of all folders of its data.
    tags = str(values.get("langs") or (UNKNOWN if "denoising" in str(name) else ""))
    if tags == UNKNOWN or (tags and "langs" not in entries):
        entries["langs"] = Entry(tags, tags, "source", default="None")
    return entries


def option_entries(
    options: Iterable[Field[Any]], values: Mapping[str, Any], part: str
) -> dict[str, Entry]:
    """Make the entries of options, except free options.

    A difference is refused, unless the option's metadata have ``identity: may`` (a warning) or
    ``identity: free``, or :data:`fairseq_phrase.data.store.identity.FREE_OPTIONS` has its name.

    Args:
        values: the values of a configuration, by option. A missing option has its default, or the
            value that models had before the option existed.
        part: one of :data:`fairseq_phrase.data.store.identity.PARTS`. Metadata ``part`` overrule it.
    """
    entries = {}
    for option in options:
        kind = identity_kind(option)
        if kind != "free" and not option.name.startswith("_"):
            before = option.metadata.get("before", option.default)
            default = None if before is MISSING else _text(before, option, values)
            value = _text(values.get(option.name, before), option, values)
            name = option.name.replace("_", "-")
            entries[name] = Entry(value, value, option.metadata.get("part", part), kind, default)
    return entries


def identity_kind(option: Field[Any]) -> str:
    """Return how an option is compared: ``must``, ``may`` or ``free``."""
    kind = str(option.metadata.get("identity") or "must")
    is_free = why_free(option.name) and option.metadata.get("identity") != "must"
    return "free" if is_free else kind


def _text(value: Any, option: Field[Any], values: Mapping[str, Any]) -> str:
    """Write a value: interpolations are resolved, and whole numbers of float options are floats."""
    if isinstance(value, str) and (interpolation := _OF_MODEL.fullmatch(value)):
        value = values.get(interpolation[1])
    is_float = option.type is float and isinstance(value, int)
    return str(float(value) if is_float else None if value is MISSING else value)


_OF_MODEL = re.compile(r"\$\{model\.(\w+)\}")


def complete_options(state: dict[str, Any], path: str | Path) -> None:
    """Add the options that a model was trained before, with the values that it was trained with.

    Without them a model is built with the options' defaults.

    Args:
        state: the contents of a checkpoint or a bundle.
        path: its file.

    Raises:
        UserError: :func:`check_removed_options` raises it.
    """
    check_removed_options(state, path)
    # fairseq writes dictionaries, which it turns into its own configuration when it loads them.
    options: Any
    for options in ((state.get("cfg") or {}).get("model"), state.get("args")):
        is_namespace = isinstance(options, Namespace)
        if is_namespace:
            vars(options).update(with_architecture(vars(options)))
        values = plain_options(options)
        later = {option.name: option.metadata["before"] for option in later_options_of(values)}
        missing = {name: before for name, before in later.items() if name not in values}
        if OmegaConf.is_config(options):
            with open_dict(options):
                options.update(missing)
        elif missing:
            (vars(options) if is_namespace else options).update(missing)


def check_removed_options(state: Mapping[str, Any], path: str | Path) -> None:
    """Check that a model was trained with the values of options that no longer exist.

    Raises:
        UserError: an option has another value.
    """
    sections = plain_options(state.get("cfg"))
    for part, registry in (
        ("model", MODEL_DATACLASS_REGISTRY),
        ("task", TASK_DATACLASS_REGISTRY),
        ("criterion", REGISTRIES["criterion"]["dataclass_registry"]),
    ):
        values = plain_options(sections.get(part))
        kind = registry.get(str(values.get("_name")))
        existing = {option.name for option in fields(kind)} if kind else values.keys()
        existing = existing - LOST_OPTIONS.get(str(values.get("encoder")), set())
        for name in (values.keys() & REMOVED_OPTIONS.keys()) - existing:
            if str(values[name]) != str(REMOVED_OPTIONS[name]):
                raise UserError(
                    f"{path} was trained with --{name.replace('_', '-')} {values[name]}, an option "
                    f"which was removed; models now have the value {REMOVED_OPTIONS[name]}"
                )
