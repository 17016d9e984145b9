"""fairseq's datasets and batches: what 0.12.3 drops, ignores, or cannot read with NumPy 2."""

from __future__ import annotations

import inspect
import struct
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import data_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.utils import split_paths

from fairseq_phrase.compat.commands import as_user_error
from fairseq_phrase.errors import UserError

_Function = Callable[..., Any]


def keep_last_batches(original: _Function, *args: Any, **options: Any) -> Any:
    """Make all fairseq tasks keep the last batch of a data set, except in training.

    fairseq 0.12.3 drops a last batch whose size is not a multiple of ``--required-batch-size-multiple``
    (8 by default), also in ``fairseq-generate``. In training it still does. A split's name does not
    distinguish training from evaluation (``--gen-subset train``), but only the trainer passes the option
    to shuffle groups of batches, and only for training data.
    """
    arguments = inspect.signature(original).bind(*args, **options).arguments
    if "grouped_shuffling" not in arguments:
        arguments["required_batch_size_multiple"] = 1
    try:
        return original(**arguments)
    except Exception as error:  # fairseq has an assertion and a bare Exception
        if "should not exceed max_tokens" in str(error) or "max_tokens limit" in str(error):
            limit = arguments["max_tokens"]
            raise as_user_error(
                error, f"a sentence is longer than --max-tokens {limit}: give a larger --max-tokens"
            ) from None
        if str(error).startswith("Size of sample"):
            raise as_user_error(error, str(error)) from None
        raise


def batch_no_samples(original: _Function, indices: Any, *args: Any, **options: Any) -> Any:
    """Make no batches of no samples, an IndexError in fairseq. :func:`name_empty_data` names them."""
    return original(indices, *args, **options) if len(indices) else []


def name_empty_data(original: _Function, self: EpochBatchIterator) -> Any:
    """End a training without any batch, with a message that names the options."""
    if not self.frozen_batches:
        raise UserError(
            f"no batch can be made of {len(self.dataset)} samples: there are fewer than "
            "--required-batch-size-multiple (8 by default), or they are longer than --max-tokens, "
            "--max-source-positions or --max-target-positions. For a few samples "
            "give --required-batch-size-multiple 1"
        )
    return original(self)


def free_with_last_reference(
    original: _Function, sampler: Any, ordered_batches: _Function, *args: Any, **options: Any
) -> None:
    """Free an iterator over epochs, and end its workers, when nothing refers to it any more.

    With ``fairseq-train data1:data2`` each epoch has an iterator of its own. Its sampler refers back to
    it. Python's garbage collection would find this cycle later, and close the queues of the workers
    before torch tells them to end: torch waits 5 s for each.
    """
    if isinstance(ordered_batches, types.MethodType):
        method: Any = weakref.WeakMethod(ordered_batches)
        original(sampler, lambda *now: method()(*now), *args, **options)
    else:  # a plugin's function, which refers to no iterator
        original(sampler, ordered_batches, *args, **options)


def name_damaged_text(original: _Function, path: str, *args: Any, **options: Any) -> Any:
    """Name the files of a binarized text that fairseq cannot read."""
    try:
        return original(path, *args, **options)
    except (AssertionError, ValueError, struct.error) as error:
        raise UserError(
            f"{path}.idx and .bin are damaged, or not a text that fairseq has binarized ({error}): make "
            "the data again"
        ) from error


def name_splits(original: _Function, dataset_path: str) -> set[str]:
    """Find ``valid1``, ``valid2``, … by their names, as in ``--valid-subset``.

    fairseq 0.12.3 returns the names of their files (``valid1.de-en.de``). A split that was named then
    still counts as forgotten.
    """
    return {name.partition(".")[0] for name in original(dataset_path)}


def name_ignored_splits(original: _Function, cfg: Any) -> None:
    """End a training that would ignore validation sets, with a message that names the options."""
    try:
        original(cfg)
    except ValueError as error:
        subsets = cfg.dataset.valid_subset.split(",")
        unnamed = sorted(data_utils._find_extra_valid_paths(cfg.task.data) - {*subsets})
        raise as_user_error(
            error,
            f"{cfg.task.data} also has {', '.join(unnamed)}: name all sets to validate on, "
            f"--valid-subset {','.join([*subsets, *unnamed])}, or join them with --combine-val, or give "
            "--ignore-unused-valid-subsets",
        ) from None


def name_missing_split(
    original: _Function, self: Any, split: str, *args: Any, **options: Any
) -> None:
    """Name the splits that the data have, if one is missing."""
    try:
        original(self, split, *args, **options)
    except FileNotFoundError as error:
        if not str(error).startswith("Dataset not found"):
            raise
        files = (
            file for folder in split_paths(self.cfg.data) for file in Path(folder).glob("*.bin")
        )
        splits = sorted({file.name.partition(".")[0] for file in files})
        raise as_user_error(
            error, f"{self.cfg.data} has no split '{split}': it has {', '.join(splits) or 'none'}"
        ) from None


def do_not_upsample_by_default(
    original: _Function, self: Any, datasets: Any, sample_ratios: Any = 1
) -> None:
    """Let ``split``, ``split1``, … be combined without ``--upsample-primary``.

    Its default is -1 in fairseq 0.12.3, which leads to an array of negative size.
    """
    if not isinstance(sample_ratios, int):
        sample_ratios = [1 if ratio < 0 else ratio for ratio in sample_ratios]
    original(self, datasets, sample_ratios)


def bucket_with_numpy_2(original: _Function, sizes: Any, num_buckets: int) -> Any:
    """Compute the lengths of ``--num-batch-buckets`` without an argument that NumPy 2.4 removed."""
    parts = np.linspace(0, 100, num_buckets + 1)
    return np.unique(np.percentile(sizes, parts, method="lower")[1:])


def restore_integers_of_numpy() -> None:
    """Restore the name ``compat.long`` in NumPy 2, which fairseq 0.12.3 uses for its integers.

    Without it fairseq cannot make blocks of one sentence (``--sample-break-mode eos``).
    """
    if not hasattr(np, "compat"):
        np.compat = types.SimpleNamespace(long=int)  # type: ignore[attr-defined]


def ask_for_alignments(
    original: _Function, self: Any, task: Any, *args: Any, **options: Any
) -> None:
    """Refuse an alignment criterion for data without alignments: its loss would silently be 0."""
    cfg = getattr(task, "cfg", None)
    if not getattr(cfg, "load_alignments", True):
        raise UserError(
            "--criterion label_smoothed_cross_entropy_with_alignment has no alignments: give "
            "--load-alignments with data that fairseq-preprocess --align-suffix made"
        )
    original(self, task, *args, **options)


def name_missing_alignments(
    original: _Function, self: Any, split: str, *args: Any, **options: Any
) -> None:
    """Refuse ``--load-alignments`` for training data without alignments, which fairseq ignores."""
    original(self, split, *args, **options)
    is_training = split == self.cfg.train_subset
    if is_training and self.cfg.load_alignments and self.datasets[split].align_dataset is None:
        name = f"{split}.align.{self.cfg.source_lang}-{self.cfg.target_lang}"
        raise UserError(
            f"--load-alignments: {self.cfg.data} has no {name}: make it with fairseq-preprocess "
            "--align-suffix, or leave the option out"
        )
