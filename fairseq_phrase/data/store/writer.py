"""Writing the parses of a split next to its text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fairseq_phrase.data.store.dictionaries import SPECIAL, as_entry, labels_fingerprint
from fairseq_phrase.data.store.indexed import IndexedWriter, Spill, write_indexed
from fairseq_phrase.data.store.layout import shared_index
from fairseq_phrase.syntax.fields import FIELDS
from fairseq_phrase.syntax.sentence import EncodedSentence

if TYPE_CHECKING:
    from fairseq.data import Dictionary

_EOS, _UNKNOWN = map(SPECIAL.index, ("</s>", "<unk>"))


class FieldBlock(NamedTuple):
    """A field's values, or the subwords, of consecutive sentences.

    Attributes:
        values: values of all sentences. Labels are indices into ``labels``. Shape: ``(values,)``, int32.
        sizes: the number of values of each sentence. Shape: ``(sentences,)``, int32.
        labels: the labels in the order of first use, without repetitions.
    """

    values: np.ndarray
    sizes: np.ndarray
    labels: list[str]

    @classmethod
    def of(cls, name: str, sentences: Iterable[EncodedSentence]) -> FieldBlock:
        """Read a field from sentences.

        Raises:
            ValueError: a sentence lacks the field.
        """
        numbers: dict[str, int] = {}

        def number(labels: Sequence[str]) -> np.ndarray:
            found = [numbers.setdefault(label, len(numbers)) for label in labels]
            return np.array(found, dtype=np.int32)

        rows = [np.zeros(0, dtype=np.int32)]
        for sentence in sentences:
            values = FIELDS[name].values(sentence, number)
            if values is None:
                raise ValueError(f"a sentence of {sentence.num_words} words has no {name}")
            rows.append(values.reshape(-1))
        sizes = np.array([len(row) for row in rows[1:]], dtype=np.int32)
        return cls(np.concatenate(rows).astype(np.int32), sizes, list(numbers))

    @classmethod
    def of_text(cls, lines: Sequence[Sequence[str]]) -> FieldBlock:
        """Number the subwords of lines."""
        numbers: dict[str, int] = {}
        values = [numbers.setdefault(subword, len(numbers)) for line in lines for subword in line]
        sizes = np.array([len(line) for line in lines], dtype=np.int32)
        return cls(np.array(values, dtype=np.int32), sizes, list(numbers))


class LabelTable:
    """Labels with provisional numbers, and at the end with the numbers of a fairseq dictionary.

    Provisional numbers are in the order of first use. In the dictionary, frequent labels come first.

    Args:
        known: a dictionary to continue; its labels keep their numbers.
        may_grow: append new labels that ``known`` lacks. Otherwise they are unknown, like words that a
            text's dictionary lacks.
    """

    def __init__(self, known: Dictionary | None = None, *, may_grow: bool = True):
        self._numbers: dict[str, int] = {}
        self._counts: Counter[str] = Counter()
        self._known, self.may_grow = known, may_grow
        self._dictionary: Dictionary | None = None

    def numbers(self, labels: Sequence[str], uses: np.ndarray) -> np.ndarray:
        """Count labels, and return their provisional numbers.

        Args:
            labels: labels, without repetitions.
            uses: for each use, the index of the used label. Shape: ``(uses,)``.

        Returns:
            The label's number for each use. Shape: ``(uses,)``, int32.
        """
        entries = [as_entry(label) for label in labels]
        counts = np.bincount(uses, minlength=len(labels)).tolist()
        for entry, count in zip(entries, counts, strict=True):
            self._counts[entry] += count
        numbers = [self._numbers.setdefault(entry, len(self._numbers)) for entry in entries]
        found: np.ndarray = np.array(numbers, dtype=np.int32)[uses]
        return found

    def dictionary(self) -> Dictionary:
        """The dictionary of all labels seen before the first access."""
        if self._dictionary is None:
            from fairseq.data import Dictionary  # workers import this file, and need no fairseq

            self._dictionary = Dictionary() if self._known is None else self._known
            if self.may_grow:
                for label, count in sorted(self._counts.items()):
                    if label not in self._dictionary:
                        self._dictionary.add_symbol(label, count)
            if self._known is None:
                self._dictionary.finalize(padding_factor=1)
        return self._dictionary

    def unknown(self) -> list[str]:
        """Return the labels that lack a number."""
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
    """Write one split's parses, block by block.

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

    def append(self, fields: Mapping[str, FieldBlock]) -> None:
        """Add consecutive sentences.

        Args:
            fields: all fields. Labels in the values are renumbered.
        """
        for name, writer in self._writers.items():
            values, sizes, labels = fields[name]
            if name in self._labels:
                uses = values[FIELDS[name].columns - 1 :: FIELDS[name].columns]
                uses[:] = self._labels[name].numbers(labels, uses)
            writer.append(values, sizes)

    def finish(self) -> list[Path]:
        """Write the files, and return their paths."""
        paths = []
        for name, writer in self._writers.items():
            labels = self._labels.get(name)
            mapping = None if labels is None else labels.mapping()
            paths += writer.finish(mapping, every=FIELDS[name].columns)
        return paths


