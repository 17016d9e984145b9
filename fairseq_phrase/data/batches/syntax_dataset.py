"""fairseq's sentence pairs with parses of the sources, with words to copy, or in another order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from fairseq.data import BaseWrapperDataset, LanguagePairDataset, data_utils

from fairseq_phrase.data.batches.source_batches import (
    PAIRS_PER_TOKEN,
    ParseArrays,
    ReadTogether,
    collate_parses,
    make_structures,
    truncated,
)
from fairseq_phrase.data.batches.tree_sources import Trees
from fairseq_phrase.data.store.layout import rerun
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.parse_batch import MakeStructure
from fairseq_phrase.syntax.fields import FIELDS, PREFIX

#: Parses of a dataset's sentences; a store can also read a batch's parses at once.
Parses = ParseStore | Sequence[ParseArrays]


class _WrappedPairs(BaseWrapperDataset):
    """A translation dataset that adds entries to fairseq's batches."""

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the wrapped dataset (``src``, ``tgt``, ``num_tokens_vec``…)."""
        if name == "dataset":  # not set yet, while a worker unpickles this object
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        """Return the sentence pairs' lengths as fairseq counts them for ``--max-tokens``."""
        return np.asarray(self.dataset.num_tokens_vec(indices))


class SyntaxDataset(_WrappedPairs):
    """A translation dataset with the parses of its source sentences.

    Args:
        parses: the parses of the sources, one for each sentence pair.
        max_subwords: if fairseq truncates sources (``--truncate-source``), the number of subwords that
            it keeps. Parses are truncated in the same way.
        trees: the source of heads; by default the parse's heads are used.
        is_pool: whether ``trees`` uses these sentences as its pool.
        of_loss: the fields that a criterion reads, which are put into the batch's ``parse``.
        inputs: the fields that models need, which are put into ``net_input``; all by default.
        structures: functions that make other inputs of models from the parses.

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
        of_loss: Collection[str] = (),
        inputs: Collection[str] | None = None,
        structures: Mapping[str, MakeStructure] | None = None,
    ):
        super().__init__(dataset)
        if len(parses) != len(dataset):
            raise ValueError(f"{len(dataset)} sentence pairs, but {len(parses)} parses")
        self.parses = parses
        self.max_subwords = max_subwords
        self.trees = trees or Trees()
        self.is_pool = is_pool
        self.of_loss, self.inputs = of_loss, inputs
        self.structures = {} if structures is None else structures

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return fairseq's sample with the parse under ``parse``."""
        sample: dict[str, Any] = self.dataset[index]
        parse = self.parses[index]
        if self.max_subwords is not None and len(parse["words"]) > self.max_subwords:
            parse = truncated(parse, self.max_subwords)
        sample["parse"] = self.trees(parse, sample["source"], index if self.is_pool else None)
        return sample

    def lost(self) -> Counter[str]:
        """Count the sources that ``max_subwords`` truncates, and their lost edges and constituents."""
        lost: Counter[str] = Counter()
        if self.max_subwords is None:
            return lost
        # fairseq has truncated the sources and added their end.
        for index in np.flatnonzero(np.asarray(self.dataset.src_sizes) > self.max_subwords):
            parse = self.parses[int(index)]
            if len(parse["words"]) > self.max_subwords:
                lost["sources"] += 1
                for name, items in truncated(parse, self.max_subwords).items():
                    if (per := FIELDS[name].per) in ("edge", "constituent"):
                        lost[f"{per}s ({name})"] += len(parse[name]) - len(items)
        return lost

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return several samples; torch's data loader calls this method if it exists.

        They lack parses if :meth:`collater` reads the parses of a batch at once, which takes a fraction
        of the time. This is possible if parses stay as they are stored.
        """
        dataset: Any = self
        source, _ = self.trees.setting
        if isinstance(self.parses, ParseStore) and source == "parse":
            longest = self.parses.sizes("words")[indices].max(initial=0)
            if self.max_subwords is None or longest <= self.max_subwords:
                dataset = self.dataset
        return [dataset[index] for index in indices]

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
        constituents than tokens. A tree too large for ``max_tokens`` is alone in its batch.
        """
        options = (max_tokens, max_sentences, required_batch_size_multiple)
        if max_tokens is None or self.get_batch_shapes() is not None:
            return super().batch_by_size(indices, *options)
        positions, counts = self._large_trees(indices)
        large = np.minimum(counts, max_tokens)
        if (large <= self.num_tokens_vec(indices[positions])).all():
            return super().batch_by_size(indices, *options)
        lengths = self.num_tokens_vec(indices).astype(np.int64)
        lengths[positions] = np.maximum(lengths[positions], large)
        return data_utils.batch_by_size(indices, None, lengths, *options)

    def _large_trees(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Count the tokens that trees count as which may count more than their tokens.

        Returns:
            Their positions in ``indices`` and their counts. Shapes: ``(trees,)``, int64
        """
        lengths = np.asarray(self.dataset.src_sizes)
        positions = np.flatnonzero(lengths[indices] > PAIRS_PER_TOKEN // 4)
        counts = []
        for index in indices[positions].tolist():
            parse = truncated(self.parses[index], self.max_subwords)
            nodes = int(lengths[index]) + len(parse.get("spans", ()))
            counts.append(nodes**2 // PAIRS_PER_TOKEN)
        return positions, np.array(counts, dtype=np.int64)

    def collater(self, samples: Sequence[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        """Make fairseq's batch, with parses in ``net_input`` and ``parse`` (:func:`collate_parses`)."""
        batch: dict[str, Any] = self.dataset.collater(samples, **kwargs)
        if batch:
            # fairseq has sorted the sentences by length. Their ids give the order.
            ids = batch["id"]
            parses: Sequence[ParseArrays] | ReadTogether
            if "parse" in samples[0]:
                by_id = {sample["id"]: sample["parse"] for sample in samples}
                parses = [by_id[index] for index in ids.tolist()]
            else:
                assert isinstance(self.parses, ParseStore)
                parses = self.parses.together(ids.numpy())
            tokens = batch["net_input"]["src_tokens"]
            collated = collate_parses(tokens, parses, self.dataset.src_dict)
            for name, values in collated.items():
                if self.inputs is None or name.removeprefix(PREFIX) in self.inputs:
                    batch["net_input"][name] = values
            batch["net_input"] |= make_structures(self.structures, tokens, collated)
            if self.of_loss:
                batch["parse"] = {name: collated[f"{PREFIX}{name}"] for name in self.of_loss}
        return batch


class CopiedDataset(_WrappedPairs):
    """A translation dataset whose batches have the words of each sentence under ``copied``.

    Args:
        words: for each sentence, its unknown words in the order of their slots.
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

    def collater(self, samples: Sequence[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        """Make the wrapped dataset's batch, and add the words."""
        batch: dict[str, Any] = self.dataset.collater(samples, **kwargs)
        if batch:
            batch["copied"] = [self.words[index] for index in batch["id"].tolist()]
        return batch


class LongestSideOrder(_WrappedPairs):
    """A translation dataset whose batches have sentence pairs with a longer side of about one length.

    fairseq orders pairs by source, then target. A batch is as large as its longest sentence of either
    side allows, so one long target shortens a batch of short sources. Here the order is by
    (max(source, target), target, source); pairs of the same two lengths are in fairseq's order, which is
    random in each epoch if fairseq shuffles.
    """

    def ordered_indices(self) -> np.ndarray:
        """Return the order in which sentence pairs are batched. Shape: (sentence pairs,)."""
        indices = np.asarray(self.dataset.ordered_indices())
        source, target = (
            np.asarray(sizes)[indices] for sizes in (self.dataset.src_sizes, self.dataset.tgt_sizes)
        )
        # The last key is the first to sort by.
        order = np.lexsort((source, target, np.maximum(source, target)))
        return indices[order]
