"""Read checkpoints and bundles for inference: models, data directory and languages. Choose a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq.utils import split_paths
from omegaconf import open_dict

from fairseq_phrase.checkpoints.identity import identity_of
from fairseq_phrase.checkpoints.loading import (
    SavedModel,
    build_models,
    languages_of,
    read_checkpoint,
)
from fairseq_phrase.data.store.identity import Identity
from fairseq_phrase.data.store.manifest import Manifest, data_identity
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.bundle import is_bundle, read_bundle, translates

#: fairseq's own task reads the same data, but not raw text.
_STOCK, _OWN = "translation", "syntax_translation"
#: Reads a checkpoint or a bundle.
Read = Callable[[Path], SavedModel]


def load_ensemble(
    paths: str, data: str | Path | None = None, source_parser: str | None = None, **identity: Any
) -> tuple[list[Any], Any]:
    """Load the models that a path names, for inference, and their task.

    Args:
        paths: a checkpoint or a bundle; several, separated by ``:``, are an ensemble.
        data: the data directory; by default the bundle itself, or the directory recorded in the
            checkpoint.
        **identity: see :func:`fairseq_phrase.inference.translator.load`.

    Raises:
        UserError: a file is missing or damaged, the model does not translate, or the data have moved.
    """
    saved, directory, (source, target) = models_and_data(paths, data)
    Manifest.load(split_paths(directory)[0], source)
    languages = {"source_lang": source, "target_lang": target}
    return build_models(saved, directory, source_parser=source_parser, **languages, **identity)


def data_and_parser_of(paths: str, data: str | Path | None, read: Read) -> tuple[Identity, str]:
    """Return the record of the data that a model is used with, and the name of their parser.

    Args:
        paths: see :func:`models_and_data`, also for the other arguments and errors.
    """
    _, directory, (source, target) = models_and_data(paths, data, read)
    first = split_paths(directory)[0]
    return data_identity(first, source, target), Manifest.load(first, source).parser


def read_identity(path: Path) -> Identity:
    """Return the identity record of a checkpoint or a bundle, without its model.

    Raises:
        UserError: the checkpoint or the bundle is missing or damaged.
    """
    saved = read_bundle(path) if is_bundle(path) else read_checkpoint(path)
    return identity_of(saved.state, path)


def read_translator(path: Path) -> SavedModel:
    """Read a checkpoint or a bundle; a model of fairseq's own task gets this package's.

    Raises:
        UserError: it is missing or damaged, or the model does not translate.
    """
    if path.is_dir() and not is_bundle(path):
        raise UserError(
            f"{path} is a folder, but not a bundle: name a checkpoint in it, or make a bundle with "
            "fairseq-phrase-export"
        )
    saved = read_bundle(path) if is_bundle(path) else read_checkpoint(path)
    name = saved.name("task")
    if name == _STOCK:
        with open_dict(saved.task_config):
            saved.task_config.update(
                _name=_OWN, source_parser=None, allow_difference=None, strict_identity=False
            )
    elif not translates(saved):
        raise UserError(
            f"{saved.path} was trained by the task {name}: only models of the tasks {_OWN} and {_STOCK} "
            "translate"
        )
    return saved


def models_and_data(
    paths: str, data: str | Path | None, read: Read = read_translator
) -> tuple[list[SavedModel], str, tuple[str, str]]:
    """Read models; return them, their data directory, and the languages.

    Args:
        paths: checkpoints or bundles, separated by ``:``.
        data: the data directory, or None for that of the models.
        read: reads a model; it refuses a model of another kind.

    Raises:
        UserError: a file is missing, damaged or of another kind, or the data have moved.
    """
    saved = list(map(read, map(Path, split_paths(str(paths)))))
    directory = str(data) if data is not None else _recorded_directory(saved)
    return saved, directory, languages_of(saved[0], split_paths(directory)[0])


def _recorded_directory(saved: Sequence[SavedModel]) -> str:
    for model in saved:
        if is_bundle(model.path):
            return str(model.path)
    directory = str(saved[0].task_config.data)
    if not Path(split_paths(directory)[0]).is_dir():
        raise UserError(
            f"{saved[0].path} was trained with the data directory {directory}, which is not there "
            f"(from {Path.cwd()}): name the data directory, the argument data"
        )
    return directory


def device_named(name: str | None) -> torch.device:
    """Return the device of a name, ``cpu`` or ``cuda:1``; for None the GPU if there is one, else the CPU.

    Raises:
        UserError: the device does not exist.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        if reason.startswith("Expected one of"):  # torch lists more than twenty kinds
            reason = "expected cpu, cuda or cuda:1"
        raise UserError(f"device {name}: {reason}") from None
    return device
