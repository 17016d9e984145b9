"""Options in the files of others: data that are read, and never code that is run.

fairseq evaluates options such as ``--adaptive-softmax-cutoff`` by ``eval``, and opens the files that
other options name. A checkpoint or a bundle from a stranger has such options, too. All commands read
them by :func:`load_checkpoint` and :func:`check_trusted`. What they may be follows from their types:

- None, truth values, numbers, and lists, dictionaries and namespaces of allowed values: these cannot run;
- a text without an interpolation; if it is JSON or a literal of Python, its parts are checked, too;
- a literal, if fairseq evaluates the option (:data:`EVALUATED`).

A text that names a file is removed: only files that the user names are opened.
"""

from __future__ import annotations

import ast
import json
import pickle
import re
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from fairseq.dataclass.configs import FairseqConfig
from fairseq.registry import REGISTRIES
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.base import Container, Node

from fairseq_phrase.data.store.identity import matches, warn_once
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import names_path
from fairseq_phrase.repairs.checkpoints import make_checkpoints_loadable

#: Options that are removed: they permit differences, run programs or write files. Trees and source
#: factors come from the record, separately for each model of an ensemble.
REMOVED = (
    "allow_difference tree_source tree_seed source_factors source_factors_dim job_logging_cfg "
    "post_save_script save_predictions"
)
#: Options with names of files, which are removed. transformers asks a hub for a backbone.
FILES = (
    "*_path pretrained_*checkpoint load_*_from *_from_file *_vocab *_vocab_file *_codes *_merges "
    "*_kenlm_model *_lexicon lang_dict source_dict target_dict target_dictionary fixed_dictionary "
    "extra_data sentencepiece_model baseline_model huggingface_model pretrained pretrained_model "
    "backbone"
)
#: Options with names of parsers, which are removed if they contain a path.
PARSERS = "source_parser syntax_parser"
#: Options that keep every text. Of those that name files, fairseq's commands read their own values, or
#: they name data. The last three are of transformers' configurations.
NOT_EVALUATED = (
    "data user_dir save_dir restore_file finetune_from_model continue_once checkpoint_suffix path "
    "results_path input log_file tensorboard_logdir plasma_path wandb_project aim_repo "
    "distributed_init_method train_subset valid_subset gen_subset freeze_regex predict_fraction "
    "post_process remove_bpe eval_bleu_remove_bpe bpe_separator "
    "source_lang target_lang langs lang_pairs *_lang_pairs *_langs "
    "_name_or_path id2label label2id"
)
#: Options that fairseq evaluates.
EVALUATED = (
    "adaptive_softmax_cutoff adaptive_input_cutoff *xformers_att_config encoder_layers decoder_layers "
    "encoder_attention decoder_attention self_attention gated_attention project_input downsample "
    "character_filters conv_feature_layers conv_aggregator_layers feature_encoder_spec "
    "*_kernel_size_list *_glu weight_softmax left_pad_* wer_args *_betas adafactor_eps "
    "pipeline_*balance pipeline_*devices"
)
#: What an evaluated text may be besides a literal: the layers of a convolutional model, such as
#: ``[(512, 3)] * 20``; and the self-attention of this package's recurrent models.
_LAYERS = r"\[[\d,() ]*\] *(\* *\d{1,3} *)?"
_EVALUATED_TEXT = re.compile(rf"{_LAYERS}(\+ *{_LAYERS})*|none|plain|bilinear", re.ASCII)
_matches = lru_cache(maxsize=8192)(matches)
_MOST_VALUES, _DEEPEST, _LONGEST, _MOST_BITS = 100_000, 30, 100_000, 4_096


def plain_options(cfg: Any) -> dict[str, Any]:
    """Return a configuration of any kind as a dictionary."""
    if OmegaConf.is_config(cfg):
        cfg = OmegaConf.to_container(cfg, enum_to_str=True)
    return dict(cfg) if isinstance(cfg, Mapping) else dict(vars(cfg) if cfg else {})


