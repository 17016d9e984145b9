"""The label dictionaries of a task's data directory."""

from __future__ import annotations

from pathlib import Path

from fairseq.data import Dictionary

from fairseq_phrase.store.manifest import Manifest


class LabelDictionaries:
    """The numbered labels of one language's parses.

    Args:
        directory: the data directory.
        language: the parsed language.
    """

    def __init__(self, directory: str | Path, language: str) -> None:
        self._directory, self._language = Path(directory), language
        self._dictionaries: dict[str, Dictionary] = {}

    def dictionary(self, field_name: str) -> Dictionary:
        """Return the dictionary of a field's labels.

        Args:
            field_name: a name in :data:`fairseq_phrase.store.fields.FIELDS` that has labels.

        Raises:
            UserError: the data directory lacks the labels.
        """
        if field_name not in self._dictionaries:
            manifest = Manifest.load(self._directory, self._language)
            dictionary = self._dictionaries[field_name] = Dictionary()
            for label in manifest.labels_of(field_name, self._directory):
                dictionary.add_symbol(label)
        return self._dictionaries[field_name]
