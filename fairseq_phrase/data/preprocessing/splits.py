"""A split of the data: its texts, and what is counted in each data directory it is written to."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fairseq_phrase.data.preprocessing.blocks import SHOWN, TEXT, Block, FieldBlock
from fairseq_phrase.data.preprocessing.options import SplitCounts
from fairseq_phrase.data.preprocessing.segmentation import Side
from fairseq_phrase.data.store.indexed import smallest_dtype
from fairseq_phrase.data.store.manifest import LineRanges
from fairseq_phrase.errors import location
from fairseq_phrase.syntax.fields import FIELDS


@dataclass
class Tally:
    """What is counted of a field, to know its labels and its type on disk.

    Attributes:
        labels: the number of occurrences of each label.
        smallest, largest: its numbers, without labels.
    """

    labels: Counter[str] = field(default_factory=Counter)
    smallest: int = 0
    largest: int = 0

    def add(self, name: str, block: FieldBlock) -> None:
        """Count the values of a field."""
        numbers, columns = block.values, FIELDS[name].columns
        if FIELDS[name].label_file is not None:
            self.labels.update(block.counts(columns))
            numbers = numbers.reshape(-1, columns)[:, :-1]
        self.smallest = min(self.smallest, int(numbers.min(initial=0)))
        self.largest = max(self.largest, int(numbers.max(initial=0)))

    def dtype(self, label_numbers: np.ndarray) -> np.dtype:
        """Return the type of the field on disk, for the numbers of its labels."""
        return smallest_dtype(max(self.largest, int(label_numbers.max(initial=0))), self.smallest)


@dataclass
class Output:
    """A split in one data directory: the whole split, or with ``--parts`` the blocks of a part.

    Attributes:
        folder: the data directory.
        blocks: its blocks, from 0.
        left_out: the left-out lines, by the attribute of ``counts``.
        tallies: what is counted of each field, by language and field.
        checksums: fingerprints of the files that the manifest records, by language and file name.
    """

    folder: Path
    blocks: range
    counts: SplitCounts = field(default_factory=SplitCounts)
    left_out: defaultdict[str, LineRanges] = field(default_factory=lambda: defaultdict(LineRanges))
    tallies: defaultdict[tuple[str, str], Tally] = field(default_factory=lambda: defaultdict(Tally))
    checksums: defaultdict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))


@dataclass
class Split:
    """A split of the data.

    Attributes:
        name: ``train``, ``valid``, ``test``, ``test1``….
        file_name: the beginning of its files' names, ``train.de-en``.
        sides: source and target; or only the parsed language, if the text is already binarized or has
            one language.
        is_whole: whether every line is kept.
        outputs: where it is written, in the order of its lines.
        subwords: the number of occurrences of each subword, by language.
        changed: the first lines changed by segmentation, by language.
    """

    name: str
    file_name: str
    sides: Sequence[Side]
    is_whole: bool
    outputs: list[Output] = field(default_factory=list)
    subwords: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    changed: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def write_to(self, folders: Sequence[Path]) -> None:
        """Divide the blocks evenly among data directories."""
        size = self.sides[0].corpus.blocks // len(folders)
        for number, folder in enumerate(folders):
            folder.mkdir(exist_ok=True)
            self.outputs.append(Output(folder, range(number * size, (number + 1) * size)))

    @property
    def is_slow(self) -> bool:
        """Whether parsing takes time, so that its result is kept after a failure."""
        return any(side.pipeline is not None and side.pipeline.is_slow for side in self.sides)

    @property
    def counts(self) -> SplitCounts:
        """The counts of all outputs together."""
        counts = SplitCounts()
        for output in self.outputs:
            counts.add(output.counts)
        return counts

    def count(self, number: int, block: Block) -> None:
        """Count the sentences of a block, by its number."""
        output = self.outputs[number // len(self.outputs[0].blocks)]
        output.counts.add(block.counts)
        for side, fields in zip(self.sides, block.sides, strict=True):
            for name, values in fields.items():
                if name == TEXT:
                    self.subwords[side.language].update(values.counts())
                else:
                    output.tallies[side.language, name].add(name, values)
        for line, kind, _ in block.left_out:
            output.left_out[kind].append(line)
        paths = {side.language: side.corpus.path for side in self.sides}
        for line, language, how in block.changed:
            if len(self.changed[language]) < SHOWN:
                self.changed[language].append(f"{location(paths[language], line)}: {how}")
        for _, language, _ in block.problems:
            output.counts.flat[language] += 1
