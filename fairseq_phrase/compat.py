"""All code that depends on the versions of fairseq and torch.

An import changes nothing. :func:`fairseq_phrase.register` patches fairseq (:func:`patch_fairseq`).
Printed output changes only where fairseq loads this package as a user directory
(:mod:`fairseq_phrase.tasks.user_directory`).
"""

from __future__ import annotations

import argparse
import collections
import functools
import importlib
import inspect
import logging
import os
import pickle
import re
import sys
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from traceback import walk_tb
from typing import Any

import numpy as np
import torch
from fairseq import options as fairseq_options
from fairseq import utils
from fairseq.criterions.label_smoothed_cross_entropy_with_alignment import (
    LabelSmoothedCrossEntropyCriterionWithAlignment as AlignmentCriterion,
)
from fairseq.data import ConcatDataset, bucket_pad_length_dataset, data_utils
from fairseq.data.audio import raw_audio_dataset
from fairseq.data.iterators import EpochBatchIterator
from fairseq.tasks.fairseq_task import FairseqTask
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer
from fairseq_cli import generate
from omegaconf import base, dictconfig, listconfig, nodes

from fairseq_phrase.errors import UserError
from fairseq_phrase.resumed_training import continue_all_state, save_all_state

_Function = Callable[..., Any]


def patch_fairseq() -> None:
    """Apply all patches to fairseq, each only once."""
    make_checkpoints_loadable()
    restore_integers_of_numpy()
    patch(FairseqTask, "get_batch_iterator", _keep_last_batches)
    patch(FairseqTask, "load_state_dict", _truncate_in_use)
    patch(TranslationTask, "build_dataset_for_inference", _truncate_raw_lines)
    patch(TranslationTask, "load_dataset", _name_missing_alignments)
    patch(AlignmentCriterion, "__init__", _ask_for_alignments)
    patch(FairseqTask, "build_generator", _align_where_unknown_words_are_replaced)
    patch(utils, "load_align_dict", _replace_unknown_words_without_a_file)
    patch(utils, "replace_unk", _read_pairs_of_alignments)
    patch(data_utils, "_find_extra_valid_paths", _name_splits)
    patch(data_utils, "raise_if_valid_subsets_unintentionally_ignored", _name_ignored_splits)
    patch(ConcatDataset, "__init__", _do_not_upsample_by_default)
    for module in (data_utils, bucket_pad_length_dataset, raw_audio_dataset):
        patch(module, "get_buckets", _bucket_with_numpy_2)
    patch(Trainer, "get_train_iterator", _resume_the_same_training)
    patch(Trainer, "save_checkpoint", save_all_state)
    patch(Trainer, "load_checkpoint", continue_all_state)
    patch(EpochBatchIterator, "first_batch", _name_empty_data)
    patch(fairseq_options, "parse_args_and_arch", _train_in_bfloat16_without_a_tpu)
    patch(generate, "_main", _write_only_a_shard)
    # An import of this command's module would let the root logger print all messages.
    if interactive := sys.modules.get("fairseq_cli.interactive"):
        patch(interactive, "main", _replace_before_joining)


def patch(owner: Any, name: str, new: _Function) -> None:
    """Replace a function or property of a class or module, unless ``new`` has already replaced it.

    Args:
        new: is called with the original function, then with its arguments.
    """
    found = getattr(owner, name)
    original: Any = found.fget if isinstance(found, property) else found
    if new in getattr(original, "patched_by", ()):
        return

    @functools.wraps(original)
    def patched(*args: Any, **options: Any) -> Any:
        return new(original, *args, **options)

    patched.patched_by = (*getattr(original, "patched_by", ()), new)  # type: ignore[attr-defined]
    setattr(owner, name, property(patched) if isinstance(found, property) else patched)


