"""The table of patches: which function of fairseq is replaced by which of this package."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from fairseq import checkpoint_utils, utils
from fairseq import options as fairseq_options
from fairseq.criterions.label_smoothed_cross_entropy_with_alignment import (
    LabelSmoothedCrossEntropyCriterionWithAlignment as AlignmentCriterion,
)
from fairseq.data import ConcatDataset, bucket_pad_length_dataset, data_utils
from fairseq.data.audio import raw_audio_dataset
from fairseq.data.iterators import EpochBatchIterator, FrozenBatchSampler
from fairseq.file_io import PathManager
from fairseq.nan_detector import NanDetector
from fairseq.search import DiverseBeamSearch
from fairseq.tasks.fairseq_task import FairseqTask
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer
from fairseq_cli import generate

from fairseq_phrase.compat.checkpoints import make_checkpoints_loadable
from fairseq_phrase.compat.commands import (
    name_divergence,
    name_missing_checkpoint,
    name_missing_choices,
    name_unwritable_directory,
    refuse_fp16_without_a_gpu,
    train_in_bfloat16_without_a_tpu,
    watch_results_of_tensors,
    write_only_a_shard,
)
from fairseq_phrase.compat.datasets import (
    ask_for_alignments,
    batch_no_samples,
    bucket_with_numpy_2,
    do_not_upsample_by_default,
    free_with_last_reference,
    keep_last_batches,
    name_damaged_text,
    name_empty_data,
    name_ignored_splits,
    name_missing_alignments,
    name_missing_split,
    name_splits,
    restore_integers_of_numpy,
)
from fairseq_phrase.compat.inference import (
    align_where_unknown_words_are_replaced,
    penalize_groups_by_their_own_sentence,
    read_pairs_of_alignments,
    replace_before_joining,
    replace_unknown_words_without_a_file,
    truncate_in_use,
    truncate_raw_lines,
)
from fairseq_phrase.compat.resuming import (
    continue_all_state,
    continue_among_shards,
    copy_whole,
    name_number_of_shards,
    resume_the_same_training,
    save_all_state,
    save_plain_options,
)
from fairseq_phrase.compat.suggestions import suggest_names
from fairseq_phrase.compat.uncompiled import replace_missing_extensions

_Function = Callable[..., Any]


def patch_fairseq() -> None:
    """Apply all patches to fairseq, each only once."""
    make_checkpoints_loadable()
    replace_missing_extensions()
    # cuDNN's attention with a mask can give NaN gradients in 16 bits (benchmarks/smoke.py, docs/gpu.md).
    torch.backends.cuda.enable_cudnn_sdp(False)
    restore_integers_of_numpy()
    patch(FairseqTask, "get_batch_iterator", keep_last_batches)
    patch(FairseqTask, "load_state_dict", truncate_in_use)
    patch(TranslationTask, "build_dataset_for_inference", truncate_raw_lines)
    patch(TranslationTask, "load_dataset", name_missing_alignments)
    patch(TranslationTask, "load_dataset", name_missing_split)
    patch(AlignmentCriterion, "__init__", ask_for_alignments)
    patch(FairseqTask, "build_generator", align_where_unknown_words_are_replaced)
    patch(utils, "load_align_dict", replace_unknown_words_without_a_file)
    patch(utils, "replace_unk", read_pairs_of_alignments)
    patch(DiverseBeamSearch, "step", penalize_groups_by_their_own_sentence)
    patch(data_utils, "batch_by_size", batch_no_samples)
    patch(data_utils, "load_indexed_dataset", name_damaged_text)
    patch(data_utils, "_find_extra_valid_paths", name_splits)
    patch(data_utils, "raise_if_valid_subsets_unintentionally_ignored", name_ignored_splits)
    patch(ConcatDataset, "__init__", do_not_upsample_by_default)
    for module in (data_utils, bucket_pad_length_dataset, raw_audio_dataset):
        patch(module, "get_buckets", bucket_with_numpy_2)
    patch(Trainer, "_build_optimizer", refuse_fp16_without_a_gpu)
    patch(NanDetector, "add_hooks", watch_results_of_tensors)
    patch(Trainer, "train_step", name_divergence)
    patch(Trainer, "get_train_iterator", resume_the_same_training)
    patch(checkpoint_utils, "load_checkpoint_to_cpu", name_number_of_shards)
    patch(EpochBatchIterator, "load_state_dict", continue_among_shards)
    patch(Trainer, "state_dict", save_plain_options)
    patch(Trainer, "save_checkpoint", save_all_state)
    patch(Trainer, "load_checkpoint", continue_all_state)
    patch(PathManager, "copy", copy_whole)
    patch(EpochBatchIterator, "first_batch", name_empty_data)
    patch(FrozenBatchSampler, "__init__", free_with_last_reference)
    patch(checkpoint_utils, "verify_checkpoint_directory", name_unwritable_directory)
    patch(fairseq_options, "parse_args_and_arch", name_missing_choices)
    patch(fairseq_options, "parse_args_and_arch", suggest_names)
    for name in ("load_model_ensemble_and_task", "load_checkpoint"):
        patch(checkpoint_utils, name, name_missing_checkpoint)
    patch(fairseq_options, "parse_args_and_arch", train_in_bfloat16_without_a_tpu)
    patch(generate, "_main", write_only_a_shard)
    # An import of this command's module would let the root logger print all messages.
    if interactive := sys.modules.get("fairseq_cli.interactive"):
        patch(interactive, "main", replace_before_joining)


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
