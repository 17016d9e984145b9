"""Options as entries of an identity record."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, is_dataclass
from typing import Any

from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY

from fairseq_phrase.checkpoints.registered_options import (
    declared_options,
    encoder_options,
    with_architecture,
)
from fairseq_phrase.checkpoints.trust import plain_options
from fairseq_phrase.data.store.identity import OF_DECODER, UNKNOWN, Entry, matches, why_free
from fairseq_phrase.models.config import nested_config


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


def model_entries(cfg: Any) -> dict[str, Entry]:
    """Make the entries of a model: its encoder's name and its options.

    Options of other encoders are omitted.

    Args:
        cfg: a checkpoint's configuration of its model, or a training's configuration of it.
    """
    values = with_architecture(plain_options(cfg))
    # fairseq also shares the output, but only some architectures set the option.
    if values.get("share_all_embeddings") or values.get("merge_src_tgt_embed"):
        values["share_decoder_input_output_embed"] = True
    name = values.get("_name") or values.get("arch") or ""
    method, options, foreign = encoder_options(values)
    encoder = method.name if method else ARCH_MODEL_NAME_REGISTRY.get(name, name)
    # BART's encoder is fairseq's Transformer.
    if encoder == "bart" or (method and _is_plain(method.encoder, options, values)):
        encoder = "transformer"
    parts: dict[str, list[Field[Any]]] = {"encoder": [], "decoder": []}
    for option in options.values():
        if option.name not in foreign or not (method or "encoder" in options):
            parts["decoder" if matches(option.name, OF_DECODER) else "encoder"].append(option)
    entries = {
        name: entry
        for part in parts
        for name, entry in option_entries(parts[part], values, part).items()
    }
    return {**entries, "encoder": Entry(encoder, encoder, "encoder")}


def task_entries(cfg: Any) -> dict[str, Entry]:
    """Make the entries of a task's options.

    Args:
        cfg: a checkpoint's configuration of its task, or a training's configuration of it.
    """
    values = plain_options(cfg)
    name = values.get("_name") or values.get("task")
    if values.get("truncate_source"):
        values["truncate_source"] = f"to {values.get('max_source_positions')}"
    dataclass = TASK_DATACLASS_REGISTRY.get(name, type(cfg) if is_dataclass(cfg) else None)
    options = declared_options(TASK_REGISTRY.get(name), dataclass)
    entries = option_entries(options, values, "task")
    if "denoising" in str(name) and not values.get("langs"):
        # An mBART model may have tags of all folders of its data.
        entries["langs"] = Entry(UNKNOWN, UNKNOWN, "source", default="None")
    return entries


def _is_plain(encoder: Any, options: Mapping[str, Field[Any]], values: Mapping[str, Any]) -> bool:
    """Return whether all options of an encoder are off, which makes it fairseq's."""
    defaults = {
        name: option.default for name, option in options.items() if option.default is not MISSING
    }
    cfg = nested_config(Namespace(**{**defaults, **values}))
    return hasattr(encoder, "is_plain") and bool(encoder.is_plain(cfg))
