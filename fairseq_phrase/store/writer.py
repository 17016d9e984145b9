"""Writing the parses of a split beside its text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from fairseq.data import Dictionary

from fairseq_phrase.store.dictionaries import as_entry, labels_fingerprint
from fairseq_phrase.store.fields import FIELDS, shared_index
from fairseq_phrase.store.indexed import IndexedWriter
from fairseq_phrase.syntax.sentence import EncodedSentence


class LabelTable:
    """Labels with provisional numbers, and at the end with the numbers of a fairseq dictionary.

    Provisional numbers follow the order of first use. In the dictionary, frequent labels come first.

    Args:
        known: a dictionary to continue; its labels keep their numbers.
        may_grow: give new labels that ``known`` lacks numbers after the others. Otherwise they are
            unknown, like words that a text's dictionary lacks.
    """

    def __init__(self, known: Dictionary | None = None, *, may_grow: bool = True):
        self._numbers: dict[str, int] = {}
        self._counts: list[int] = []
        self._known, self._may_grow = known, may_grow
        self._known_labels = None if known is None else len(known)
        self._dictionary: Dictionary | None = None

    def numbers(self, labels: Sequence[str]) -> np.ndarray:
        """Return the labels' provisional numbers. Shape: ``(labels,)``."""
        numbers = np.empty(len(labels), dtype=np.int32)
        for index, label in enumerate(labels):
            label = as_entry(label)
            number = self._numbers.get(label)
            if number is None:
                number = self._numbers[label] = len(self._counts)
                self._counts.append(0)
            self._counts[number] += 1
            numbers[index] = number
        return numbers

    def dictionary(self) -> Dictionary:
        """The dictionary of all labels seen before the first access."""
        if self._dictionary is None:
            self._dictionary = Dictionary() if self._known is None else self._known
            if self._may_grow:
                for label, number in sorted(self._numbers.items()):
                    if label not in self._dictionary:
                        self._dictionary.add_symbol(label, self._counts[number])
            if self._known is None:
                self._dictionary.finalize(padding_factor=1)
        return self._dictionary

    @property
    def is_given(self) -> bool:
        """Whether the table continues a given dictionary."""
        return self._known is not None

    @property
    def has_grown(self) -> bool:
        """Whether the dictionary has labels that ``known`` did not have."""
        return self._known_labels is None or len(self.dictionary()) > self._known_labels

    def unknown(self) -> list[str]:
        """Return the labels that have no number of their own."""
        dictionary = self.dictionary()
        return sorted(label for label in self._numbers if label not in dictionary)

    def mapping(self) -> np.ndarray:
        """Return each provisional number's index in the dictionary. Shape: ``(labels,)``."""
        dictionary = self.dictionary()
        return np.array([dictionary.index(label) for label in self._numbers], dtype=np.int32)

    def fingerprint(self) -> str:
        """Return the fingerprint of the dictionary, for the manifest."""
        dictionary = self.dictionary()
        return labels_fingerprint(dictionary.symbols[dictionary.nspecial :])

    def save(self, path: Path) -> None:
        """Write the dictionary in fairseq's text format."""
        self.dictionary().save(str(path))


class ParseWriter:
    """Write one split's parses, sentence by sentence.

    Args:
        prefix: the files' common path, ``DIR/train.de-en.de``.
        labels: the label tables of the fields that have labels, shared by all splits.
    """

    def __init__(self, prefix: Path, fields: Sequence[str], labels: dict[str, LabelTable]):
        self._writers = {
            name: IndexedWriter(f"{prefix}.{name}", own_index=shared_index(name, fields) is None)
            for name in fields
        }
        self._labels = labels

    def append(self, sentence: EncodedSentence) -> None:
        """Add one sentence.

        Raises:
            ValueError: the sentence lacks one of the fields.
        """
        for name, writer in self._writers.items():
            table = self._labels.get(name)
            values = FIELDS[name].values(sentence, None if table is None else table.numbers)
            if values is None:
                raise ValueError(f"a sentence of {sentence.num_words} words has no {name}")
            writer.append(values.reshape(-1))

    def finish(self) -> list[Path]:
        """Write the files, and return their paths."""
        paths = []
        for name, writer in self._writers.items():
            labels = self._labels.get(name)
            mapping = None if labels is None else labels.mapping()
            paths += writer.finish(mapping, every=FIELDS[name].columns)
        return paths
