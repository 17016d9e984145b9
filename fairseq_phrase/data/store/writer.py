"""Writing the parses of a split next to its text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fairseq_phrase.data.store.dictionaries import SPECIAL, as_entry, labels_fingerprint
from fairseq_phrase.data.store.indexed import (
    NEXT_TO_FILES,
    IndexedWriter,
    Spill,
    Spills,
    write_indexed,
)
from fairseq_phrase.data.store.layout import shared_index, with_labels
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
            label_numbers = [numbers.setdefault(label, len(numbers)) for label in labels]
            return np.array(label_numbers, dtype=np.int32)

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


class Numbering:
    """Provisional numbers of entries, in the order of first use.

    Args:
        counts: the entries of an earlier run in this order, with the number of occurrences.

    Attributes:
        counts: the number of occurrences of each entry that was counted, in the order of first use.
    """

    def __init__(self, counts: Mapping[str, int] | None = None):
        self.counts: Counter[str] = Counter(counts)
        self._numbers = {entry: number for number, entry in enumerate(self.counts)}

    def numbers(self, entries: Iterable[str]) -> np.ndarray:
        """Number entries. Shape: ``(entries,)``, int64."""
        numbers = self._numbers
        return np.array([numbers.setdefault(entry, len(numbers)) for entry in entries], np.int64)

    def counted(self, entries: Sequence[str], uses: np.ndarray) -> np.ndarray:
        """Count entries, and number their uses.

        Args:
            entries: entries, without repetitions.
            uses: for each use, the index of the used entry. Shape: ``(uses,)``.

        Returns:
            The entry's number for each use. Shape: ``(uses,)``, int64.
        """
        counts = np.bincount(uses, minlength=len(entries)).tolist()
        for entry, count in zip(entries, counts, strict=True):
            self.counts[entry] += count
        numbers: np.ndarray = self.numbers(entries)[uses]
        return numbers

    def entries(self) -> list[str]:
        """Return all entries, in the order of their numbers."""
        return list(self._numbers)


class LabelTable:
    """The labels of a field, with the numbers of a fairseq dictionary, which has frequent labels first.

    Args:
        known: a dictionary to continue; its labels keep their numbers.
        may_grow: append new labels that ``known`` lacks. Otherwise they are unknown, like words that a
            text's dictionary lacks.
    """

    def __init__(self, dictionary: Dictionary | None = None, *, may_grow: bool = True):
        self._counts: Counter[str] = Counter()
        self._known, self.may_grow = dictionary, may_grow
        self._dictionary: Dictionary | None = None

    def add(self, counts: Mapping[str, int]) -> None:
        """Add labels, with the number of occurrences of each."""
        self._counts.update(counts)

    def dictionary(self) -> Dictionary:
        """The dictionary of all labels that were added before the first access."""
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
        return sorted(label for label in self._counts if label not in dictionary)

    def indices(self, labels: Iterable[str]) -> np.ndarray:
        """Return the labels' indices in the dictionary. Shape: ``(labels,)``, int32."""
        dictionary = self.dictionary()
        return np.array([dictionary.index(label) for label in labels], dtype=np.int32)

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
        spills: where the temporary files are.
        labels: for temporary files of an earlier run, the :attr:`Numbering.counts` of their labels.

    Attributes:
        labels: the provisional numbers of the labels, by field.
    """

    def __init__(
        self,
        prefix: Path,
        fields: Sequence[str],
        spills: Spills = NEXT_TO_FILES,
        labels: Mapping[str, Mapping[str, int]] | None = None,
    ):
        self._writers = {
            name: IndexedWriter(
                f"{prefix}.{name}", own_index=shared_index(name, fields) is None, spills=spills
            )
            for name in fields
        }
        self.labels = {name: Numbering((labels or {}).get(name)) for name in with_labels(fields)}

    def append(self, fields: Mapping[str, FieldBlock]) -> None:
        """Add consecutive sentences.

        Args:
            fields: all fields. Labels in the values are renumbered.
        """
        for name, writer in self._writers.items():
            values, sizes, labels = fields[name]
            if name in self.labels:
                uses = values[FIELDS[name].columns - 1 :: FIELDS[name].columns]
                uses[:] = self.labels[name].counted([*map(as_entry, labels)], uses)
            writer.append(values, sizes)

    def close(self) -> None:
        """Write everything that was added to the temporary files."""
        for writer in self._writers.values():
            writer.close()

    def finish(self, tables: Mapping[str, LabelTable]) -> list[Path]:
        """Write the files, and return their paths.

        Args:
            tables: by field, the labels of all splits.
        """
        paths = []
        for name, writer in self._writers.items():
            labels = self.labels.get(name)
            mapping = None if labels is None else tables[name].indices(labels.entries())
            paths += writer.finish(mapping, every=FIELDS[name].columns)
        return paths


class TextWriter:
    """Write the subwords of a split's side as fairseq's binarized text.

    Subwords have provisional numbers until the dictionary of all training text is known.

    Args:
        prefix: the files' common path, ``DIR/train.de-en.de``.
        spills: where the temporary file is.
        subwords: for a temporary file of an earlier run, the :attr:`Numbering.counts` of its subwords.

    Attributes:
        subwords: the provisional numbers of the subwords.
        unknown: the number of sentences with subwords that the dictionary lacks, after :meth:`finish`.
    """

    def __init__(
        self,
        prefix: Path,
        spills: Spills = NEXT_TO_FILES,
        subwords: Mapping[str, int] | None = None,
    ):
        self._prefix, self._spill = prefix, spills.open(prefix)
        self.subwords = Numbering(subwords)
        self.unknown = 0

    def append(self, block: FieldBlock) -> None:
        """Add consecutive sentences."""
        values, sizes, subwords = block
        self._spill.append(self.subwords.counted(subwords, values), sizes)

    def close(self) -> None:
        """Write everything that was added to the temporary file."""
        self._spill.close()

    def sentences(self) -> Iterator[list[str]]:
        """Read the sentences, after which none can be added."""
        self._spill.close()
        subwords = self.subwords.entries()
        for values, sizes in self._spill.blocks():
            for row in np.split(values, np.cumsum(sizes)[:-1]) if len(sizes) else ():
                yield [subwords[number] for number in row]

    @contextmanager
    def replaced(self) -> Iterator[Callable[[Sequence[str]], None]]:
        """Replace all sentences. Each is given to the yielded function; counts of subwords stay."""
        spill = Spill(self._spill.path.with_name(f"{self._spill.path.name}.new"))
        yield lambda sentence: spill.append(
            self.subwords.numbers(sentence), np.array([len(sentence)])
        )
        spill.close()
        self._spill.discard()
        self._spill = spill

    def finish(self, dictionary: Dictionary) -> list[Path]:
        """Write the files as fairseq's binarizer does, and return their paths."""
        from fairseq.data.indexed_dataset import best_fitting_int_dtype

        self._spill.close()
        entries = self.subwords.entries()
        number_of_entry = np.array(
            [dictionary.indices.get(entry, _UNKNOWN) for entry in entries], np.int64
        )
        arrays = sum(len(sizes) for _, sizes in self._spill.blocks())

        def ended() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for values, sizes in self._spill.blocks():
                ends = np.cumsum(sizes)
                numbers = number_of_entry[values]
                unknown = np.concatenate([[0], np.cumsum(numbers == _UNKNOWN)])
                self.unknown += int(np.count_nonzero(unknown[ends] - unknown[ends - sizes]))
                yield np.insert(numbers, ends, _EOS), sizes + 1

        dtype = np.dtype(best_fitting_int_dtype(len(dictionary)))
        paths = write_indexed(self._prefix, ended(), dtype, arrays)
        self._spill.discard()
        return paths
