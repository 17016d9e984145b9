"""Datasets whose batches contain the unknown source words that a model may have copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairseq.data import BaseWrapperDataset

from fairseq_phrase.errors import UserError
from fairseq_phrase.store.remedy import rerun


class CopiedDataset(BaseWrapperDataset):
    """A translation dataset; ``copied`` of its batches has the words of each sentence.

    Args:
        dataset: the sentence pairs.
        words: for each, its unknown words in the order of their slots.
        directory: the data directory, for the message.

    Raises:
        UserError: the words belong to other sentences.
    """

    def __init__(self, dataset: Any, words: Any, directory: str = ""):
        super().__init__(dataset)
        self.words = words
        if len(words) != len(dataset):
            raise UserError(
                f"{directory} has {len(dataset)} sentence pairs, and words to copy for {len(words)}: "
                f"{rerun(directory)}"
            )

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the wrapped dataset."""
        if name == "dataset":  # not set yet, while a worker unpickles this object
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return several samples, as the wrapped dataset does."""
        if hasattr(self.dataset, "__getitems__"):
            return list(self.dataset.__getitems__(indices))
        return [self.dataset[index] for index in indices]

    def num_tokens_vec(self, indices: Any) -> Any:
        """Return the sentence pairs' lengths as fairseq counts them for ``--max-tokens``."""
        return self.dataset.num_tokens_vec(indices)

    def collater(self, samples: Sequence[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        """Make the wrapped dataset's batch, and add the words."""
        batch: dict[str, Any] = self.dataset.collater(samples, **kwargs)
        if batch:
            batch["copied"] = [self.words[index] for index in batch["id"].tolist()]
        return batch
