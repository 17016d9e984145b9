"""The fairseq dataset of pre-training: text of one language, its parses, and an objective."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from fairseq.data import FairseqDataset, data_utils

from fairseq_phrase.data.batches.objectives import MakeSource
from fairseq_phrase.data.batches.source_batches import collate_parses, make_structures
from fairseq_phrase.data.batches.text_blocks import SegmentPairs, TextBlocks, parsed_tokens
from fairseq_phrase.methods.common.parse_batch import MakeStructure
from fairseq_phrase.syntax.fields import PREFIX

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary


class PretrainingDataset(FairseqDataset):
    """Samples with source and target.

    Random choices depend only on the seed, the epoch and the sample's index. A resumed training
    therefore repeats them with any number of workers.

    Args:
        inputs: the parse fields that the model needs.
        of_loss: the fields that a criterion reads; they are put into the batch's ``parse``.
        shuffle: whether samples of equal length are in random order.
        structures: functions that make other inputs of the model from the parses.
    """

    def __init__(
        self,
        blocks: TextBlocks | SegmentPairs,
        source: MakeSource,
        dictionary: Dictionary,
        *,
        seed: int,
        inputs: Collection[str] = (),
        of_loss: Collection[str] = (),
        shuffle: bool = False,
        structures: Mapping[str, MakeStructure] | None = None,
    ):
        super().__init__()
        self.blocks, self._source, self._dictionary = blocks, source, dictionary
        self._seed, self._shuffle, self._structures = seed, shuffle, structures or {}
        self._inputs, self._of_loss = frozenset(inputs), frozenset(of_loss)
        self.set_epoch(1)

    @property
    def sizes(self) -> np.ndarray:
        """Number of tokens of each sample. Shape: ``(samples,)``."""
        return np.asarray(self.blocks.sizes)

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """Batches are made again in each epoch, so a resumed training makes the same batches."""
        return False

    def set_epoch(self, epoch: int) -> None:
        """Store the epoch."""
        self._epoch = epoch
        self.blocks.draw(self._seed, epoch)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a sample's source, target and other inputs, as arrays, with its parse."""
        sample = self.blocks[index]
        rng = np.random.default_rng([self._seed, self._epoch, index])
        source, target, inputs = self._source(sample, rng)
        item = {"id": index, "source": source, "target": target, "parse": sample.parse}
        if sample.segments is not None:
            inputs["segments"] = sample.segments
            item["is_next"] = sample.is_next
        return {**item, "inputs": inputs}

    def collater(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Make a batch, padded on the right.

        Returns:
            fairseq's dictionary: ``net_input`` with ``src_tokens``, ``src_lengths``, the parse
            (:func:`~fairseq_phrase.data.batches.source_batches.collate_parses`) and the objective's
            inputs; ``memory_tokens`` is padded on the left;
            ``target`` with padding where nothing is predicted, and ``next_sentence`` for pairs.
            Shape of tokens, inputs and target: ``(batch, tokens)``, int64
        """
        if not samples:
            return {}
        pad = self._dictionary.pad()
        tokens = _padded([sample["source"] for sample in samples], pad)
        net_input = {
            "src_tokens": tokens,
            "src_lengths": torch.tensor([len(sample["source"]) for sample in samples]),
        }
        for name in samples[0]["inputs"]:
            values = [sample["inputs"][name] for sample in samples]
            is_memory = name == "memory_tokens"
            net_input[name] = _padded(values, pad if is_memory else 0, left=is_memory)
        collated = {}
        if read := self._inputs | self._of_loss:
            parses = [{name: sample["parse"][name] for name in read} for sample in samples]
            is_parsed = torch.from_numpy(parsed_tokens(tokens.numpy(), self._dictionary))
            # Separators are words of the parse, so they are not special tokens here.
            words = tokens.masked_fill(is_parsed, self._dictionary.unk())
            collated = collate_parses(words, parses, self._dictionary)
            net_input |= make_structures(self._structures, tokens, collated)
        net_input |= {f"{PREFIX}{name}": collated[f"{PREFIX}{name}"] for name in self._inputs}
        batch = {
            "id": torch.tensor([sample["id"] for sample in samples]),
            "nsentences": len(samples),
            "ntokens": sum(len(sample["source"]) for sample in samples),
            "net_input": net_input,
            "target": _padded([sample["target"] for sample in samples], pad),
        }
        if self._of_loss:
            batch["parse"] = {name: collated[f"{PREFIX}{name}"] for name in self._of_loss}
        if "is_next" in samples[0]:
            batch["next_sentence"] = torch.tensor([sample["is_next"] for sample in samples])
        return batch

    def num_tokens(self, index: int) -> int:
        """Return the number of tokens of a sample, which ``--max-positions`` also limits."""
        return int(self.sizes[index])

    size = num_tokens

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        """Return the numbers of tokens of samples."""
        return np.asarray(self.sizes[indices])

    def ordered_indices(self) -> np.ndarray:
        """Order the samples by length; in training, samples of equal length at random."""
        if not self._shuffle:
            return np.argsort(self.sizes, kind="stable")
        # fairseq sets NumPy's seed to the seed of the training.
        order = np.random.permutation(len(self))
        return np.asarray(order[np.argsort(self.sizes[order], kind="stable")])


def _padded(rows: Sequence[np.ndarray], padding: int, *, left: bool = False) -> torch.Tensor:
    """Pad rows to the longest. Shape: ``(rows, longest)``, int64."""
    tensors = [torch.from_numpy(row) for row in rows]
    padded: torch.Tensor = data_utils.collate_tokens(tensors, padding, left_pad=left)
    return padded
