"""The table of repairs: which function of fairseq is replaced by which of this package.

Without a repair a result is wrong, or a workflow of the documentation stops (docs/compat.md).
``FAIRSEQ_PHRASE_REPAIRS=none`` leaves fairseq as it is; a list of names applies only these.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
from fairseq import options as fairseq_options
from fairseq.criterions.label_smoothed_cross_entropy_with_alignment import (
    LabelSmoothedCrossEntropyCriterionWithAlignment as AlignmentCriterion,
)
from fairseq.data import bucket_pad_length_dataset
from fairseq.file_io import PathManager
from fairseq.nan_detector import NanDetector
from fairseq.search import DiverseBeamSearch
from fairseq.tasks.fairseq_task import FairseqTask
from fairseq.tasks.translation_from_pretrained_bart import TranslationFromPretrainedBARTTask
from fairseq.trainer import Trainer
from fairseq_cli import generate

from fairseq_phrase.errors import UserError
from fairseq_phrase.repairs.checkpoints import make_checkpoints_loadable
from fairseq_phrase.repairs.commands import (
    keep_arguments,
    let_tasks_choose_optimizers,
    name_missing_choices,
    train_in_bfloat16_without_a_tpu,
    watch_results_of_tensors,
    write_only_a_shard,
)
from fairseq_phrase.repairs.datasets import (
    ask_for_alignments,
    bucket_with_numpy_2,
    keep_last_batches,
    restore_integers_of_numpy,
)
from fairseq_phrase.repairs.inference import penalize_groups_by_their_own_sentence
from fairseq_phrase.repairs.resuming import (
    continue_all_state,
    copy_whole,
    resume_the_same_training,
    save_all_state,
)
from fairseq_phrase.repairs.uncompiled import replace_missing_extensions

_Function = Callable[..., Any]
SETTING = "FAIRSEQ_PHRASE_REPAIRS"


def avoid_cudnn_attention() -> None:
    """Let torch's other kernels compute attention with a mask.

    Symptom: on Hopper, cuDNN's can give NaN gradients in 16 bits (benchmarks/smoke.py, docs/gpu.md).
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


#: Each repair, with the class or module whose function it replaces; None for those that replace none.
REPAIRS: tuple[tuple[_Function, Any, str], ...] = (
    (avoid_cudnn_attention, None, ""),
    (restore_integers_of_numpy, None, ""),
    (bucket_with_numpy_2, bucket_pad_length_dataset, "get_buckets"),
    (keep_last_batches, FairseqTask, "get_batch_iterator"),
    (resume_the_same_training, Trainer, "get_train_iterator"),
    (save_all_state, Trainer, "save_checkpoint"),
    (continue_all_state, Trainer, "load_checkpoint"),
    (let_tasks_choose_optimizers, Trainer, "_build_optimizer"),
    (copy_whole, PathManager, "copy"),
    (train_in_bfloat16_without_a_tpu, fairseq_options, "parse_args_and_arch"),
    (name_missing_choices, fairseq_options, "parse_args_and_arch"),
    (watch_results_of_tensors, NanDetector, "add_hooks"),
    (ask_for_alignments, AlignmentCriterion, "__init__"),
    (keep_arguments, TranslationFromPretrainedBARTTask, "__init__"),
    (write_only_a_shard, generate, "_main"),
    (penalize_groups_by_their_own_sentence, DiverseBeamSearch, "step"),
)


def patch_fairseq() -> None:
    """Apply the repairs to fairseq, each only once, and let torch load fairseq's checkpoints.

    Raises:
        UserError: the setting names an unknown repair.
    """
    make_checkpoints_loadable()
    replace_missing_extensions()
    chosen = chosen_repairs()
    for repair, owner, name in REPAIRS:
        if repair.__name__ not in chosen:
            continue
        if owner is None:
            repair()
        else:
            patch(owner, name, repair)


def chosen_repairs() -> set[str]:
    """Return the names of the repairs that :data:`SETTING` chooses: all, unless it is set."""
    names = {repair.__name__ for repair, _, _ in REPAIRS}
    setting = os.environ.get(SETTING, "")
    if not setting:
        return names
    chosen = set() if setting == "none" else {name.strip() for name in setting.split(",")}
    if unknown := sorted(chosen - names):
        raise UserError(
            f"{SETTING}={setting}: there is no {unknown[0]}; expected none, or some of "
            f"{', '.join(sorted(names))}"
        )
    return chosen


def patch(owner: Any, name: str, new: _Function) -> None:
    """Replace a function or property of a class or module, unless ``new`` has already replaced it.

    Args:
        new: is called with the original function, then with its arguments.
    """
    attribute = getattr(owner, name)
    original: Any = attribute.fget if isinstance(attribute, property) else attribute
    if new in getattr(original, "patched_by", ()):
        return

    @functools.wraps(original)
    def patched(*args: Any, **options: Any) -> Any:
        return new(original, *args, **options)

    patched.patched_by = (*getattr(original, "patched_by", ()), new)  # type: ignore[attr-defined]
    setattr(owner, name, property(patched) if isinstance(attribute, property) else patched)