def make_checkpoints_loadable() -> None:
    """Register the classes in a fairseq checkpoint; none of them runs code when it is loaded.

    torch 2.6 and later load checkpoints with ``weights_only=True``, which allows only tensors and
    registered classes. fairseq's checkpoints also contain the configuration and meters.
    """
    torch.serialization.add_safe_globals([
        argparse.Namespace, collections.OrderedDict, collections.defaultdict, dict, list, int,
        typing.Any, dictconfig.DictConfig, listconfig.ListConfig, base.ContainerMetadata,
        base.Metadata, nodes.AnyNode, nodes.BooleanNode, nodes.EnumNode, nodes.FloatNode,
        nodes.IntegerNode, nodes.InterpolationResultNode, nodes.StringNode,
        *_numpy_reconstruction(),
    ])  # fmt: skip


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Load a fairseq checkpoint; only tensors that are used are read from disk.

    Raises:
        UserError: the file is missing, is not a checkpoint, or has content that could run code.
    """
    if not path.is_file():
        raise UserError(f"the checkpoint {path} is not there")
    make_checkpoints_loadable()
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        unsafe = re.search(r"(?:GLOBAL|class) (\S+)", str(error))
        if unsafe is None:
            raise UserError(f"{path} is not a fairseq checkpoint") from None
        raise UserError(
            f"{path} was not loaded: it contains {unsafe[1]}, which could run code and is not part of "
            "fairseq's checkpoints"
        ) from None
    # torch raises one of many exceptions, depending on the file's content.
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"{path} is not a fairseq checkpoint ({type(error).__name__}: {reason})"
        ) from None
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise UserError(f"{path} is not a fairseq checkpoint: it has no model")
    return state


def print_user_errors_plainly() -> None:
    """Make fairseq's commands print only the message of a :class:`UserError`, as our commands do.

    An error that was raised from a :class:`UserError` is printed like it. An error that was raised while
    a :class:`UserError` was handled is a different error. Text that ``fairseq-interactive`` cannot decode
    is treated like a :class:`UserError`.
    """
    default = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None
    ) -> None:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, UserError):
            cause = cause.__cause__
        if cause is not None:
            print(f"error: {cause}", file=sys.stderr)
        elif isinstance(error, UnicodeDecodeError) and (
            place := _undecodable_line(error, traceback)
        ):
            print(f"error: {place} is not UTF-8: {error.reason}", file=sys.stderr)
        else:
            default(kind, error, traceback)

    sys.excepthook = hook


def _undecodable_line(
    error: UnicodeDecodeError, traceback: types.TracebackType | None
) -> str | None:
    """Find the input's line that cannot be decoded, if ``fairseq-interactive`` was reading it."""
    for frame, _ in walk_tb(traceback):
        if frame.f_code.co_name == "buffered_read" and "h" in frame.f_locals:
            path = frame.f_locals.get("input", "-")
            # Text is decoded some lines ahead. All lines before them were read.
            number = frame.f_locals["h"].lineno() + 1 + error.object[: error.start].count(b"\n")
            return f"line {number} of {'standard input' if path == '-' else path}"
    return None


