"""Blocks: consecutive lines of a split, as subwords, with their parses as arrays; a file each."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairseq_phrase.data.preprocessing.options import SplitCounts
from fairseq_phrase.data.store.indexed import smallest_dtype
from fairseq_phrase.data.store.outputs import write_atomically
from fairseq_phrase.syntax.fields import FIELDS
from fairseq_phrase.syntax.sentence import EncodedSentence
from fairseq_phrase.text import read_json

logger = logging.getLogger(__name__)
#: The name of the subwords among the fields of a block's side.
TEXT = "text"
#: The number of changed lines that a block and a warning show.
SHOWN = 3


class FieldBlock(NamedTuple):
    """A field's values, or the subwords, of consecutive sentences.

    Attributes:
        values: values of all sentences. Labels, in the last column, and subwords are indices into
            ``entries``. Shape: ``(values,)``, integers.
        sizes: the number of values of each sentence. Shape: ``(sentences,)``, integers.
        entries: labels or subwords in the order of first use, without repetitions.
    """

    values: np.ndarray
    sizes: np.ndarray
    entries: list[str]

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
    def of_text(cls, lines: Iterable[Sequence[str]]) -> FieldBlock:
        """Number the subwords of lines."""
        numbers: dict[str, int] = {}
        rows = [[numbers.setdefault(subword, len(numbers)) for subword in line] for line in lines]
        values = [number for row in rows for number in row]
        sizes = np.array([len(row) for row in rows], dtype=np.int32)
        return cls(np.array(values, dtype=np.int32), sizes, list(numbers))

    def sentences(self) -> Iterator[list[str]]:
        """Yield the subwords of each sentence."""
        start, values = 0, self.values.tolist()
        for size in self.sizes.tolist():
            yield [self.entries[number] for number in values[start : start + size]]
            start += size

    def counts(self, columns: int = 1) -> dict[str, int]:
        """Count the uses of each entry; they are in the last of so many columns."""
        uses = np.bincount(self.values[columns - 1 :: columns], minlength=len(self.entries))
        return dict(zip(self.entries, uses.tolist(), strict=True))


@dataclass
class Block:
    """Consecutive lines of a split.

    Attributes:
        sides: the kept lines of each language, by field. :data:`TEXT` has the subwords, unless fairseq
            has already written them.
        counts: the counts of the block, except of flat trees.
        problems: for each kept line without a parse: its number in the text, from 1, its language, and
            the reason.
        left_out: for each line that is left out: its number in the text, its attribute in
            :class:`SplitCounts`, and the reason.
        changed: for the first kept lines changed by segmentation: the number, language and change.
    """

    sides: list[dict[str, FieldBlock]] = field(default_factory=list)
    counts: SplitCounts = field(default_factory=SplitCounts)
    problems: list[tuple[int, str, str]] = field(default_factory=list)
    left_out: list[tuple[int, str, str]] = field(default_factory=list)
    changed: list[tuple[int, str, str]] = field(default_factory=list)

    def packed(self) -> bytes:
        """Write the block as compressed bytes: a line of JSON, then the arrays. Nothing in it runs."""
        arrays: list[np.ndarray] = []
        sides: list[dict[str, Any]] = []
        for side in self.sides:
            sides.append({})
            for name, (*both, entries) in side.items():
                shrunk = [
                    array.astype(
                        smallest_dtype(int(array.max(initial=0)), int(array.min(initial=0)))
                    )
                    for array in both
                ]
                sides[-1][name] = [[(a.dtype.str, len(a)) for a in shrunk], entries]
                arrays += shrunk
        header = {**vars(self), "sides": sides, "counts": self.counts.as_dict()}
        content = [json.dumps(header).encode("ascii"), b"\n", *(a.tobytes() for a in arrays)]
        return zlib.compress(b"".join(content), 1)  # higher levels take longer than they save

    @classmethod
    def unpacked(cls, content: bytes) -> Block:
        """Read the result of :meth:`packed`.

        Raises:
            zlib.error: the content is damaged.
        """
        content = zlib.decompress(content)
        start = content.index(b"\n") + 1
        header = read_json(content[:start])
        for side in header["sides"]:
            for name, (descriptions, entries) in side.items():
                both = []
                for dtype, count in descriptions:
                    both.append(np.frombuffer(content, dtype, count, start))
                    start += both[-1].nbytes
                side[name] = FieldBlock(both[0], both[1].astype(np.int32), entries)
        return cls(**{**header, "counts": SplitCounts.from_dict(header["counts"])})


class BlockFolder:
    """The blocks of a split, a file each, by their numbers from 0. Damaged ones are deleted.

    Args:
        path: the folder; it is made if missing.
    """

    def __init__(self, path: Path):
        self._path = path
        path.mkdir(parents=True, exist_ok=True)
        for file in path.iterdir():
            if not file.name.isdigit():
                continue
            try:
                Block.unpacked(file.read_bytes())
            except zlib.error:
                logger.warning("%s is damaged: its lines are parsed again", file)
                file.unlink()

    def _file(self, number: int) -> Path:
        return self._path / f"{number:06}"

    def holds(self, number: int) -> bool:
        """Return whether a block is there."""
        return self._file(number).is_file()

    def write(self, number: int, block: bytes) -> None:
        """Write a packed block."""
        write_atomically(self._file(number), block)

    def read(self, number: int) -> Block:
        """Read a block."""
        return Block.unpacked(self._file(number).read_bytes())
