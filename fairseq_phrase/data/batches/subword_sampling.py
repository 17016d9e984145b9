"""Segment the words of training sentences differently each time: ``--subword-sampling``."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairseq_phrase.data.batches.source_batches import ParseArrays
from fairseq_phrase.data.store.dictionaries import as_entry
from fairseq_phrase.data.store.layout import PREPROCESS
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.subwords.encoded_sentences import words_of_subwords
from fairseq_phrase.data.subwords.segmenters import load_segmenter
from fairseq_phrase.data.subwords.subword_samplers import SAMPLERS, SubwordSampler
from fairseq_phrase.errors import UserError
from fairseq_phrase.syntax.brackets import NO_TAG

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary


def check_alpha(alpha: float) -> None:
    """Check the value of ``--subword-sampling``.

    Raises:
        UserError: the value is not between 0 and 1.
    """
    if not 0 <= alpha <= 1:
        raise UserError(
            f"--subword-sampling {alpha}: expected a number above 0 and at most 1, or 0 for none"
        )


class SubwordSampling:
    """Resegments the words of sentence pairs, and changes their parses accordingly.

    Random choices depend only on the seed, the epoch and the sentence's index. A resumed training
    therefore repeats them with any number of workers.

    Args:
        alpha: the parameter of the subword models (:data:`SAMPLERS`).
        language: the source language, whose manifest names the subword model.
        limits: the largest number of tokens of source and target. A sentence that would become longer
            keeps its segmentation.

    Raises:
        UserError: the data have no subword model, or words were not segmented one at a time.
    """

    def __init__(
        self,
        alpha: float,
        directory: str | Path,
        language: str,
        dictionaries: tuple[Any, Any],
        limits: tuple[int, int],
    ):
        manifest = Manifest.load(directory, language)
        where = f"--subword-sampling: {Manifest.path(directory, language)}"
        if manifest.whole_lines or manifest.made_by != PREPROCESS:
            raise UserError(
                f"{where} states that text was split into subwords before it was parsed, so that the "
                f"text of single words is not known: make the data with {PREPROCESS}"
            )
        if manifest.bpe not in SAMPLERS:
            raise UserError(
                f"{where} states --bpe {manifest.bpe}: expected {' or '.join(SAMPLERS)}, which can split "
                "words in several ways"
            )
        if manifest.protected:
            raise UserError(
                f"{where} has protected tokens. Words next to them cannot be segmented again"
            )
        if not manifest.bpe_model:
            raise UserError(f"{where} names no subword model: make the data with {PREPROCESS}")
        model = Path(directory) / manifest.bpe_model
        load_segmenter(manifest.bpe, model)  # its error describes a faulty file
        self.seed, self.epoch = 1, 1
        self._has_tags = "tags" in manifest.fields
        self._sides = [
            _Side(SAMPLERS[manifest.bpe](model, alpha, dictionary.symbols[dictionary.nspecial :]),
                  dictionary, limit)
            for dictionary, limit in zip(dictionaries, limits, strict=True)
        ]  # fmt: skip
        self._split_labels: np.ndarray | None = None

    def fields_to_read(self, fields: Collection[str]) -> set[str]:
        """Return the fields to read for these fields: also words, and fields that constituents need."""
        tags = {"tags"} if self._has_tags and "spans" in fields else set()
        return {"words", *fields} | tags

    def number_split_words(self, constituents: Any, tags: Any = None) -> None:
        """Set the labels of constituents over single words.

        Args:
            constituents: the dictionary of constituents' labels.
            tags: the dictionary of parts of speech, if the data have any.
        """
        names = [as_entry(NO_TAG)] if tags is None or not self._has_tags else tags.symbols
        self._split_labels = np.array([constituents.index(name) for name in names], dtype=np.int64)

    def __call__(self, sample: dict[str, Any], parse: ParseArrays, index: int) -> ParseArrays:
        """Resegment a sentence pair, and return the parse of the new source.

        Args:
            sample: fairseq's sample. Its source and target are replaced.
        """
        rng = random.Random(f"{self.seed} {self.epoch} {index}")
        source, target = self._sides
        sizes = np.bincount(parse["words"])
        sample["source"], new_sizes = source.resegment(sample["source"], rng, sizes.tolist())
        if sample.get("target") is not None:
            sample["target"], _ = target.resegment(sample["target"], rng)
        return self._recut(parse, sizes, np.array(new_sizes, dtype=np.int64))

    def _recut(self, parse: ParseArrays, before: np.ndarray, after: np.ndarray) -> ParseArrays:
        parse = {**parse, "words": words_of_subwords(after)}
        if "spans" in parse:
            assert self._split_labels is not None
            tags = parse["tags"] if self._has_tags else np.zeros(len(after), dtype=np.int64)
            labels = self._split_labels[tags]
            parse["spans"] = with_split_words(parse["spans"], before > 1, after > 1, labels)
        return parse


class _Side:
    """Source or target."""

    def __init__(self, sampler: SubwordSampler, dictionary: Dictionary, limit: int):
        self._sampler, self._dictionary, self._limit = sampler, dictionary, limit
        self._special = (dictionary.bos(), dictionary.eos(), dictionary.pad())

    def resegment(
        self, tokens: torch.Tensor, rng: random.Random, sizes: Sequence[int] | None = None
    ) -> tuple[torch.Tensor, Sequence[int]]:
        """Resegment the words of a sentence.

        Args:
            tokens: its token indices, perhaps with ``<s>`` before and ``</s>`` after the subwords.
                Shape: ``(tokens,)``.
            sizes: the number of subwords of each word; None if the line was segmented as a whole.

        Returns:
            The new token indices, and the new number of subwords of each word.
        """
        indices = tokens.tolist()
        body = [index for index in indices if index not in self._special]
        first = next((n for n, index in enumerate(indices) if index not in self._special), 0)
        subwords = [self._dictionary[index] for index in body]
        if sizes is None:
            sizes = self._sampler.word_sizes(subwords)
        new: list[int] = []
        new_sizes = []
        start = 0
        for size in sizes:
            stored = subwords[start : start + size]
            drawn = self._sampler.resegment(stored, rng)
            if drawn is stored:  # unknown subwords may have separate indices
                new += body[start : start + size]
            else:
                new += map(self._dictionary.index, drawn)
            new_sizes.append(len(drawn))
            start += size
        if len(new) + len(indices) - len(body) > self._limit:
            return tokens, sizes
        resampled = [*indices[:first], *new, *indices[first + len(body) :]]
        return torch.tensor(resampled, dtype=tokens.dtype), new_sizes


def with_split_words(
    spans: np.ndarray, before: np.ndarray, after: np.ndarray, labels: np.ndarray
) -> np.ndarray:
    """Add or remove the constituents of words whose number of subwords changed from or to one.

    A word of several subwords is a constituent, below others over the same word
    (:func:`fairseq_phrase.data.subwords.encoded_sentences.encode_words`).

    Args:
        spans: the constituents, children before parents. Shape: ``(constituents, 3)``: first word, one
            past the last, number of the label.
        before: whether a word had several subwords. Shape: ``(words,)``, bool.
        after: whether a word now has several subwords. Shape: ``(words,)``, bool.
        labels: the label of each word's own constituent. Shape: ``(words,)``.

    Returns:
        The new constituents, children before parents. Shape: ``(constituents, 3)``.
    """
    if (before == after).all():
        return spans
    single = np.flatnonzero(spans[:, 1] - spans[:, 0] == 1)
    words, places = np.unique(spans[single, 0], return_index=True)
    # The lowest constituent over a word comes first.
    lost = single[places[(before & ~after)[words]]]
    added = np.flatnonzero(after & ~before)
    rows = np.column_stack([added, added + 1, labels[added]])
    new = np.concatenate([rows, np.delete(spans, lost, axis=0)])
    return new[np.lexsort((-new[:, 0], new[:, 1]))]
