"""Loading trained models and their data for analysis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairseq.utils import split_paths

from fairseq_phrase.attention.source_sentence import SourceSentence
from fairseq_phrase.errors import UserError
from fairseq_phrase.models.loading import build_models, read_checkpoint
from fairseq_phrase.store.manifest import Manifest


def load_model(
    checkpoint: Path, data: Path | None, source_parser: str | None = None
) -> tuple[Any, Any]:
    """Load a checkpoint for inference.

    Args:
        checkpoint: a fairseq checkpoint.
        data: its data directory; None for the one that it was trained with.
        source_parser: the parser of raw text; by default the one that made the data.

    Returns:
        The model and its task.

    Raises:
        UserError: the checkpoint is missing or damaged, its model is not registered, or it does not fit
            the data.
    """
    saved = read_checkpoint(checkpoint)
    directory = saved.task_config.data if data is None else data
    models, task = build_models([saved], directory, source_parser=source_parser)
    return models[0], task


def raw_sentence(task: Any, line: str) -> SourceSentence:
    """Parse a raw line and cut it into subwords, in the same way as the data.

    Raises:
        UserError: the task or the data's parser cannot parse raw text.
    """
    if not hasattr(task, "encode_lines"):
        raise UserError("this model's task does not parse raw text: name a sentence by its --line")
    return SourceSentence.of_raw(task.encode_lines([line])[0], task)


def dataset_sentence(task: Any, subset: str, index: int) -> SourceSentence:
    """Read one sentence of a data directory.

    Args:
        task: the model's task.
        subset: ``test``, ``valid``, …
        index: the sentence, from 0.

    Raises:
        UserError: the subset or the sentence does not exist.
    """
    language, directory = task.cfg.source_lang, split_paths(task.cfg.data)[0]
    if hasattr(task, "require_parses") and Manifest.path(directory, language).is_file():
        task.require_parses(["words"])  # for the labels of nodes; the model may not need them
    dataset = _loaded(task, subset)
    if not 0 <= index < len(dataset):
        raise UserError(f"{subset} has lines 1 to {len(dataset)}, not {index + 1}")
    batch = dataset.collater([dataset[index]])
    (copied,) = batch.get("copied", [()])
    return SourceSentence.of_batch(batch["net_input"], task, copied)


def dataset_batches(task: Any, subset: str, max_tokens: int) -> Iterator[dict[str, Any]]:
    """Yield fairseq's batches of a data set.

    Args:
        task: the model's task.
        subset: ``test``, ``valid``, …
        max_tokens: the largest number of tokens in a batch, as fairseq counts them.

    Raises:
        UserError: the subset does not exist, or has no targets.
    """
    dataset = _loaded(task, subset)
    if dataset.tgt is None:
        raise UserError(f"{subset} has no targets")
    batches = task.get_batch_iterator(
        dataset,
        max_tokens=max_tokens,
        max_positions=(task.cfg.max_source_positions, task.cfg.max_target_positions),
        ignore_invalid_inputs=True,
    )
    return batches.next_epoch_itr(shuffle=False)


def _loaded(task: Any, subset: str) -> Any:
    """Load a split.

    Raises:
        UserError: the subset does not exist.
    """
    try:
        task.load_dataset(subset)
    except FileNotFoundError as error:
        raise UserError(str(error)) from None
    return task.dataset(subset)
