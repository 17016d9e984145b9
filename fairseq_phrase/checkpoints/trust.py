"""Options in the files of others: data that are read, and never code that is run.

fairseq evaluates options such as ``--adaptive-softmax-cutoff`` by ``eval``, and opens the files that
other options name. A checkpoint or a bundle from a stranger has such options, too. All commands read
them by :func:`load_checkpoint` and :func:`check_trusted`. Only these values are allowed:

- None, truth values, numbers, lists, dictionaries, namespaces, and texts;
- a text is data, words or prose (:func:`~fairseq_phrase.checkpoints.option_texts.form_of`);
- an option in :data:`EVALUATED` is data; an option in :data:`NOT_EVALUATED` has any text.

A text that names a file is removed: only files that the user names are opened.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from fairseq.registry import REGISTRIES
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.base import Container, Node

from fairseq_phrase.checkpoints.option_texts import TextForm, form_of
from fairseq_phrase.compat import checkpoints
from fairseq_phrase.data.store.identity import matches, warn_once
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import names_path

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
#: Options that nothing evaluates. Of those that name files, fairseq's commands read their own values, or
#: they name data. The last three are of transformers' configurations.
NOT_EVALUATED = (
    "data user_dir save_dir restore_file finetune_from_model continue_once checkpoint_suffix path "
    "results_path input log_file tensorboard_logdir plasma_path wandb_project aim_repo "
    "distributed_init_method train_subset valid_subset gen_subset freeze_regex "
    "post_process remove_bpe eval_bleu_remove_bpe bpe_separator "
    "source_lang target_lang langs lang_pairs *_lang_pairs *_langs "
    "_name_or_path id2label label2id"
)
#: Options that fairseq evaluates. A word would be the name of a variable of fairseq.
EVALUATED = (
    "adaptive_softmax_cutoff adaptive_input_cutoff *xformers_att_config encoder_layers decoder_layers "
    "encoder_attention decoder_attention gated_attention project_input downsample character_filters "
    "conv_feature_layers conv_aggregator_layers feature_encoder_spec *_kernel_size_list *_glu "
    "weight_softmax left_pad_* wer_args *_betas adafactor_eps pipeline_*balance pipeline_*devices"
)
_matches = lru_cache(maxsize=8192)(matches)
_MOST_VALUES, _DEEPEST = 100_000, 30
#: The file that fairseq is reading.
_FILE: ContextVar[str] = ContextVar("file", default="the checkpoint")


def plain_options(cfg: Any) -> dict[str, Any]:
    """Return a configuration of any kind as a dictionary."""
    if OmegaConf.is_config(cfg):
        cfg = OmegaConf.to_container(cfg, enum_to_str=True)
    return dict(cfg) if isinstance(cfg, Mapping) else dict(vars(cfg) if cfg else {})


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Load a checkpoint, and check its options by :func:`check_trusted`.

    Raises:
        UserError: the file is missing, is not a checkpoint, or has content that could run code.
    """
    state = checkpoints.load_checkpoint(path)
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
            if isinstance(state[name], Container):
                options = OmegaConf.create(options, flags={"allow_objects": True})
            state[name] = options


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Name the file that fairseq reads, for the messages of :func:`check_before_upgrade`."""
    token = _FILE.set(str(path))
    try:
        yield
    finally:
        _FILE.reset(token)


def check_before_upgrade(upgrade: Any, state: dict[str, Any]) -> Any:
    """Check the options of a checkpoint before fairseq converts those of its older versions."""
    check_trusted(state, _FILE.get())
    if state.get("args") is None:
        cfg = state.get("cfg") or {}
        for name in ("task", "model"):
            if not isinstance(cfg.get(name), dict | DictConfig | Namespace):
                raise UserError(
                    f"{_FILE.get()} is not a fairseq checkpoint: it has no options of a {name}"
                )
    return upgrade(state)


class _Reader:
    """Copies the options of a file, if all of them are allowed."""

    def __init__(self, path: str | Path) -> None:
        self._path, self._values, self._depth = path, 0, 0
        self._in_text = False

    def read(self, value: Any, names: tuple[str, ...], *, is_free: bool = False) -> Any:
        """Return a copy of a value.

        Args:
            names: the names of its sections, and its own name.
            is_free: whether nothing evaluates its texts.

        Raises:
            UserError: the value, or a part of it, is not allowed.
        """
        self._values += 1
        if self._values > _MOST_VALUES or self._depth > _DEEPEST:
            raise self._refusal(names, "has too many or too deeply nested values")
        self._depth += 1
        copy = self._copy(_content(value), names, is_free)
        self._depth -= 1
        return copy

    def _copy(self, value: Any, names: tuple[str, ...], is_free: bool) -> Any:
        if value is None or type(value) in (bool, int, float) or isinstance(value, Enum):
            return value
        if type(value) is str:
            return self._text(value, names, is_free)
        if type(value) in (list, tuple):
            return type(value)(self.read(part, names, is_free=is_free) for part in value)
        if isinstance(value, Namespace):
            return Namespace(**self._section(vars(value), names, is_free))
        if isinstance(value, dict):
            return self._section(value, names, is_free)
        raise self._refusal(names, f"is a {type(value).__name__}, which no option is")

    def _section(
        self, options: Mapping[Any, Any], names: tuple[str, ...], is_free: bool
    ) -> dict[Any, Any]:
        """Copy options by name, without those that are removed."""
        section = {}
        for key, value in options.items():
            if type(key) not in (str, int, float, bool) and not isinstance(key, Enum):
                raise self._refusal(names, f"has an option named {key!r:.100}")
            name, value = str(key), _content(value)
            if not _is_removed(name, value):
                free = is_free or _matches(name, NOT_EVALUATED) or _matches(name, PARSERS)
                section[key] = self.read(value, (*names, name), is_free=free)
            elif self._in_text:
                raise self._refusal((*names, name), f"is {value!r:.100}, {_ONLY_IF_NAMED}")
            else:
                section[key] = _without_file(name)
        return section

    def _text(self, text: str, names: tuple[str, ...], is_free: bool) -> str | None:
        """Return a text, or None for a path."""
        if "${" in text:
            raise self._refusal(
                names,
                f"is the interpolation {text:.100}, which fairseq does not save, and which could read "
                "this machine's environment",
            )
        form, value = (TextForm.PROSE, None) if is_free or not text else form_of(text)
        must_be_data = not is_free and text and _matches(names[-1], EVALUATED)
        if form is TextForm.CODE or (must_be_data and form is not TextForm.DATA):
            raise self._refusal(names, f"is {text!r:.100}, which could run as code")
        if form is TextForm.DATA and value != text:
            self._read_inside(value, names)
        if form is not TextForm.PATH or _is_default(names[-1], text):
            return text
        if self._in_text:
            raise self._refusal(names, f"is {text!r:.100}, {_ONLY_IF_NAMED}")
        warn_once(f"{self._path}: its {'.'.join(names)}, {text}, was removed, {_ONLY_IF_NAMED}")
        return cast("str | None", _without_file(names[-1]))

    def _read_inside(self, value: Any, names: tuple[str, ...]) -> None:
        """Check the value of a text. No part of it can be removed."""
        was_in_text, self._in_text = self._in_text, True
        self.read(value, names)
        self._in_text = was_in_text

    def _refusal(self, names: tuple[str, ...], reason: str) -> UserError:
        return UserError(f"{self._path} was not loaded: its {'.'.join(names)} {reason}")


def _content(value: Any) -> Any:
    """Return the content of a node of OmegaConf, without resolving interpolations."""
    if not isinstance(value, Node):
        return value
    return value._content if isinstance(value, Container) else value._value()


_ONLY_IF_NAMED = "because only files and addresses that you name are opened"


def _is_removed(name: str, value: Any) -> bool:
    """Return whether an option has a value that is removed."""
    if _matches(name, REMOVED):
        return value is not None
    if _matches(name, PARSERS):
        return names_path(str(value))
    is_text = isinstance(value, str) and value not in ("", "True", "False", "???")
    is_file = _matches(name, FILES) and not _matches(name, NOT_EVALUATED)
    return is_file and (is_text or isinstance(value, list))


def _is_default(name: str, text: str) -> bool:
    """Return whether a text is fairseq's own, such as the address of GPT-2's subwords."""
    return text in _defaults(name)


def _without_file(name: str) -> Any:
    """Return the value of an option whose file was removed.

    It is None. A segmenter's option cannot be None, and its default would be another file.
    """
    return MISSING if _defaults(name) else None


def _defaults(name: str) -> list[Any]:
    """Return the defaults of an option of fairseq's segmenters."""
    kinds = REGISTRIES["bpe"]["dataclass_registry"].values()
    return [option.default for kind in kinds for option in fields(kind) if option.name == name]
