"""A split's text and parses in blocks: long arrays of many sentences, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_phrase.data.store.dictionaries import load_dictionary
from fairseq_phrase.data.store.indexed import IndexedReader
from fairseq_phrase.data.store.layout import rerun, shared_index, with_labels
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.errors import UserError
from fairseq_phrase.syntax.fields import FIELDS

#: The dictionaries of a language's text and labels, by ``text`` and field.
Dictionaries = dict[str, Any]

#: The largest number of values of text and parses in a block, unless its first sentence has more.
BLOCK_VALUES = 1 << 18
_BLOCK_SENTENCES = 1 << 15


def load_dictionaries(directory: Path, manifest: Manifest) -> Dictionaries:
    """Read the dictionaries of a language's text and labels.

    Raises:
        UserError: a dictionary is missing or damaged.
    """
    names = {"text": f"dict.{manifest.language}.txt"}
    names |= with_labels(manifest.fields)
    loaded = {}
    for name, file in names.items():
        path = directory / file
        if not path.is_file():
            raise UserError(f"{path} is missing: {rerun(directory)}")
        try:
            loaded[name] = load_dictionary(path)
        except UserError as error:
            raise UserError(f"{path} is damaged ({error}): {rerun(directory)}") from None
    return loaded


@dataclass(frozen=True)
class Ragged:
    """The concatenated arrays of several sentences.

    Attributes:
        values: all values. Shape: ``(values,)``, int64.
        offsets: the start of each sentence, and the end of the last. Shape: ``(sentences + 1,)``
    """

    values: np.ndarray
    offsets: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """The number of values in each sentence. Shape: ``(sentences,)``."""
        return np.diff(self.offsets)


@dataclass(frozen=True)
class SentenceBlock:
    """Consecutive sentences of a split.

    Attributes:
        first: index of the first sentence, from 0.
        arrays: ``text`` and the fields of the parses (:data:`fairseq_phrase.syntax.fields.FIELDS`).
    """

    first: int
    arrays: dict[str, Ragged]

    def __len__(self) -> int:
        return len(self.arrays["text"].offsets) - 1


class SplitFiles:
    """The text and the parses of one split, whose fingerprints a :class:`ParseStore` has compared.

    Args:
        split: the split's name with its language pair, ``train.de-en``.

    Attributes:
        readers: the files by ``text`` and field.
        sentences: the number of sentences, the same in all files.

    Raises:
        UserError: a file is missing, truncated, or not in fairseq's format.
    """

    def __init__(self, directory: Path, manifest: Manifest, split: str):
        prefix = directory / f"{split}.{manifest.language}"
        self.readers = {"text": IndexedReader(prefix)}
        for name in FIELDS:
            if name in manifest.fields:
                index = shared_index(name, manifest.fields)
                self.readers[name] = IndexedReader(
                    f"{prefix}.{name}", f"{prefix}.{index}" if index else None
                )
        self.sentences = min(map(len, self.readers.values()))

    def blocks(self) -> Iterator[SentenceBlock]:
        """Read all sentences once."""
        first = 0
        while first < self.sentences:
            last = min(self.sentences, first + _BLOCK_SENTENCES)
            sizes = sum(
                reader.sizes[first:last].astype(np.int64) for reader in self.readers.values()
            )
            ends = np.cumsum(sizes)
            count = int(np.searchsorted(ends, BLOCK_VALUES, side="right"))
            stop = min(last, first + max(1, count))
            yield self._block(first, stop)
            first = stop

    def _block(self, first: int, stop: int) -> SentenceBlock:
        arrays = {}
        for name, reader in self.readers.items():
            offsets = np.zeros(stop - first + 1, dtype=np.int64)
            np.cumsum(reader.sizes[first:stop], out=offsets[1:])
            arrays[name] = Ragged(reader.between(first, stop).astype(np.int64), offsets)
        return SentenceBlock(first, arrays)
