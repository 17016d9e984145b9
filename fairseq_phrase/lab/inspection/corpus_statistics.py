"""Statistics of the parses in a data directory, read once, in bounded memory; and their text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fairseq_phrase.data.store.indexed import IndexedReader
from fairseq_phrase.data.store.layout import with_labels
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.lab.inspection.parsed_text import Dictionaries, printable
from fairseq_phrase.syntax.fields import FIELDS
from fairseq_phrase.syntax.tree_arrays import dependency_depths

_EMPTY: np.ndarray = np.zeros(0, dtype=np.int64)
#: The number of sentences that are read at once.
BLOCK_SENTENCES = 1 << 10


@dataclass
class Spread:
    """The count, sum and maximum of numbers.

    Attributes:
        largest: the largest number; -1 without numbers.
        line: the line of the first occurrence of the largest number, from 1: among the sentences while
            numbers are added, in the text's file once all are (:func:`split_statistics`).
    """

    count: int = 0
    total: int = 0
    largest: int = -1
    line: int = 0

    def add(self, values: np.ndarray, lines: np.ndarray) -> None:
        """Add numbers, each with its line, from 1. Shape of both: ``(values,)``."""
        if len(values):
            index = int(values.argmax())
            self.count += len(values)
            self.total += int(values.sum())
            if values[index] > self.largest:
                self.largest, self.line = int(values[index]), int(lines[index])


@dataclass
class SplitStatistics:
    """The statistics of one split.

    Attributes:
        skipped: lines omitted because they could not be parsed.
        flat: lines that could not be parsed and have flat trees.
        words: words per sentence.
        subwords: subwords per sentence.
        unknown: subwords that are not in the dictionary.
        heights: edges from each sentence's deepest word up to the root.
        constituents: constituents per sentence.
        edges: edges per sentence in each graph, by field.
        labels: frequency of each label of a field, by its number in the dictionary.
    """

    split: str
    sentences: int = 0
    skipped: int = 0
    flat: int = 0
    words: Spread = field(default_factory=Spread)
    subwords: Spread = field(default_factory=Spread)
    unknown: int = 0
    heights: Spread = field(default_factory=Spread)
    constituents: Spread = field(default_factory=Spread)
    edges: dict[str, Spread] = field(default_factory=dict)
    labels: dict[str, np.ndarray] = field(default_factory=dict)

    def add(
        self,
        text: np.ndarray,
        sizes: np.ndarray,
        parses: Mapping[str, tuple[np.ndarray, np.ndarray]],
        unknown: int,
    ) -> None:
        """Count the next sentences.

        Args:
            text: their subwords, with ends of sentence. Shape: ``(tokens,)``
            sizes: the number of subwords of each. Shape: ``(sentences,)``
            parses: their parses, as :meth:`ParseStore.together` returns them.
            unknown: the dictionary's index of the unknown subword.
        """
        lines = np.arange(self.sentences + 1, self.sentences + len(sizes) + 1)
        self.sentences += len(sizes)
        words, _ = parses["words"]
        # Protected tokens (-1) are not words.
        self.words.add(_largest(words, sizes, -1) + 1, lines)
        self.subwords.add(sizes, lines)
        self.unknown += int((text == unknown).sum())
        if "heads" in parses:
            heads, counts = parses["heads"]
            starts = np.cumsum(counts) - counts
            depths, _ = dependency_depths(
                heads + np.repeat(starts, counts), int(counts.max(initial=0))
            )
            filled = counts > 0
            self.heights.add(_largest(depths, counts, 0)[filled], lines[filled])
        for name, (items, counts) in parses.items():
            if name == "spans":
                self.constituents.add(counts, lines)
            elif FIELDS[name].per == "edge":
                self.edges.setdefault(name, Spread()).add(counts, lines)
            if name in with_labels(parses):
                numbers = items.reshape(-1, FIELDS[name].columns)[:, -1]
                self.labels[name] = _counted(numbers, self.labels.get(name, _EMPTY))


def _counted(numbers: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Add numbers to a histogram, which grows as needed."""
    counts = np.bincount(numbers, minlength=len(before))
    counts[: len(before)] += before
    return counts