def load_checkpoint(path: Path, *, mmap: bool = True) -> dict[str, Any]:
    """Load a fairseq checkpoint, and check its options by :func:`check_trusted`.

    Args:
        mmap: read only tensors that are used. A training that resumes may overwrite its file.

    Raises:
        UserError: the file is missing, is not a checkpoint, or has content that could run code.
    """
    if not path.is_file():
        raise UserError(f"the checkpoint {path} is not there")
    make_checkpoints_loadable()
    is_zip = zipfile.is_zipfile(path)  # torch before 1.6 wrote other files, which cannot be mapped
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap and is_zip)
    except Exception as error:  # torch raises one of many, depending on the file's content
        unsafe = re.search(r"(?:GLOBAL|class) (\S+)", str(error))
        if isinstance(error, pickle.UnpicklingError) and unsafe:
            raise UserError(
                f"{path} was not loaded: it contains {unsafe[1]}, which could run code and is not part "
                "of fairseq's checkpoints"
            ) from None
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        reason = reason if is_zip else "it is empty, truncated, or not written by torch"
        raise UserError(f"{path} is not a fairseq checkpoint ({reason})") from None
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise UserError(f"{path} is not a fairseq checkpoint: it has no model")
    check_trusted(state, path)
    return state


def check_trusted(state: dict[str, Any], path: str | Path) -> None:
    """Check the options of a checkpoint or a bundle, and remove the names of files.

    Args:
        state: its contents. Copies replace its options.

    Raises:
        UserError: an option could run as code, is an interpolation, which could read the environment, or
            has a type or a size that options do not have.
    """
    for name, kinds in (("cfg", (dict, DictConfig)), ("args", (Namespace,))):
        if state.get(name) is not None:
            if not isinstance(state[name], kinds):
                raise UserError(
                    f"{path} is not a fairseq checkpoint: its {name} is a {type(state[name]).__name__}, "
                    "which has no options by name"
                )
            options = _Reader(path).read(state[name], (name,))
            for section in _SECTIONS if name == "cfg" else ():
                if not isinstance(value := options.get(section), dict | Namespace | None):
                    raise UserError(
                        f"{path} is not a fairseq checkpoint: its cfg.{section} is {value!r:.100}, "
                        "not options by name"
                    )
            if isinstance(state[name], Container):
                options = OmegaConf.create(options, flags={"allow_objects": True})
            state[name] = options


class _Reader:
    """Copies the options of a file, if all of them are allowed."""

    def __init__(self, path: str | Path) -> None:
        self._path, self._values, self._depth = path, 0, 0
        self._in_text = False

    def read(self, value: Any, names: tuple[str, ...], *, is_kept: bool = False) -> Any:
        """Return a copy of a value.

        Args:
            names: the names of its sections, and its own name.
            is_kept: whether its texts are kept, whatever they name.

        Raises:
            UserError: the value, or a part of it, is not allowed.
        """
        self._values += 1
        if self._values > _MOST_VALUES or self._depth > _DEEPEST:
            raise self._refusal(names, "has too many or too deeply nested values")
        self._depth += 1
        copy = self._copy(_content(value), names, is_kept)
        self._depth -= 1
        return copy

    def _copy(self, value: Any, names: tuple[str, ...], is_kept: bool) -> Any:
        if value is None or _is_number(value):
            return value
        if type(value) is int:
            raise self._refusal(names, "is too large a number")
        if type(value) is str:
            return self._text(value, names, is_kept)
        if type(value) in (list, tuple):
            return type(value)(self.read(part, names, is_kept=is_kept) for part in value)
        if isinstance(value, Namespace):
            return Namespace(**self._section(vars(value), names, is_kept))
        if isinstance(value, dict):
            return self._section(value, names, is_kept)
        raise self._refusal(names, f"is a {type(value).__name__}, which no option is")

    def _section(self, options: Mapping[Any, Any], names: tuple[str, ...], is_kept: bool) -> Any:
        """Copy options by name, without those that are removed."""
        section = {}
        for key, value in options.items():
            if type(key) is not str and not _is_number(key):
                raise self._refusal(names, f"has an option named by a {type(key).__name__}")
            place, value = (*names, str(key)), _content(value)
            if _is_removed(place[-1], value):
                section[key] = self._removed(value, place)
            else:
                keeps = is_kept or _matches(place[-1], f"{NOT_EVALUATED} {PARSERS}")
                section[key] = self.read(value, place, is_kept=keeps)
        return section

    def _text(self, text: str, names: tuple[str, ...], is_kept: bool) -> Any:
        """Return a text, or what replaces a path."""
        if "${" in text:
            raise self._refusal(
                names,
                f"is the interpolation {text:.100}, which fairseq does not save, and which could read "
                "this machine's environment",
            )
        if is_kept or not text:
            return text
        values = _values(text)
        may_be_word = not _matches(names[-1], EVALUATED) or _EVALUATED_TEXT.fullmatch(text)
        if values is None or not (values or may_be_word):
            raise self._refusal(names, f"is {text!r:.100}, which could run as code")
        was_in_text, self._in_text = self._in_text, True
        for value in values:
            self.read(value, names)  # no part of it can be removed
        self._in_text = was_in_text
        names_file = not values and ("/" in text or text.startswith("~"))
        if not names_file or text in _defaults(names[-1]):
            return text
        removed = self._removed(text, names)
        warn_once(f"{self._path}: its {'.'.join(names)}, {text}, was removed, {_ONLY_IF_NAMED}")
        return removed

    def _removed(self, value: Any, names: tuple[str, ...]) -> Any:
        """Return what replaces a file's name: None, or no value of a segmenter's option."""
        if self._in_text:
            raise self._refusal(names, f"is {value!r:.100}, {_ONLY_IF_NAMED}")
        return MISSING if _defaults(names[-1]) else None

    def _refusal(self, names: tuple[str, ...], reason: str) -> UserError:
        return UserError(f"{self._path} was not loaded: its {'.'.join(names)} {reason}")


