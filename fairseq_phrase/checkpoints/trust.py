"""Options in the files of others: data that are read, and never code that is run.

A checkpoint or a bundle has options that fairseq evaluates, and options that name files.
"""

from __future__ import annotations

import ast
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf

from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import names_path

#: By section, fields of a checkpoint's or a bundle's configuration that would open files, or permit
#: differences, which the user did not name. They are removed when the file is read; a parser is
#: removed if its name is a path. Trees and source factors come from the record, separately for each
#: model of an ensemble.
UNTRUSTED = {
    "model": ("encoder_embed_path", "decoder_embed_path", "huggingface_model"),
    "task": (
        *("source_parser", "allow_difference", "tree_source", "tree_seed"),
        *("source_factors", "source_factors_dim", "pretrained", "pretrained_model"),
    ),
    "bpe": ("syntax_parser",),
    "tokenizer": ("syntax_parser",),
}
#: Options of fairseq's commands, which old configurations store with the model's options. Models ignore
#: them.
_OF_COMMANDS = {"data"} | {
    option.name
    for section in fields(FairseqConfig)
    for option in getattr(section.type, "__dataclass_fields__", {}).values()
}


def plain_options(cfg: Any) -> dict[str, Any]:
    """Return a configuration of any kind as a dictionary."""
    if OmegaConf.is_config(cfg):
        cfg = OmegaConf.to_container(cfg, enum_to_str=True)
    return dict(cfg) if isinstance(cfg, Mapping) else dict(vars(cfg) if cfg else {})


def check_trusted(state: dict[str, Any], path: str | Path) -> None:
    """Remove the values of a configuration that name files, and refuse interpolations and code.

    Args:
        state: the contents of a checkpoint or a bundle.

    Raises:
        UserError: a value is an interpolation, which could read the environment, or code that fairseq
            would run.
    """
    for name, value in _texts(state.get("cfg") or state.get("args"), "cfg"):
        if "${" in value:
            raise UserError(
                f"{path} was not loaded: its {name} is the interpolation {value}, which fairseq does not "
                "save, and which could read this machine's environment"
            )
        if would_run(name.rpartition(".")[2], value):
            raise UserError(
                f"{path} was not loaded: its {name} is {value!r}, which could run as code"
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
        for key, inner in plain_options(value).items():
            yield from _texts(inner, f"{name}.{key}")


def would_run(option: str, value: str) -> bool:
    """Return whether the text of an option would call a function when evaluated, as fairseq's models do.

    fairseq evaluates ``--adaptive-softmax-cutoff``, ``--decoder-xformers-att-config`` and others.
    """
    if option in _OF_COMMANDS:
        return False
    try:
        expression = ast.parse(value.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return any(isinstance(node, ast.Call) for node in ast.walk(expression))
