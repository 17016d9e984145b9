"""fairseq's datasets and batches: what 0.12.3 drops, ignores, or cannot read with NumPy 2."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.utils import split_paths

from fairseq_phrase.errors import UserError

_Function = Callable[..., Any]


def keep_last_batches(original: _Function, *args: Any, **options: Any) -> Any:
    """Make all fairseq tasks keep the last batch of a data set, except in training.

    Symptom: up to seven sentences of a test set have no translation (fairseq's issue 5036). fairseq
    drops a last batch whose size is not a multiple of ``--required-batch-size-multiple`` (8 by
    default). In training it still does. A split's name does not distinguish training from evaluation
    (``--gen-subset train``), but only the trainer passes the option to shuffle groups of batches, and
    only for training data.
    """
    arguments = inspect.signature(original).bind(*args, **options).arguments
    if "grouped_shuffling" not in arguments:
        arguments["required_batch_size_multiple"] = 1
    return original(**arguments)


def bucket_with_numpy_2(original: _Function, sizes: Any, num_buckets: int) -> Any:
    """Compute the lengths of ``--num-batch-buckets`` without an argument that NumPy 2.4 removed.

    Symptom: ``percentile() got an unexpected keyword argument 'interpolation'``.
    """
    parts = np.linspace(0, 100, num_buckets + 1)
    return np.unique(np.percentile(sizes, parts, method="lower")[1:])


def restore_integers_of_numpy() -> None:
    """Restore the name ``compat.long`` in NumPy 2, which fairseq 0.12.3 uses for its integers.

    Symptom: ``--sample-break-mode eos`` ends in an AttributeError.
    """
    if not hasattr(np, "compat"):
        np.compat = types.SimpleNamespace(long=int)  # type: ignore[attr-defined]


def ask_for_alignments(
    original: _Function, self: Any, task: Any, *args: Any, **options: Any
) -> None:
    """Refuse an alignment criterion for data without alignments.

    Symptom: it trains, and its loss of alignments is silently 0.
    """
    cfg: Any = getattr(task, "cfg", None)
    if not getattr(cfg, "load_alignments", True):
        raise UserError(
            "--criterion label_smoothed_cross_entropy_with_alignment has no alignments: give "
            "--load-alignments with data that fairseq-preprocess --align-suffix made"
        )
    if getattr(cfg, "load_alignments", False):
        folder = split_paths(cfg.data)[0]
        name = f"{cfg.train_subset}.align.{cfg.source_lang}-{cfg.target_lang}"
        if not Path(folder, f"{name}.idx").is_file():
            raise UserError(
                f"--load-alignments: {folder} has no {name}: make it with fairseq-preprocess "
                "--align-suffix, or leave the option out"
            )
    original(self, task, *args, **options)
