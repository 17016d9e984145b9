"""The options of models, tasks and other parts that are registered with fairseq."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import ARCH_CONFIG_REGISTRY, MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from omegaconf import OmegaConf, open_dict

from fairseq_phrase.checkpoints.trust import plain_options
from fairseq_phrase.errors import UserError
from fairseq_phrase.models.config import FlatTransformerConfig
from fairseq_phrase.models.encoder_method import ENCODERS, EncoderMethod

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
    "parent_heads": "all",
    "parent_ignoring": 0.0,
    "parent_std": 1.0,
    "parse_loss_layer": 0,
    "path_branches": 4,
    "path_levels": 16,
    "predict_fraction": "1/6",
    "random_token_prob": 0.1,
    "source_factors_combine": "sum",
    "source_factors_dim": None,
    "tree_planting_heads": 1,
    "tree_planting_layer": 0,
    "tree_regularization_heads": 0,
    "tree_regularization_layer": 0,
    "window_size": 10,
}


def encoder_options(
    values: Mapping[str, Any],
) -> tuple[EncoderMethod | None, dict[str, Field[Any]], set[str]]:
    """Return a model's encoder, its options by name, and the names of other encoders' options."""
    options = {option.name: option for option in model_options(values)}
    encoder = values.get("encoder", options["encoder"].default if "encoder" in options else None)
    model = MODEL_REGISTRY.get(values.get("_name") or values.get("arch") or "")
    method = getattr(model, "method", ENCODERS.get(str(encoder)))
    of_encoder = {option.name for option in method.options} if method else set()
    of_all = {option.name for encoder in ENCODERS.values() for option in encoder.options}
    return method, options, of_all - of_encoder


def model_options(values: Mapping[str, Any]) -> list[Field[Any]]:
    """Return the options of a model: the options of its dataclass, or all that no other part has.

    The configuration of an old architecture, without a dataclass, has the options of all parts.

    Args:
        values: a configuration, as :func:`plain_options` returns it.
    """
    name = values.get("_name") or values.get("arch") or ""
    if name in MODEL_DATACLASS_REGISTRY:
        return list(fields(MODEL_DATACLASS_REGISTRY[name]))
    by_name = {option.name: option for option in fields(FlatTransformerConfig)}
    defaults = _architecture_defaults(name)
    options = []
    for option_name in values.keys() - (_of_other_parts(values) - by_name.keys()):
        default, kind = MISSING, None
        if option_name in by_name:
            default, kind = by_name[option_name].default, by_name[option_name].type
        option: Any = field(default=defaults.get(option_name, default))
        option.name, option.type = option_name, kind
        options.append(option)
    return sorted(options, key=lambda option: option.name)


def with_architecture(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a model with those that its architecture fills in.

    fairseq does so when it parses flags. A file of an older version lacks the later options.

    Args:
        options: a configuration. One without ``arch`` is complete, and so is that of a model with a
            data class: fairseq registers a function under its name that adds nothing.
    """
    complete = Namespace(**options)
    _fill_in(options.get("arch"), complete)
    return vars(complete)


def _fill_in(architecture: Any, options: Namespace) -> None:
    """Call fairseq's function of an architecture, if there is one."""
    with suppress(Exception):  # it may expect flags that a parser sets
        ARCH_CONFIG_REGISTRY.get(architecture, lambda _: None)(options)


@lru_cache
def _architecture_defaults(name: str) -> dict[str, Any]:
    """Return the options that fairseq's function of an architecture fills in."""
    options = Namespace()
    _fill_in(name, options)
    return vars(options)


def _of_other_parts(values: Mapping[str, Any]) -> set[str]:
    """Return the options of fairseq's commands, and of the named task, criterion, …."""
    names = {"arch"}
    for part in fields(FairseqConfig):
        names.add(part.name)
        names |= {option.name for option in fields(part.type)} if is_dataclass(part.type) else set()
    kinds = {
        **REGISTRIES,
        "task": {"registry": TASK_REGISTRY, "dataclass_registry": TASK_DATACLASS_REGISTRY},
    }
    for kind, registries in kinds.items():
        part_class, dataclass = (registries[name].get(values.get(kind)) for name in _REGISTRIES)
        names |= {option.name for option in declared_options(part_class, dataclass)}
    return names


_REGISTRIES = ("registry", "dataclass_registry")
_DATACLASSES: dict[str, dict[str, Any]] = {
    "model": MODEL_DATACLASS_REGISTRY,
    "task": TASK_DATACLASS_REGISTRY,
    "criterion": REGISTRIES["criterion"]["dataclass_registry"],
}


def declared_options(kind: Any, dataclass: type | None) -> list[Field[Any]]:
    """Return the options of a registered class, of its dataclass or of the parser flags that it adds."""
    if dataclass is not None:
        return list(fields(dataclass))
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    getattr(kind, "add_args", lambda _: None)(parser)
    options = []
    for action in parser._actions:
        option: Any = field(default=action.default)
        option.name, option.type = action.dest, None
        options.append(option)
    return options


def later_options_of(values: Mapping[str, Any]) -> list[Field[Any]]:
    """Return the options of a model that models were trained before, without those of other encoders.

    Args:
        values: the model's ``_name`` or ``arch``, and its ``encoder`` if it names one.
    """
    _, options, foreign = encoder_options(values)
    return [
        option
        for option in options.values()
        if "before" in option.metadata and option.name not in foreign
    ]


def check_removed_options(state: Mapping[str, Any], path: str | Path) -> None:
    """Check that a model was trained with the values of options that no longer exist.

    Raises:
        UserError: an option has another value.
    """
    sections = plain_options(state.get("cfg"))
    for part, registry in _DATACLASSES.items():
        values = plain_options(sections.get(part))
        kind = registry.get(str(values.get("_name")))
        removed = (
            REMOVED_OPTIONS.keys() - {option.name for option in fields(kind)} if kind else set()
        )
        for name in values.keys() & removed:
            if str(values[name]) != str(REMOVED_OPTIONS[name]):
                raise UserError(
                    f"{path} was trained with --{name.replace('_', '-')} {values[name]}, an option "
                    f"which was removed; models now have the value {REMOVED_OPTIONS[name]}"
                )


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
        if isinstance(options, Namespace):
            vars(options).update(with_architecture(vars(options)))
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
