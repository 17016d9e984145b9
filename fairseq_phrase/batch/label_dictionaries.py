"""The label dictionaries of a task's data directories. All must give a label the same number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fairseq.data import Dictionary

from fairseq_phrase.errors import UserError
from fairseq_phrase.store.fields import FIELDS, with_labels
from fairseq_phrase.store.labels import labels_fingerprint
from fairseq_phrase.store.manifest import Manifest
from fairseq_phrase.store.remedy import rerun


class LabelDictionaries:
    """The numbered labels of one language's parses.

    Args:
        directories: the data directories, ``data1:data2`` as a list.
        language: the parsed language.
    """

    def __init__(self, directories: Sequence[str | Path], language: str):
        self._directories, self._language = list(map(Path, directories)), language
        self._dictionaries: dict[str, Dictionary] = {}

    @property
    def directory(self) -> Path:
        """The first data directory."""
        return self._directories[0]

    def dictionary(self, field_name: str) -> Dictionary:
        """Return the dictionary of a field's labels.

        Args:
            field_name: a name in :data:`fairseq_phrase.store.fields.FIELDS` that has labels.

        Raises:
            UserError: a data directory lacks the labels, or directories number them differently.
        """
        if field_name not in self._dictionaries:
            first, *others = self._directories
            labels = self._labels(first, field_name)
            for other in others:
                if self._labels(other, field_name) != labels:
                    file = with_labels([field_name])[field_name]
                    raise UserError(
                        f"{other / file} numbers {FIELDS[field_name].label_meaning} "
                        f"differently from {first / file}, so a model would learn both: "
                        f"{rerun(other)} with --labeldict {first}, for {other}"
                    )
            dictionary = Dictionary()
            for label in labels:
                dictionary.add_symbol(label)
            self._dictionaries[field_name] = dictionary
        return self._dictionaries[field_name]

    def fingerprint(self, field_name: str) -> str:
        """Return the fingerprint of a field's labels, for a model's configuration."""
        dictionary = self.dictionary(field_name)
        return labels_fingerprint(dictionary.symbols[dictionary.nspecial :])

    def check(self, trained: Mapping[str, str]) -> None:
        """Check that a model was trained with these labels.

        Args:
            trained: fingerprints of the model's labels, by field.

        Raises:
            UserError: the data directory numbers labels differently.
        """
        for name, expected in trained.items():
            if self.fingerprint(name) != expected:
                directory = self._directories[0]
                raise UserError(
                    f"{directory / with_labels([name])[name]} numbers "
                    f"{FIELDS[name].label_meaning} differently from the data that this model was trained "
                    "with, so labels would have the embeddings of other labels: "
                    f"{rerun(directory)} with --labeldict TRAINING_DATA, for {directory}"
                )

    def _labels(self, directory: Path, field_name: str) -> list[str]:
        return Manifest.load(directory, self._language).labels_of(field_name, directory)