#: What a configuration of fairseq consists of.
_SECTIONS = {section.name for section in fields(FairseqConfig)} - {"_name"}
_ONLY_IF_NAMED = "because only files and addresses that you name are opened"


#: Parts of expressions that run code, or take memory, where an option is evaluated.
_RUNNING = (
    ast.Call, ast.Subscript, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda,
    ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom, ast.JoinedStr, ast.Pow,
)  # fmt: skip


def _values(text: str) -> list[Any] | None:
    """Return what a text is as JSON and as a literal of Python.

    Returns:
        None for a text that could run as code, where fairseq or a plugin evaluates it, or that is too
        large to tell.
    """
    values: list[Any] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as those of invalid escapes
            with suppress(ValueError):
                values.append(json.loads(text[: _LONGEST + 1]))
            with suppress(SyntaxError, ValueError, TypeError):
                expression = ast.parse(text[: _LONGEST + 1].lstrip(" \t"), mode="eval")
                if any(map(_runs, ast.walk(expression))):
                    return None
                values.append(ast.literal_eval(expression))
    except (RecursionError, MemoryError):
        return None
    return None if len(text) > _LONGEST else values


def _runs(part: ast.AST) -> bool:
    return isinstance(part, _RUNNING) or (
        isinstance(part, ast.Attribute) and part.attr.startswith("__")
    )


def _content(value: Any) -> Any:
    """Return the content of a node of OmegaConf, without resolving interpolations."""
    if not isinstance(value, Node):
        return value
    return value._content if isinstance(value, Container) else value._value()


def _is_number(value: Any) -> bool:
    """Return whether a value is a number that Python prints, or a name for one."""
    if type(value) is int:
        return value.bit_length() <= _MOST_BITS
    return type(value) in (bool, float) or isinstance(value, Enum)


def _is_removed(name: str, value: Any) -> bool:
    """Return whether an option has a value that is removed."""
    if _matches(name, REMOVED):
        return value is not None
    if _matches(name, PARSERS):
        return names_path(value) if isinstance(value, str) else value is not None
    is_text = isinstance(value, str) and value not in ("", "True", "False", "???")
    is_file = _matches(name, FILES) and not _matches(name, NOT_EVALUATED)
    return is_file and (is_text or isinstance(value, list))


def _defaults(name: str) -> list[Any]:
    """Return the defaults of an option of fairseq's segmenters, of which some are addresses."""
    kinds = REGISTRIES["bpe"]["dataclass_registry"].values()
    return [option.default for kind in kinds for option in fields(kind) if option.name == name]
