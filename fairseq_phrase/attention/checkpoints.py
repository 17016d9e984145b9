"""Open trained models and their data for analysis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils

# Importing these registers the task and the models, as --user-dir does in fairseq's commands.
import fairseq_phrase.models.phrase_transformer
import fairseq_phrase.models.tree_transformer
import fairseq_phrase.tasks.syntax_translation  # noqa: F401
from fairseq_phrase.batch.syntax_dataset import collate_parses
from fairseq_phrase.errors import UserError
from fairseq_phrase.store.fields import FIELDS, PREFIX
from fairseq_phrase.syntax.encoding import EncodedSentence


def load_model(checkpoint: Path, data: Path, source_parser: str | None = None) -> tuple[Any, Any]:
    """Load a checkpoint for inference.

    Args:
        checkpoint: a fairseq checkpoint.
        data: its data directory.
        source_parser: parser of raw text instead of the one that made the data.

    Returns:
        The model and its task.

    Raises:
        UserError: the checkpoint is missing or does not fit the data.
    """
    if not checkpoint.is_file():
        raise UserError(f"the checkpoint {checkpoint} is not there")
    overrides: dict[str, Any] = {"data": str(data)}
    if source_parser is not None:
        overrides["source_parser"] = source_parser
    try:
        models, _, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(checkpoint)], arg_overrides=overrides
        )
    except (RuntimeError, FileNotFoundError, UserError) as error:
        raise UserError(f"{checkpoint} cannot be used with {data}: {error}") from None
    return models[0].eval(), task


def model_input(sentence: EncodedSentence, task: Any) -> dict[str, torch.Tensor]:
    """Make the encoder's input of one raw sentence.

    Args:
        sentence: the sentence, from ``task.encode_lines``.
        task: the model's task.

    Returns:
        ``src_tokens`` of shape ``(1, tokens)`` and the parse that the model asks for, as
        :func:`fairseq_phrase.batch.syntax_dataset.collate_parses` makes it.
    """
    dictionary = task.source_dictionary
    indices = [*map(dictionary.index, sentence.pieces), dictionary.eos()]
    tokens = torch.tensor([indices])
    parse = task.parse_of(sentence)
    batch = collate_parses(tokens, [parse], dictionary) if parse else {}
    return {"src_tokens": tokens, **batch}


def dataset_input(task: Any, subset: str, index: int) -> dict[str, torch.Tensor]:
    """Make the encoder's input of one sentence of a data directory.

    Args:
        task: the model's task.
        subset: ``test``, ``valid``, …
        index: the sentence, from 0.

    Raises:
        UserError: there is no such subset or sentence.
    """
    dataset = _loaded(task, subset)
    if not 0 <= index < len(dataset):
        raise UserError(f"{subset} has sentences 0 to {len(dataset) - 1}, not {index}")
    net_input = dataset.collater([dataset[index]])["net_input"]
    names = {"src_tokens", *(f"{PREFIX}{name}" for name in FIELDS)}
    return {name: value for name, value in net_input.items() if name in names}


def dataset_batches(task: Any, subset: str, max_tokens: int) -> Iterator[dict[str, Any]]:
    """Go through a data set in fairseq's batches.

    Args:
        task: the model's task.
        subset: ``test``, ``valid``, …
        max_tokens: in a batch, as fairseq counts.

    Raises:
        UserError: there is no such subset, or it has no targets.
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
        UserError: there is no such subset.
    """
    try:
        task.load_dataset(subset)
    except FileNotFoundError as error:
        raise UserError(str(error)) from None
    return task.dataset(subset)