class SubwordTable:
    """Provisional numbers of a language's subwords, in the order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def numbers(self, subwords: Iterable[str]) -> np.ndarray:
        """Number subwords. Shape: ``(subwords,)``, int64."""
        numbers = self._numbers
        return np.array(
            [numbers.setdefault(subword, len(numbers)) for subword in subwords], np.int64
        )

    def subwords(self) -> list[str]:
        """Return all subwords, in the order of their numbers."""
        return list(self._numbers)


class TextWriter:
    """Write the subwords of a split's side as fairseq's binarized text.

    Subwords have provisional numbers until the dictionary of all training text is known.

    Args:
        prefix: the files' common path, ``DIR/train.de-en.de``.
        table: the numbers, shared by all splits of the language.

    Attributes:
        counts: the number of occurrences of each subword.
        unknown: the number of sentences with subwords that the dictionary lacks, after :meth:`finish`.
    """

    def __init__(self, prefix: Path, table: SubwordTable):
        self._prefix, self._table = prefix, table
        self._spill = Spill(prefix.with_name(f"{prefix.name}.spill"))
        self.counts: Counter[str] = Counter()
        self.unknown = 0

    def append(self, block: FieldBlock) -> None:
        """Add consecutive sentences."""
        values, sizes, subwords = block
        counts = np.bincount(values, minlength=len(subwords)).tolist()
        self.counts.update(dict(zip(subwords, counts, strict=True)))
        self._spill.append(self._table.numbers(subwords)[values], sizes)

    def sentences(self) -> Iterator[list[str]]:
        """Read the sentences, after which none can be added."""
        self._spill.close()
        subwords = self._table.subwords()
        for values, sizes in self._spill.blocks():
            for row in np.split(values, np.cumsum(sizes)[:-1]) if len(sizes) else ():
                yield [subwords[number] for number in row]

    @contextmanager
    def replaced(self) -> Iterator[Callable[[Sequence[str]], None]]:
        """Replace all sentences. Each is given to the yielded function; :attr:`counts` stay."""
        spill = Spill(self._spill.path.with_name(f"{self._spill.path.name}.new"))
        yield lambda sentence: spill.append(
            self._table.numbers(sentence), np.array([len(sentence)])
        )
        spill.close()
        spill.path.replace(self._spill.path)

    def finish(self, dictionary: Dictionary) -> list[Path]:
        """Write the files as fairseq's binarizer does, and return their paths."""
        from fairseq.data.indexed_dataset import best_fitting_int_dtype

        self._spill.close()
        entries = self._table.subwords()
        known = np.array([dictionary.indices.get(entry, _UNKNOWN) for entry in entries], np.int64)
        arrays = sum(len(sizes) for _, sizes in self._spill.blocks())

        def ended() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for values, sizes in self._spill.blocks():
                ends = np.cumsum(sizes)
                numbers = known[values]
                unknown = np.concatenate([[0], np.cumsum(numbers == _UNKNOWN)])
                self.unknown += int(np.count_nonzero(unknown[ends] - unknown[ends - sizes]))
                yield np.insert(numbers, ends, _EOS), sizes + 1

        dtype = np.dtype(best_fitting_int_dtype(len(dictionary)))
        paths = write_indexed(self._prefix, ended(), dtype, arrays)
        self._spill.path.unlink()
        return paths
