"""Parses on disk, next to fairseq's binarized text.

For each split ``train.de-en`` and parsed language ``de``, a data directory has the files
``train.de-en.de.{words,heads,deprels,tags,spans}.bin`` with their ``.idx``. The manifest
``syntax.de.json``, for all splits, records which text they belong to. Fields with one value per word
share the index of the first of them (``heads.idx``), because an index takes as many bytes as the values
of a short sentence.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from fairseq_phrase.data.store.indexed import IndexedReader
from fairseq_phrase.data.store.layout import maker_of, rerun, shared_index
from fairseq_phrase.data.store.manifest import Manifest, fingerprint
from fairseq_phrase.errors import UserError
from fairseq_phrase.syntax.fields import FIELDS


class ParseStore:
    """The parses of one split, read from disk.

    Args:
        split: the split's name with its language pair, ``train.de-en``.
        fields: the fields to read, from :data:`FIELDS`.

    Raises:
        UserError: the parses are missing or damaged, or belong to another text or dictionary.
    """

    def __init__(
        self, directory: str | os.PathLike[str], split: str, language: str, fields: set[str]
    ):
        self.directory, self.split, self.language = Path(directory), split, language
        manifest = Manifest.load(directory, language)
        manifest.require(fields, directory)
        if split not in manifest.splits:
            raise UserError(
                f"{Manifest.path(directory, language)} has no split {split}: run "
                f"{maker_of(directory)} for it"
            )
        self._checksums = manifest.splits[split].checksums
        self._check(manifest)
        prefix = f"{split}.{language}"
        self._readers = {}
        for name in FIELDS:
            if name in fields:
                index = shared_index(name, manifest.fields)
                self._readers[name] = IndexedReader(
                    self.directory / f"{prefix}.{name}",
                    self.directory / f"{prefix}.{index}" if index else None,
                )

    def _check(self, manifest: Manifest) -> None:
        dictionary = self.directory / f"dict.{self.language}.txt"
        if not dictionary.is_file():
            raise UserError(f"{dictionary} is missing: {rerun(self.directory)}")
        if fingerprint(dictionary) != manifest.dictionary:
            raise UserError(
                f"{dictionary} is not the dictionary that {self.split} was made with: put the old "
                f"one back, or {rerun(self.directory)}"
            )
        for name in manifest.labels:
            manifest.labels_of(name, self.directory)
        for name, expected in self._checksums.items():
            path = self.directory / name
            if not path.is_file():
                raise UserError(f"{path} is missing: {rerun(self.directory)}")
            if fingerprint(path) != expected:
                raise UserError(
                    f"{path} has changed since the parses were made, so "
                    f"they may not belong to it: {rerun(self.directory)}"
                )

    def __len__(self) -> int:
        return len(next(iter(self._readers.values())))

    def checksum(self, field: str) -> str:
        """Return the fingerprint of a field's file."""
        return self._checksums[f"{self.split}.{self.language}.{field}.bin"]

    def sizes(self, field: str) -> np.ndarray:
        """Return how many numbers each sentence has in one of the ``fields``."""
        return self._readers[field].sizes

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """Return one sentence's parse, by its index from 0.

        Returns:
            By field: ``words`` (shape ``(subwords,)``, word indices from 0, without the end-of-sentence
            token), ``heads`` (``(words,)``, word indices from 0; the root is its own head), ``deprels``
            and ``tags`` (``(words,)``, numbers in their dictionaries), ``spans`` (``(constituents, 3)``:
            first word, one past the last, number of the label; children before parents).
        """
        return {name: FIELDS[name].shaped(reader[index]) for name, reader in self._readers.items()}

    def together(self, indices: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Read the parses of several sentences at once, which takes a fraction of the time.

        Args:
            indices: the sentences, from 0, in any order.
                Shape: ``(sentences,)``

        Returns:
            By field: the items of all sentences, one sentence after the other, shaped as in
            :meth:`__getitem__`, and the number of items of each sentence (shape ``(sentences,)``).
        """
        by_index: dict[Path, tuple[np.ndarray, np.ndarray]] = {}
        values = {}
        for name, reader in self._readers.items():
            if reader.index_path not in by_index:  # fields with the same number of values share it
                by_index[reader.index_path] = reader.positions(indices)
            positions, sizes = by_index[reader.index_path]
            items = FIELDS[name].shaped(reader.at(positions))
            values[name] = items, sizes if items.ndim == 1 else sizes // items.shape[1]
        return values
