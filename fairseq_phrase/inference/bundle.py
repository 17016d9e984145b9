"""Bundles: one folder with all files that translation needs. None of them is a pickle or runs code.

A model hub takes the folder. ``config.json`` holds, in its entry ``bundle``, the model's and the task's
configuration and the checksums of the other files: the weights (``model.safetensors``), fairseq's
dictionaries, the label dictionaries, the subword model, and the manifest, which names the parser.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch
from fairseq.tasks import TASK_REGISTRY
from fairseq.utils import split_paths
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from safetensors import SafetensorError
from safetensors.torch import load_file, save

import fairseq_phrase
from fairseq_phrase.checkpoints.identity import RecordingTask, identity_of
from fairseq_phrase.checkpoints.loading import (
    SavedModel,
    build_models,
    languages_of,
    read_checkpoint,
    register_all,
)
from fairseq_phrase.checkpoints.options import complete_options
from fairseq_phrase.checkpoints.trust import check_trusted
from fairseq_phrase.data.store.identity import Identity
from fairseq_phrase.data.store.layout import with_labels
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.outputs import only_writer
from fairseq_phrase.data.subwords.segmenters import SEGMENTER_GROUP, model_name
from fairseq_phrase.data.subwords.text_encoder import segmenter_of
from fairseq_phrase.errors import UserError, named_in_errors
from fairseq_phrase.inference.model_card import CardOptions, model_card
from fairseq_phrase.methods.phrases.phrase_sources import PHRASE_SOURCE_GROUP
from fairseq_phrase.models.architectures import ENCODER_GROUP
from fairseq_phrase.parsers import PARSER_GROUP, names_path, without_path
from fairseq_phrase.syntax.fields import FIELD_GROUP
from fairseq_phrase.tasks.syntax_labelling import SyntaxLabellingTask
from fairseq_phrase.tasks.syntax_translation import SyntaxTranslationTask
from fairseq_phrase.text import digest_of, read_json

logger = logging.getLogger(__name__)
FORMAT_VERSION = 2
CONTENTS, WEIGHTS = "config.json", "model.safetensors"
#: The entry of :data:`CONTENTS` with the bundle's content; other entries are for hubs and transformers.
_ENTRY = "bundle"
#: The errors that files with other content than a bundle's raise when they are read.
_DAMAGES = (
    *(ValueError, KeyError, TypeError, AttributeError, RecursionError),
    *(SafetensorError, OmegaConfBaseException),
)


def is_bundle(path: Path) -> bool:
    """Return whether a path is a bundle, or looks like one."""
    return (path / CONTENTS).is_file()


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Make a folder that gets its name only when it is complete.

    Yields:
        The folder to fill, which is removed after an error.

    Raises:
        UserError: the folder exists already, or another process makes it.
    """
    if out.exists():
        raise UserError(f"{out} exists already: name a folder that does not, or remove it")
    partial = out.with_name(out.name + ".partial")
    out.parent.mkdir(parents=True, exist_ok=True)
    with only_writer(out):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            with named_in_errors(partial):
                yield partial
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        os.replace(partial, out)


def write_bundle(
    checkpoint: Path,
    data: str | Path,
    folder: Path,
    source_parser: str | None = None,
    card: CardOptions | None = None,
    config: Mapping[str, Any] | None = None,
    **identity: Any,
) -> None:
    """Write a bundle.

    Args:
        data: its data directory; the first of ``data1:data2`` is copied.
        folder: an empty folder, see :func:`new_folder`.
        source_parser: the parser's name on other machines, if the manifest names a path.
        card: additions to the model card.
        config: more entries of ``config.json``, for transformers.
        **identity: see :func:`fairseq_phrase.inference.translator.load`.

    Raises:
        UserError: the checkpoint or the data are missing, do not fit together or cannot be exported; or
            the file of scores cannot be read.
    """
    saved = read_checkpoint(checkpoint)
    require_exportable(saved)
    directory = Path(split_paths(str(data))[0])
    languages = languages_of(saved, directory)
    manifest = Manifest.load(directory, languages[0])
    segmenter_of(directory, manifest)  # without a subword model, a bundle cannot be used
    parser = without_path(source_parser or manifest.parser)
    if names_path(parser):
        logger.warning(
            "the parser %s is a folder, which is not in the bundle: give it with the bundle, and name it "
            "with --source-parser where the bundle is used; or export with --source-parser NAME, that of "
            "an installed package", source_parser or manifest.parser,
        )  # fmt: skip
    manifest = replace(manifest, splits={}, parser=parser)
    # The checkpoint and the data fit, or the difference is allowed and recorded.
    _, task = build_models([saved], directory, source_parser=source_parser, **identity)
    is_recorded = isinstance(task, RecordingTask)
    record = task.identity if is_recorded else identity_of(saved.state, checkpoint)
    saved.state["task_state"] |= {"identity": record.as_dict(), "checkpoint": ""}
    described = _described(saved, languages)
    described["aliases"] = write_weights(saved.state["model"], folder / WEIGHTS)
    names = [f"dict.{language}.txt" for language in languages]
    names += [manifest.bpe_model] if manifest.bpe_model else []
    if manifest.target_bpe not in ("", manifest.bpe):
        names.append(manifest.target_model or model_name(manifest.target_bpe))
    names += [
        name for name in with_labels(manifest.fields).values() if (directory / name).is_file()
    ]
    for name in dict.fromkeys(names):
        shutil.copyfile(directory / name, folder / name)
    manifest.save(folder)
    described["files"] = {path.name: digest_of(path) for path in sorted(folder.iterdir())}
    packages = packages_of(record, manifest)
    text = model_card(record, manifest, languages, packages, card or CardOptions(), saved.state)
    (folder / "README.md").write_text(text, encoding="utf-8")
    kind = {"model_type": "fairseq_phrase", "architectures": ["FairseqPhraseModel"]}
    content = {**kind, **(config or {}), _ENTRY: described}
    text = json.dumps(content, indent=2, ensure_ascii=False)
    (folder / CONTENTS).write_text(text + "\n", encoding="utf-8")