def use_idle_cores() -> None:
    """Let torch use one thread for each idle core, unless the user chose the number of threads.

    By default torch uses all cores. On busy cores the threads of each small operation wait for each
    other, and a translation can take forty times as long as on one thread.
    """
    is_chosen = any(name in os.environ for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    if is_chosen or not hasattr(os, "getloadavg"):
        return
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    idle = max(1, int(cores - os.getloadavg()[0]))
    if idle < torch.get_num_threads():
        torch.set_num_threads(idle)


def quieten() -> None:
    """Suppress messages of hydra, fairseq and torch that are meant for developers.

    ``PYTHONWARNINGS`` or ``python -W`` restore the warnings. ``LOGLEVEL`` restores the configuration and
    fairseq's four lines for each epoch, or for each batch of raw lines.
    """
    if not sys.warnoptions:
        for module in (r"hydra\.", r"torch\.utils\.data\.dataloader"):
            warnings.filterwarnings("ignore", category=UserWarning, module=module)
        warnings.filterwarnings("ignore", message=r"\s*'config' is validated against ConfigStore")
        warnings.filterwarnings("ignore", message=r"Support for mismatched key_padding_mask")
        warnings.filterwarnings(
            "ignore", message=r"`torch\.cuda\.amp\.\w+\(args\.\.\.\)` is deprecated"
        )
    if "LOGLEVEL" not in os.environ:
        logging.getLogger("hydra").setLevel(logging.INFO)
        logging.getLogger("fairseq.tasks.fairseq_task").setLevel(logging.WARNING)
        for command in ("interactive", "generate"):
            logging.getLogger(f"fairseq_cli.{command}").addFilter(
                lambda record: not isinstance(record.msg, dict | dictconfig.DictConfig)
            )


def _keep_last_batches(original: _Function, *args: Any, **options: Any) -> Any:
    """Make all fairseq tasks keep the last batch of a data set, except in training.

    fairseq 0.12.3 drops a last batch whose size is not a multiple of ``--required-batch-size-multiple``
    (8 by default), also in ``fairseq-generate``. In training it still does. A split's name does not
    distinguish training from evaluation (``--gen-subset train``), but only the trainer passes the option
    to shuffle groups of batches, and only for training data.
    """
    given = inspect.signature(original).bind(*args, **options).arguments
    if "grouped_shuffling" not in given:
        given["required_batch_size_multiple"] = 1
    try:
        return original(**given)
    except Exception as error:  # fairseq has an assertion and a bare Exception
        if "should not exceed max_tokens" in str(error) or "max_tokens limit" in str(error):
            limit = given["max_tokens"]
            raise UserError(
                f"a sentence is longer than --max-tokens {limit}: give a larger --max-tokens"
            ) from None
        if str(error).startswith("Size of sample"):
            raise UserError(str(error)) from None
        raise


def _resume_the_same_training(
    original: _Function, self: Trainer, epoch: int, combine: bool = True, load_dataset: bool = True,
    **options: Any,
) -> Any:  # fmt: skip
    """Give a resumed training the same batches in the same order as without a stop.

    fairseq makes batches for the epoch in which a training starts or is resumed. Most tasks keep them
    for all later epochs, together with the data loader, its workers and whether it shuffles
    (``--curriculum``). Without an interruption, all these come from the first epoch. When a training is
    resumed in a later epoch, the objects that a task keeps are therefore made for the first epoch, too.
    Objects made for each epoch (``--update-epoch-batch-itr``, several data directories) are unchanged.
    """
    # Only the first call of a training loads data that are not split into several directories.
    if epoch == 1 or not load_dataset or options.get("disable_iterator_cache"):
        return original(self, epoch, combine, load_dataset, **options)
    iterator = original(self, 1, combine, **options)
    is_kept = any(iterator is kept for kept in self.task.dataset_to_epoch_iter.values())
    if not is_kept or not isinstance(iterator, EpochBatchIterator):
        return original(self, epoch, combine, load_dataset=False, **options)
    if iterator.reuse_dataloader:
        iterator._get_iterator_for_epoch(
            1,
            shuffle=self.cfg.dataset.curriculum < 1,
            fix_batches_to_gpus=self.cfg.distributed_training.fix_batches_to_gpus,
        )
        if iterator.dataloader.persistent_workers:
            iter(iterator.dataloader)  # its workers keep the epoch in which they start
    if callable(iterator.batch_sampler):  # makes batches for each epoch
        iterator._frozen_batches = None
    iterator.epoch = epoch
    iterator.dataset.set_epoch(epoch)
    return iterator


def _name_empty_data(original: _Function, self: EpochBatchIterator) -> Any:
    """End a training without any batch, with a message that names the options."""
    if not self.frozen_batches:
        raise UserError(
            f"no batch can be made of {len(self.dataset)} samples: fewer than "
            "--required-batch-size-multiple (8 by default) make none, nor do samples longer than "
            "--max-tokens, --max-source-positions or --max-target-positions. For a few samples "
            "give --required-batch-size-multiple 1"
        )
    return original(self)


def _name_splits(original: _Function, dataset_path: str) -> set[str]:
    """Find ``valid1``, ``valid2``, … by their names, as in ``--valid-subset``.

    fairseq 0.12.3 returns the names of their files (``valid1.de-en.de``). A split that was named then
    still counts as forgotten.
    """
    return {name.partition(".")[0] for name in original(dataset_path)}


def _name_ignored_splits(original: _Function, cfg: Any) -> None:
    """End a training that would ignore validation sets, with a message that names the options."""
    try:
        original(cfg)
    except ValueError:
        given = cfg.dataset.valid_subset.split(",")
        others = sorted(data_utils._find_extra_valid_paths(cfg.task.data) - {*given})
        raise UserError(
            f"{cfg.task.data} also has {', '.join(others)}: name all sets to validate on, --valid-subset "
            f"{','.join([*given, *others])}, or join them with --combine-val, or give "
            "--ignore-unused-valid-subsets"
        ) from None


def _do_not_upsample_by_default(
    original: _Function, self: Any, datasets: Any, sample_ratios: Any = 1
) -> None:
    """Let ``split``, ``split1``, … be combined without ``--upsample-primary``.

    Its default is -1 in fairseq 0.12.3, which leads to an array of negative size.
    """
    if not isinstance(sample_ratios, int):
        sample_ratios = [1 if ratio < 0 else ratio for ratio in sample_ratios]
    original(self, datasets, sample_ratios)


def _bucket_with_numpy_2(original: _Function, sizes: Any, num_buckets: int) -> Any:
    """Compute the lengths of ``--num-batch-buckets`` without an argument that NumPy 2.4 removed."""
    parts = np.linspace(0, 100, num_buckets + 1)
    return np.unique(np.percentile(sizes, parts, method="lower")[1:])


#: The key in a task's state for ``--max-source-positions`` of a training with ``--truncate-source``.
TRUNCATED = "max_source_positions_of_truncated_sources"


def truncate_as_trained(task: Any, state: Mapping[str, Any]) -> None:
    """Make a task truncate sources as a model's training did.

    Args:
        state: the state of the model's task, from its checkpoint.
    """
    if (positions := state.get(TRUNCATED)) is not None:
        task.cfg.truncate_source = True
        task.cfg.max_source_positions = min(task.cfg.max_source_positions, positions)


def truncated_tokens(tokens: torch.Tensor, positions: int) -> torch.Tensor:
    """Truncate a source as ``--truncate-source`` does, and keep its end. Shape: (tokens,)."""
    if len(tokens) <= positions:
        return tokens
    return torch.cat([tokens[: positions - 1], tokens[-1:]])


def _truncate_in_use(original: _Function, self: Any, state_dict: dict[str, Any]) -> None:
    """Make ``fairseq-generate`` and ``-interactive`` truncate sources if the training did.

    fairseq 0.12.3 takes the option only from the command line. Without it, long lines are refused.
    """
    truncate_as_trained(self, state_dict)
    state_dict = {name: value for name, value in state_dict.items() if name != TRUNCATED}
    original(self, state_dict)


def _truncate_raw_lines(
    original: _Function, self: Any, src_tokens: Any, src_lengths: Any, **options: Any
) -> Any:
    """Make ``--truncate-source`` truncate raw lines as it truncates data."""
    if self.cfg.truncate_source:
        positions = self.cfg.max_source_positions
        src_tokens = [truncated_tokens(tokens, positions) for tokens in src_tokens]
        src_lengths = list(map(len, src_tokens))
    return original(self, src_tokens, src_lengths, **options)


def _ask_for_alignments(
    original: _Function, self: Any, task: Any, *others: Any, **given: Any
) -> None:
    """Refuse an alignment criterion for data without alignments: its loss would silently be 0."""
    cfg = getattr(task, "cfg", None)
    if not getattr(cfg, "load_alignments", True) and not getattr(cfg, "guided_alignments", None):
        raise UserError(
            "--criterion label_smoothed_cross_entropy_with_alignment has no alignments: give "
            "--guided-alignments FILE with --task syntax_translation, or --load-alignments with data "
            "that fairseq-preprocess --align-suffix made"
        )
    original(self, task, *others, **given)


def _name_missing_alignments(
    original: _Function, self: Any, split: str, *others: Any, **given: Any
) -> None:
    """Refuse ``--load-alignments`` for training data without alignments, which fairseq ignores."""
    original(self, split, *others, **given)
    is_training = split == self.cfg.train_subset
    if is_training and self.cfg.load_alignments and self.datasets[split].align_dataset is None:
        name = f"{split}.align.{self.cfg.source_lang}-{self.cfg.target_lang}"
        raise UserError(
            f"--load-alignments: {self.cfg.data} has no {name}: make it with fairseq-preprocess "
            "--align-suffix, or leave the option out"
        )


def _replace_unknown_words_without_a_file(original: _Function, replace_unk: str | None) -> Any:
    """Make ``--replace-unk`` without a file copy source words.

    fairseq 0.12.3 gives the option a value, which it then opens as a file.
    """
    return original("" if replace_unk == "@@ " else replace_unk)


def _align_where_unknown_words_are_replaced(
    original: _Function, self: Any, models: Any, args: Any, *others: Any, **options: Any
) -> Any:
    """Add to hypotheses the source token of each token, which ``--replace-unk`` reads.

    fairseq 0.12.3 has alignments only with ``--print-alignment``.
    """
    generator = original(self, models, args, *others, **options)
    is_there = getattr(args, "print_alignment", None) or getattr(args, "score_reference", False)
    if getattr(args, "replace_unk", None) is None or is_there:
        return generator
    generate, pad = generator.generate, generator.pad

    def aligned(models: Any, sample: Any, **given: Any) -> Any:
        generated = generate(models, sample, **given)
        tokens = sample["net_input"]["src_tokens"]
        for row, hypotheses in zip(tokens, generated, strict=True):
            for hypothesis in hypotheses:
                attention = hypothesis["attention"]
                if attention is None or not attention.numel():
                    raise UserError(
                        "--replace-unk needs a decoder with attention, and "
                        f"{type(models[0].decoder).__name__} returns no weights"
                    )
                # A decoder may attend to more nodes than tokens.
                of_tokens = attention[: len(row)][row.ne(pad)]
                hypothesis["alignment"] = of_tokens.argmax(0).tolist()
        return generated

    generator.generate = aligned
    return generator


def _replace_before_joining(original: _Function, cfg: Any, *others: Any) -> None:
    """Refuse ``--replace-unk`` where fairseq has joined subwords: alignments number the subwords."""
    if cfg.generation.replace_unk is not None and cfg.common_eval.post_process is not None:
        raise UserError(
            "--replace-unk counts subwords, which --post-process (--remove-bpe) joins before: leave it "
            "out, or use fairseq-phrase-translate --replace-unk"
        )
    original(cfg, *others)


def _read_pairs_of_alignments(
    original: _Function, hypo_str: str, src_str: str, alignment: Any, *others: Any
) -> str:
    """Make ``--replace-unk`` accept the output of ``--print-alignment``: pairs of source and target."""
    if isinstance(alignment, list) and all(isinstance(pair, tuple) for pair in alignment):
        alignment = {target: source for source, target in alignment}
    return str(original(hypo_str, src_str, alignment, *others))


def _train_in_bfloat16_without_a_tpu(original: _Function, *args: Any, **given: Any) -> Any:
    """Make ``--bf16`` train on a GPU or CPU where torch_xla is not installed.

    In fairseq 0.12.3 the flag implies ``--tpu``, and then ends with an AttributeError.
    """
    parsed = original(*args, **given)
    found = parsed[0] if isinstance(parsed, tuple) else parsed
    if getattr(found, "bf16", False) and utils.xm is None:
        found.tpu = False
    return parsed


def _write_only_a_shard(original: _Function, cfg: Any, output_file: Any) -> Any:
    """Make ``fairseq-generate`` honor ``--num-shards`` and ``--shard-id``.

    fairseq 0.12.3 ignores them and takes the number of processes, which is 1.
    """
    shards, shard = cfg.dataset.num_shards, cfg.dataset.shard_id
    if not 0 <= shard < shards:
        raise UserError(f"--shard-id {shard}: expected 0 to {shards - 1}, by --num-shards")
    if shards > 1:
        cfg.distributed_training.distributed_world_size = shards
        cfg.distributed_training.distributed_rank = shard
    return original(cfg, output_file)


def restore_integers_of_numpy() -> None:
    """Restore the name ``compat.long`` in NumPy 2, which fairseq 0.12.3 uses for its integers.

    Without it fairseq cannot make blocks of one sentence (``--sample-break-mode eos``).
    """
    if not hasattr(np, "compat"):
        np.compat = types.SimpleNamespace(long=int)  # type: ignore[attr-defined]


def leaving_out_unknown(function: _Function) -> _Function:
    """Make a function ignore keyword arguments that it does not accept.

    fairseq passes a batch's whole ``net_input`` to every encoder of an ensemble, but fairseq's encoders
    do not accept parses or other keywords.
    """
    names = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values()):
        return function

    def called(*args: Any, **inputs: Any) -> Any:
        return function(*args, **{name: inputs[name] for name in inputs if name in names})

    return called


def _numpy_reconstruction() -> list[Any]:
    """The functions and types that restore NumPy scalars and arrays."""
    core = importlib.import_module("numpy._core.multiarray")
    dtypes = {type(np.dtype(code)) for code in "?bBhHiIlLqQefd"}
    # NumPy 1 pickles these under numpy.core, NumPy 2 under numpy._core; both names are read.
    named = [
        (function, f"numpy.{module}.multiarray.{name}")
        for name, function in (("scalar", core.scalar), ("_reconstruct", core._reconstruct))
        for module in ("core", "_core")
    ]
    return [np.ndarray, np.dtype, *dtypes, *named]