def _largest(values: np.ndarray, sizes: np.ndarray, of_empty: int) -> np.ndarray:
    """Return the largest value of each sentence. Shape: ``(sentences,)``, int64."""
    largest = np.full(len(sizes), of_empty, dtype=np.int64)
    filled = sizes > 0
    if filled.any():
        largest[filled] = np.maximum.reduceat(values, (np.cumsum(sizes) - sizes)[filled])
    return largest


def split_statistics(
    directory: Path,
    manifest: Manifest,
    split: str,
    dictionaries: Dictionaries,
    advance: Callable[[int], object] = lambda sentences: None,
) -> SplitStatistics:
    """Count a split's sentences, words and trees.

    Args:
        split: the split's name with its language pair.
        advance: called with the number of sentences that have been counted since the last call.
    """
    # The store also compares the fingerprints of text and parses.
    store = ParseStore(directory, split, manifest.language, set(manifest.fields))
    text = IndexedReader(directory / f"{split}.{manifest.language}")
    record, unknown = manifest.splits[split], dictionaries["text"].unk()
    statistics = SplitStatistics(split, skipped=record.unparsed_skipped, flat=record.unparsed_flat)
    for first in range(0, len(store), BLOCK_SENTENCES):
        indices = np.arange(first, min(first + BLOCK_SENTENCES, len(store)))
        tokens, parses = text.between(first, first + len(indices)), store.together(indices)
        statistics.add(tokens, parses["words"][1], parses, unknown)
        advance(len(indices))
    for spread in (*vars(statistics).values(), *statistics.edges.values()):
        if isinstance(spread, Spread) and spread.count:
            spread.line = record.line_of(spread.line - 1)  # some lines may be left out
    return statistics


_FREQUENT = 10
_INDENT, _GAP = "  ", "  "
Cell = Callable[[SplitStatistics], str]
StatisticRow = tuple[str, Cell | None]  # a heading lacks cells


def manifest_text(directory: Path, manifest: Manifest, dictionaries: Dictionaries) -> str:
    """Return the content of a manifest as text."""
    labels = [
        f"{len(dictionaries[name]) - dictionaries[name].nspecial:,} {FIELDS[name].label_meaning}"
        for name in with_labels(dictionaries)
    ]
    boundary = "at white space" if manifest.tokenized else "by the parser"
    rows = {
        "parser": f"{manifest.parser} ({manifest.parser_version})",
        "fields": ", ".join(manifest.fields),
        "constituents": manifest.constituents,
        "labels": ", ".join(labels),
        "words": f"split {boundary}",
        "subwords": " ".join(part for part in (manifest.bpe, manifest.bpe_model) if part),
        "dictionary": f"dict.{manifest.language}.txt, {len(dictionaries['text']):,} entries",
        "splits": ", ".join(manifest.splits),
    }
    path = Manifest.path(directory, manifest.language)
    lines = [f"{_INDENT}{name:<14}{printable(text)}" for name, text in rows.items() if text]
    return "\n".join([f"{path} (format {manifest.format})", *lines])