def packages_of(record: Identity, manifest: Manifest) -> list[str]:
    """Name the installed packages that define a bundle's model or its parser."""
    used: dict[str, tuple[str, ...]] = {
        ENCODER_GROUP: (record.value("encoder") or "",),
        FIELD_GROUP: tuple(manifest.fields),
        PHRASE_SOURCE_GROUP: ((record.value("phrase-source") or "").partition(":")[0],),
        SEGMENTER_GROUP: (manifest.bpe, manifest.target_bpe),
        PARSER_GROUP: (manifest.parser.partition(":")[0],),
    }
    packages = {
        entry.dist.name
        for group, names in used.items()
        for entry in entry_points(group=group)
        if entry.name in names and entry.dist is not None
    }
    return sorted(packages)


def translates(saved: SavedModel) -> bool:
    """Return whether a model's task translates, or is unknown; building the model reports the latter."""
    name = saved.name("task")
    return (
        name == "translation"
        or name not in TASK_REGISTRY
        or (saved.has_task(SyntaxTranslationTask) and not saved.has_task(SyntaxLabellingTask))
    )


def require_exportable(saved: SavedModel) -> None:
    """Check that a model translates without its training data.

    Raises:
        UserError: the model does not translate, or reads more than its bundle holds.
    """
    if not translates(saved):
        raise UserError(
            f"{saved.path} was trained by the task {saved.name('task')}: only translation models are "
            "exported"
        )
    if identity_of(saved.state, saved.path).value("tree-source") == "shuffled":
        raise UserError(
            f"{saved.path} was trained on shuffled trees, which come from its training "
            "data: it cannot be exported without them"
        )


def read_bundle(folder: Path) -> SavedModel:
    """Read a bundle.

    Returns:
        The content of a checkpoint, with the bundle as its data directory.

    Raises:
        UserError: a file is missing, damaged or changed, or is of another version.
    """
    register_all()
    path = folder / CONTENTS
    try:
        content = read_json(path.read_text(encoding="utf-8"))
        if _ENTRY not in content:
            raise UserError(
                f"{folder} is not a bundle of fairseq-phrase-export: {CONTENTS} describes another model"
            )
        described = content[_ENTRY]
        if described["format"] != FORMAT_VERSION:
            raise UserError(
                f"{path} has format {described['format']}, but this version reads {FORMAT_VERSION}: "
                "export the checkpoint again"
            )
        _check_files(folder, described["files"])
        weights = load_file(folder / WEIGHTS)
        weights |= {name: weights[original] for name, original in described["aliases"].items()}
        model = described["model"]
        config = OmegaConf.create(
            {
                "task": {**described["task"], "data": str(folder)},
                # The options of fairseq's older architectures lack a data class; BART's include others.
                "model": Namespace(**model) if "arch" in model else model,
            },
            flags={"allow_objects": True},
        )
        task_state = {**described["task_state"], "checkpoint": str(folder)}
        Identity.from_dict(task_state["identity"], path)
    except _DAMAGES as error:
        raise UserError(f"{path} is damaged ({error}): export the checkpoint again") from None
    state = {"cfg": config, "model": weights, "task_state": task_state}
    check_trusted(state, path)
    complete_options(state, path)
    task_state["identity"] = identity_of(state, path).as_dict()
    return SavedModel(folder, state)


def _check_files(folder: Path, files: dict[str, str]) -> None:
    for name, expected in {WEIGHTS: "", **files}.items():
        path = folder / name
        if path.name != name:
            raise ValueError(f"{name} is not a file of this folder")
        if not path.is_file():
            raise UserError(f"the bundle {folder} is incomplete: {name} is missing; copy it again")
        if digest_of(path) != expected:
            raise UserError(
                f"{path} is not the file that was exported (its checksum differs): copy the bundle again"
            )


def _described(saved: SavedModel, languages: tuple[str, str]) -> dict[str, Any]:
    config = saved.state["cfg"]
    return {
        "format": FORMAT_VERSION,
        "made_by": f"fairseq-phrase {fairseq_phrase.__version__}",
        "model": portable_options(config.model),
        "task": {
            **portable_options(config.task),
            "data": None,
            "source_lang": languages[0],
            "target_lang": languages[1],
        },
        "task_state": saved.state.get("task_state") or {},
    }


def portable_options(config: Any) -> dict[str, Any]:
    """Return a configuration in JSON's types, without the paths of its training."""
    options: Any
    if OmegaConf.is_config(config):
        options = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    else:
        kinds = (str, int, float, bool, list, dict, type(None))
        options = {name: value for name, value in vars(config).items() if isinstance(value, kinds)}
    return {
        name: None if isinstance(value, str) and os.sep in value else value
        for name, value in options.items()
    }


def write_weights(parameters: dict[str, torch.Tensor], path: Path) -> dict[str, str]:
    """Write the parameters; one that is shared is written once.

    Returns:
        By the name of each parameter that was left out, the name of the one that shares its values.
    """
    tensors: dict[str, torch.Tensor] = {}
    names: dict[tuple[Any, ...], str] = {}
    aliases: dict[str, str] = {}
    for name, value in parameters.items():
        memory = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if value.numel() and memory in names:
            aliases[name] = names[memory]
            continue
        names[memory] = name
        # A view of a larger tensor would be refused.
        tensors[name] = value.contiguous().clone()
    with named_in_errors(path):
        path.write_bytes(save(tensors, metadata={"format": "pt"}))
    return aliases
