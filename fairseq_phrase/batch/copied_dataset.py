"""Datasets whose batches bring the unknown source words along that a model may have copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from fairseq.data import BaseWrapperDataset

from fairseq_phrase.batch.raw_tokens import RawTokens, plain
from fairseq_phrase.errors import UserError
from fairseq_phrase.store.remedy import rerun

__all__ = ["CopiedDataset", "RawCopiedDataset", "write_back"]


class Words(Protocol):
    """The unknown words of each sentence, in the order of their places."""

    def __len__(self) -> int:
        """Return the number of sentences."""
        ...

    def __getitem__(self, index: int) -> Sequence[str]:
        """Return the words of a sentence."""
        ...


class CopiedDataset(BaseWrapperDataset):
    """A translation dataset; ``copied`` of its batches has the words of each sentence.

    Args:
        dataset: the sentence pairs.
        words: their words.
        directory: the data directory, for the message.

    Raises:
        UserError: the words belong to other sentences.
    """

    def __init__(self, dataset: Any, words: Words, directory: str = ""):
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
            return self.dataset.__getitems__(indices)
        return [self.dataset[index] for index in indices]

    def num_tokens_vec(self, indices: Any) -> Any:
        """Return the sentence pairs' lengths as fairseq counts them for ``--max-tokens``."""
        return self.dataset.num_tokens_vec(indices)

    def collater(self, samples: Sequence[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        """Make the wrapped dataset's batch, and add the words."""
        batch = self.dataset.collater(samples, **kwargs)
        if batch:
            batch["copied"] = [self.words[index] for index in batch["id"].tolist()]
        return batch


class RawCopiedDataset(CopiedDataset):
    """The same for raw sentences. ``src_tokens`` of its batches carry the words.

    ``fairseq-interactive`` keeps only ``src_tokens`` and the lengths of a batch.
    """

    def collater(self, samples: Sequence[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        """Make the batch of :class:`CopiedDataset`, with tokens that carry the words."""
        batch = super().collater(samples, **kwargs)
        if batch:
            tokens = batch["net_input"]["src_tokens"]
            batch["net_input"]["src_tokens"] = _with_words(tokens, batch["copied"])
        return batch


def _with_words(tokens: torch.Tensor, words: Sequence[Sequence[str]]) -> RawTokens:
    """Return the same indices, which carry the words of each row, and what they carry already."""
    return RawTokens.of(plain(tokens), getattr(tokens, "origins", ()), words)


def write_back(
    sample: dict[str, Any],
    generated: Sequence[Sequence[dict[str, Any]]],
    words: Sequence[Sequence[str]],
) -> None:
    """Let generated tokens, and those of the batch, carry their sentences' words.

    fairseq makes text of them by :meth:`~fairseq_phrase.batch.raw_tokens.SourceDictionary.string`, which
    writes the words.

    Args:
        sample: the batch; its ``src_tokens`` and ``target`` are replaced.
        generated: the hypotheses of each sentence; their ``tokens`` are replaced.
        words: the words of each sentence.
    """
    for hypotheses, own in zip(generated, words, strict=True):
        for hypothesis in hypotheses:
            hypothesis["tokens"] = _with_words(hypothesis["tokens"], [own])
    net_input = sample["net_input"]
    net_input["src_tokens"] = _with_words(net_input["src_tokens"], words)
    if sample.get("target") is not None:
        sample["target"] = _with_words(sample["target"], words)