def statistics_text(
    statistics: Sequence[SplitStatistics], dictionaries: Dictionaries, width: int
) -> str:
    """Return statistics as text, with a column for each split.

    Args:
        width: the largest width in characters; splits that do not fit go into a second table below.
    """
    rows = [*_rows(statistics), *_label_rows(statistics, dictionaries)]
    columns = [["" if cell is None else cell(split) for _, cell in rows] for split in statistics]
    titles = [split.split for split in statistics]
    widths = [
        max(map(len, [title, *column])) for title, column in zip(titles, columns, strict=True)
    ]
    names = [name for name, _ in rows]
    first = max(map(len, names))
    blocks, start = [], 0
    while start < len(columns):
        end, used = start + 1, first + len(_GAP) + widths[start]
        while end < len(columns) and used + len(_GAP) + widths[end] <= width:
            used += len(_GAP) + widths[end]
            end += 1
        lines = [["", *titles[start:end]]]
        lines += map(list, zip(names, *columns[start:end], strict=True))
        blocks.append("\n".join(_line(line, [first, *widths[start:end]]) for line in lines))
        start = end
    return "\n\n".join(blocks)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = [cells[0].ljust(widths[0])]
    aligned += [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
    return _GAP.join(aligned).rstrip()


def _rows(statistics: Sequence[SplitStatistics]) -> list[StatisticRow]:
    rows: list[StatisticRow] = [
        ("sentences", lambda s: f"{s.sentences:,}"),
        ("  unparsed, left out", lambda s: f"{s.skipped:,}"),
        ("  unparsed, with flat trees", lambda s: f"{s.flat:,}"),
        *_spread_rows("words", lambda s: s.words),
        *_spread_rows("subwords", lambda s: s.subwords),
        ("  per word", lambda s: _ratio(s.subwords.total, s.words.total)),
        ("  not in the dictionary", lambda s: f"{s.unknown:,}"),
    ]
    if any(split.heights.count for split in statistics):
        _, (_, mean), *most = _spread_rows("", lambda s: s.heights)
        rows += [("depth of a dependency tree", mean), *most]
    if any(split.constituents.count for split in statistics):
        rows += _spread_rows("constituents", lambda s: s.constituents)
    for name in dict.fromkeys(name for split in statistics for name in split.edges):
        title = f"edges of {FIELDS[name].meaning}"
        rows += _spread_rows(title, lambda s, name=name: s.edges.get(name, Spread()))  # type: ignore[misc]
    return rows


def _spread_rows(title: str, of: Callable[[SplitStatistics], Spread]) -> list[StatisticRow]:
    """Return rows for the sum, the mean and the largest value of a :class:`Spread`, and its line."""
    return [
        (title, lambda s: f"{of(s).total:,}"),
        ("  per sentence", lambda s: _ratio(of(s).total, of(s).count)),
        ("    most", lambda s: f"{of(s).largest:,}" if of(s).count else "-"),
        ("      in line", lambda s: f"{of(s).line:,}" if of(s).count else "-"),
    ]


def _label_rows(
    statistics: Sequence[SplitStatistics], dictionaries: Dictionaries
) -> list[StatisticRow]:
    """Return rows for the most frequent labels of each field, and one row for the others."""
    rows: list[StatisticRow] = []
    for name in with_labels(FIELDS):
        used = [split.labels[name] for split in statistics if name in split.labels]
        if not used:
            continue
        total = np.zeros(len(dictionaries[name]), dtype=np.int64)
        for counts in used:
            total[: len(counts)] += counts
        order = np.argsort(-total, kind="stable")
        order = order[total[order] > 0]
        frequent, rare = order[:_FREQUENT].tolist(), order[_FREQUENT:].tolist()
        rows.append((FIELDS[name].label_meaning, None))
        for number in frequent:
            label = printable(dictionaries[name][number])
            rows.append((f"  {label}", _share_of(name, [number])))
        if rare:
            rows.append((f"  {len(rare)} others", _share_of(name, rare)))
    return rows


def _share_of(name: str, numbers: list[int]) -> Cell:
    def cell(statistics: SplitStatistics) -> str:
        counts = statistics.labels.get(name, _EMPTY)
        part, total = sum(int(counts[n]) for n in numbers if n < len(counts)), int(counts.sum())
        return f"{100 * part / total:.2f} %" if total else "-"

    return cell


def _ratio(part: int, total: int) -> str:
    return f"{part / total:.2f}" if total else "-"
