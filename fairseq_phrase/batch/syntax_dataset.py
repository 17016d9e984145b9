"""The fairseq dataset of sentence pairs with parses of the sources, and its collater."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from fairseq.data import BaseWrapperDataset, LanguagePairDataset, data_utils

from fairseq_phrase.batch.subword_sampling import SubwordSampling
from fairseq_phrase.batch.tree_sources import Trees, field_of
from fairseq_phrase.store.fields import PREFIX

Parse = dict[str, np.ndarray]

# This number of pairs of a tree's nodes (tokens and constituents) takes the memory of one token. Measured
# in a training step of tree_transformer of base size: 1.0 MiB per token in sentences of 100 words,
# 1.4 MiB in a sentence of 800 words with a random tree, 1.6 MiB in a chain of 800 words.
PAIRS_PER_TOKEN = 2048


class Parses(Protocol):
    """Parses of a dataset's sentences, by their indices."""

    def __len__(self) -> int:
        """Return the number of sentences."""
        ...

    def __getitem__(self, index: int) -> Parse:
        """Return a sentence's parse as :class:`fairseq_phrase.store.reader.ParseStore` does."""
        ...


class SyntaxDataset(BaseWrapperDataset):
    """A translation dataset with the parses of its source sentences.

    Args:
        dataset: the sentence pairs, as fairseq loads them.
        parses: the parses of the sources, one for each sentence pair.
        max_subwords: if fairseq cuts sources (``--truncate-source``), the number of subwords that it
            keeps; parses are cut in the same way.
        trees: the source of heads; by default the parse's heads are used.
        is_pool: whether these sentences are the pool of ``trees``.
        gold: whether batches also have the words and heads under ``trees``, for a loss.
        inputs: the fields that models need, which are put into ``net_input``; all by default.
        sampling: cuts words into subwords anew each time. Sentences that ``max_subwords`` cuts short
            keep their cut.

    Raises:
        ValueError: there are more or fewer parses than sentence pairs.
    """

    def __init__(
        self,
        dataset: LanguagePairDataset,
        parses: Parses,
        max_subwords: int | None = None,
        trees: Trees | None = None,
        is_pool: bool = False,
        *,
        gold: bool = False,
        inputs: Collection[str] | None = None,
        sampling: SubwordSampling | None = None,
    ):
        super().__init__(dataset)
        if len(parses) != len(dataset):
            raise ValueError(f"{len(dataset)} sentence pairs, but {len(parses)} parses")
        self.parses = parses
        self.max_subwords = max_subwords
        self.trees = trees or Trees()
        self.is_pool = is_pool
        self.gold, self.inputs = gold, inputs
        self.sampling = sampling

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the wrapped dataset (``src``, ``tgt``, ``num_tokens_vec``…)."""
        if name == "dataset":  # not set yet, while a worker unpickles this object
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return fairseq's sample with the parse under ``parse``."""
        return self._with_parse(self.dataset[index], self.parses[index], index)

    def _with_parse(self, sample: dict[str, Any], parse: Parse, index: int) -> dict[str, Any]:
        if self.max_subwords is not None and len(parse["words"]) > self.max_subwords:
            parse = truncated(parse, self.max_subwords)
        elif self.sampling is not None:
            parse = self.sampling(sample, parse, index)
        sample["parse"] = self.trees(parse, sample["source"], index if self.is_pool else None)
        return sample

    def set_epoch(self, epoch: int) -> None:
        """Take note of the epoch, which what is drawn depends on."""
        super().set_epoch(epoch)
        if self.sampling is not None:
            self.sampling.epoch = epoch

    def _parse(self, index: int) -> Parse:
        parse = self.parses[index]
        return parse if self.max_subwords is None else truncated(parse, self.max_subwords)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return several samples; torch's data loader calls this method if it exists.

        The parses of a batch are read at once, which takes a fraction of the time.
        """
        if not hasattr(self.parses, "many"):
            return [self[index] for index in indices]
        dataset = self.dataset
        samples = [dataset[index] for index in indices]
        # At the end of the data, fairseq may give the last worker an empty batch.
        parses = self.parses.many(np.asarray(indices, dtype=np.int64))
        return [
            self._with_parse(sample, parse, index)
            for sample, parse, index in zip(samples, parses, indices, strict=True)
        ]

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        """Return the sentence pairs' lengths as fairseq counts them for ``--max-tokens``."""
        return self.dataset.num_tokens_vec(indices)

    def batch_by_size(
        self,
        indices: np.ndarray,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        required_batch_size_multiple: int = 1,
    ) -> Any:
        """Batch sentences as fairseq does, but count large trees by their pairs of nodes.

        A sentence whose tree has N nodes (tokens and constituents) counts as N² / 2048 tokens, if that is
        more than fairseq counts. This never happens below 512 tokens, because a tree has fewer
        constituents than tokens. A tree that is too large for ``max_tokens`` is alone in its batch.
        """
        options = (max_tokens, max_sentences, required_batch_size_multiple)
        if max_tokens is None or self.get_batch_shapes() is not None:
            return super().batch_by_size(indices, *options)
        lengths = self.num_tokens_vec(indices).astype(np.int64)
        large = np.minimum(self._tree_tokens(indices), max_tokens)
        if (large <= lengths).all():
            return super().batch_by_size(indices, *options)
        return data_utils.batch_by_size(indices, None, np.maximum(lengths, large), *options)

    def _tree_tokens(self, indices: np.ndarray) -> np.ndarray:
        """Count the tokens that trees count as; 0 if a tree cannot count as more than its tokens.

        Shape: ``(sentences,)``, int64
        """
        counted = np.zeros(len(indices), dtype=np.int64)
        lengths = np.asarray(self.dataset.src_sizes)[indices]
        for place in np.flatnonzero(lengths > PAIRS_PER_TOKEN // 4):
            spans = self._parse(int(indices[place])).get("spans", ())
            counted[place] = (int(lengths[place]) + len(spans)) ** 2 // PAIRS_PER_TOKEN
        return counted

    def collater(self, samples: Sequence[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        """Make fairseq's batch, with the parses in ``net_input`` (see :func:`collate_parses`)."""
        batch = self.dataset.collater(samples, **kwargs)
        if batch:
            # fairseq has sorted the sentences by length. Their ids give the order.
            by_id = {sample["id"]: sample["parse"] for sample in samples}
            parses = [by_id[index] for index in batch["id"].tolist()]
            tokens = batch["net_input"]["src_tokens"]
            collated = collate_parses(tokens, parses, self.dataset.src_dict)
            for name, values in collated.items():
                if self.inputs is None or field_of(name.removeprefix(PREFIX)).name in self.inputs:
                    batch["net_input"][name] = values
            if self.gold:
                batch["trees"] = {name: collated[f"{PREFIX}{name}"] for name in ("words", "heads")}
        return batch


def collate_parses(
    src_tokens: torch.Tensor, parses: Sequence[Parse], dictionary: Any
) -> dict[str, torch.Tensor]:
    """Batch the parses of a batch's source tokens.

    Args:
        src_tokens: the batch's source, padded on either side. Shape: ``(batch, tokens)``.
        parses: each sentence's parse, in the batch's order.
        dictionary: the source dictionary, which tells words from special tokens.

    Returns:
        A tensor for each field of the parses, named ``src_`` and the field's name, int64, -1 at padding:
        ``src_words``, the word of each subword (shape ``(batch, tokens)``, word indices from 0; -1
        also at the tokens that mark a sentence's start and end); ``src_heads`` (shape ``(batch,
        words)``, word indices from 0; the root is its own head); ``src_deprels`` and ``src_tags`` (shape
        ``(batch, words)``, numbers in their dictionaries); ``src_spans`` (shape ``(batch,
        constituents, 3)``: first word, one past the last, number of the label; children before
        parents).

    Raises:
        ValueError: a sentence has more or fewer subwords than its parse.
    """
    special = (dictionary.pad(), dictionary.eos(), dictionary.bos())
    tokens = src_tokens.cpu().numpy()
    is_subword = (tokens != special[0]) & (tokens != special[1]) & (tokens != special[2])
    _check_lengths(is_subword.sum(1).tolist(), parses)
    batch = {}
    for name in parses[0]:
        row = field_of(name)
        values = [parse[name] for parse in parses]
        if row.per == "subword":
            padded = np.full(tokens.shape, -1, dtype=np.int64)
            padded[is_subword] = np.concatenate(values)
        else:
            padded = _pad(values)
        batch[f"{PREFIX}{name}"] = torch.from_numpy(padded)
    return batch


def _check_lengths(subwords: Sequence[int], parses: Sequence[Parse]) -> None:
    """Check that each source has as many subwords as its parse.

    Raises:
        ValueError: the numbers differ.
    """
    for found, parse in zip(subwords, parses, strict=True):
        if found != len(parse["words"]):
            raise ValueError(
                f"a source of {found} subwords has a parse of {len(parse['words'])}: the text "
                "was changed after it was parsed; run fairseq-phrase-preprocess, or -attach, again"
            )


def _pad(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Stack rows of different lengths. Shape: ``(rows, longest, …)``, int64, padded with -1."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    shape = (len(rows), lengths.max(initial=0), *rows[0].shape[1:])
    padded = np.full(shape, -1, dtype=np.int64)
    padded[np.arange(shape[1]) < lengths[:, None]] = np.concatenate(rows)
    return padded


def truncated(parse: Parse, subwords: int) -> Parse:
    """Cut a parse to its first subwords.

    A word whose head is removed becomes a dependent of the head's nearest kept ancestor. Constituents
    keep their remaining words.

    Args:
        parse: a sentence's parse.
        subwords: number of subwords to keep.

    Returns:
        The parse of the words that keep a subword.
    """
    if len(parse["words"]) <= subwords:
        return parse
    words = parse["words"][:subwords]
    count = int(words[-1]) + 1 if len(words) else 0
    return {
        name: field_of(name).truncated(values, subwords, count) for name, values in parse.items()
    }
