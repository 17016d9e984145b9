"""Statistics of the parses in a data directory, read once, in bounded memory; and their text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fairseq_phrase.data.store.layout import with_labels
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.lab.inspection.integrity import RecordChecker, in_words, word_counts
from fairseq_phrase.lab.inspection.parsed_text import printable
from fairseq_phrase.lab.inspection.sentence_blocks import (
    Dictionaries,
    Ragged,
    SentenceBlock,
    SplitFiles,
)
from fairseq_phrase.syntax.fields import FIELDS
from fairseq_phrase.syntax.tree_arrays import (
    constituent_arities,
    constituent_depths,
    constituent_parents,
    dependency_depths,
    projective_words,
)

_EMPTY: np.ndarray = np.zeros(0, dtype=np.int64)


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
        subwords_per_word: subwords per word.
        unknown: subwords that are not in the dictionary.
        lengths: the number of sentences of 0, 1, … words. Shape: ``(longest + 1,)``
        depths: edges from each word up to the root.
        heights: edges from each sentence's deepest word up to the root.
        dependents: dependents of each word that has dependents.
        projective: trees in which every subtree is a span of words; None without dependency trees.
        constituents: constituents per sentence.
        levels: constituents above each sentence's deepest word, those over one word included.
        children: children of each constituent, words included.
        heads: heads of each word in a graph, by field; a root itself counts as one.
        labels: frequency of each label of a field, by its number in the dictionary.
    """

    split: str
    sentences: int = 0
    skipped: int = 0
    flat: int = 0
    words: Spread = field(default_factory=Spread)
    subwords: Spread = field(default_factory=Spread)
    subwords_per_word: Spread = field(default_factory=Spread)
    unknown: int = 0
    lengths: np.ndarray = field(default_factory=lambda: _EMPTY)
    depths: Spread = field(default_factory=Spread)
    heights: Spread = field(default_factory=Spread)
    dependents: Spread = field(default_factory=Spread)
    projective: int | None = None
    constituents: Spread = field(default_factory=Spread)
    levels: Spread = field(default_factory=Spread)
    children: Spread = field(default_factory=Spread)
    heads: dict[str, Spread] = field(default_factory=dict)
    labels: dict[str, np.ndarray] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)

    def length_quantile(self, share: float) -> int | None:
        """Return the number of words that this share of sentences does not exceed."""
        if not self.sentences:
            return None
        return int(np.searchsorted(np.cumsum(self.lengths), share * self.sentences))

    def add(self, block: SentenceBlock, unknown: int) -> None:
        """Count a block of sentences.

        Args:
            block: the sentences; their records must be valid.
            unknown: the dictionary's index of the unknown subword.
        """
        arrays = block.arrays
        lines = np.arange(block.first + 1, block.first + len(block) + 1)
        words, counts = in_words(arrays["words"]), word_counts(arrays["words"])
        self.sentences += len(block)
        self.words.add(counts, lines)
        self.subwords.add(arrays["words"].sizes, lines)
        # The words of all sentences are numbered together.
        numbers = words.values + np.repeat(np.cumsum(counts) - counts, words.sizes)
        per_word = np.bincount(numbers, minlength=int(counts.sum()))
        self.subwords_per_word.add(per_word, np.repeat(lines, counts))
        self.unknown += int((arrays["text"].values == unknown).sum())
        self.lengths = _counted(counts, self.lengths)
        if "heads" in arrays:
            self._add_dependencies(arrays["heads"], lines)
        if "spans" in arrays:
            self._add_constituents(arrays["spans"], lines)
        for name in arrays:
            if name in FIELDS and FIELDS[name].per == "edge":
                edges = arrays[name].values.reshape(-1, 3)
                first = np.repeat(np.cumsum(counts) - counts, arrays[name].sizes // 3)
                heads = np.bincount(edges[:, 1] + first, minlength=int(counts.sum()))
                self.heads.setdefault(name, Spread()).add(heads, np.repeat(lines, counts))
        for name in with_labels(arrays):
            numbers = arrays[name].values.reshape(-1, FIELDS[name].columns)[:, -1]
            self.labels[name] = _counted(numbers, self.labels.get(name, _EMPTY))

    def _add_dependencies(self, heads: Ragged, lines: np.ndarray) -> None:
        places = heads.values + np.repeat(heads.offsets[:-1], heads.sizes)
        depths, _ = dependency_depths(places, int(heads.sizes.max(initial=0)))
        line_of = lines[heads.sentences]
        self.depths.add(depths, line_of)
        self.heights.add(*_deepest(depths, heads.offsets, lines))
        arities = np.bincount(places, minlength=len(places)) - (depths == 0)  # without roots' edges
        self.dependents.add(arities[arities > 0], line_of[arities > 0])
        broken = np.unique(heads.sentences[~projective_words(places, depths)])
        self.projective = (self.projective or 0) + len(lines) - len(broken)

    def _add_constituents(self, spans: Ragged, lines: np.ndarray) -> None:
        starts, ends, _ = spans.values.reshape(-1, 3).T
        triples = Ragged(starts, spans.offsets // 3)
        self.constituents.add(triples.sizes, lines)
        parents = constituent_parents(starts, triples.sentences)
        self.levels.add(*_deepest(constituent_depths(parents) + 1, triples.offsets, lines))
        self.children.add(constituent_arities(parents, ends - starts), lines[triples.sentences])


def _counted(numbers: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Add numbers to a histogram, which grows as needed."""
    counts = np.bincount(numbers, minlength=len(before))
    counts[: len(before)] += before
    return counts


def _deepest(
    depths: np.ndarray, offsets: np.ndarray, lines: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest depth of each sentence with depths, and the sentence's line."""
    filled = np.diff(offsets) > 0
    if not filled.any():
        return _EMPTY, _EMPTY
    return np.maximum.reduceat(depths, offsets[:-1][filled]), lines[filled]


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
    files = SplitFiles(directory, manifest, split)
    checker = RecordChecker(files, dictionaries)
    record = manifest.splits[split]
    statistics = SplitStatistics(
        split,
        skipped=record.unparsed_skipped,
        flat=record.unparsed_flat,
        bytes={name: files.bytes_of(name) for name in FIELDS if name in manifest.fields},
    )
    unknown = dictionaries["text"].unk()
    for block in files.blocks():
        checker.check(block)  # statistics of invalid records are useless
        statistics.add(block, unknown)
        advance(len(block))
    for spread in (*vars(statistics).values(), *statistics.heads.values()):
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
        f"{_number(len(dictionaries[name]) - dictionaries[name].nspecial)} "
        f"{FIELDS[name].label_meaning}"
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
        "dictionary": f"dict.{manifest.language}.txt, {_number(len(dictionaries['text']))} entries",
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
        ("sentences", lambda s: _number(s.sentences)),
        ("  unparsed, left out", lambda s: _number(s.skipped)),
        ("  unparsed, with flat trees", lambda s: _number(s.flat)),
        ("words", lambda s: _number(s.words.total)),
        ("  per sentence", lambda s: _mean(s.words)),
        ("    median", lambda s: _number(s.length_quantile(0.5))),
        ("    95 % have at most", lambda s: _number(s.length_quantile(0.95))),
        *_most(lambda s: s.words),
        ("subwords", lambda s: _number(s.subwords.total)),
        ("  per sentence", lambda s: _mean(s.subwords)),
        *_most(lambda s: s.subwords),
        ("  per word", lambda s: _mean(s.subwords_per_word)),
        *_most(lambda s: s.subwords_per_word),
        ("  not in the dictionary", lambda s: _number(s.unknown)),
    ]
    if any(split.projective is not None for split in statistics):
        rows += [
            ("dependency trees", None),
            ("  depth of a word", lambda s: _mean(s.depths)),
            ("  depth of a tree", lambda s: _mean(s.heights)),
            *_most(lambda s: s.heights),
            ("  dependents of a head", lambda s: _mean(s.dependents)),
            *_most(lambda s: s.dependents),
            ("  projective", lambda s: _percent(s.projective or 0, s.sentences)),
            ("  not projective", lambda s: _number(s.sentences - (s.projective or 0))),
        ]
    if any("spans" in split.bytes for split in statistics):
        rows += [
            ("constituents", lambda s: _number(s.constituents.total)),
            ("  per sentence", lambda s: _mean(s.constituents)),
            *_most(lambda s: s.constituents),
            ("  levels of a sentence", lambda s: _mean(s.levels)),
            *_most(lambda s: s.levels),
            ("  children of a constituent", lambda s: _mean(s.children)),
            *_most(lambda s: s.children),
        ]
    for name in dict.fromkeys(name for split in statistics for name in split.heads):
        rows += _graph_rows(name)
    fields = list(dict.fromkeys(name for split in statistics for name in split.bytes))
    rows += [("bytes per subword", lambda s: _ratio(sum(s.bytes.values()), s.subwords.total))]
    rows += [(f"  {name}", _bytes_of(name)) for name in fields]
    return rows


def _graph_rows(name: str) -> list[StatisticRow]:

    def heads(split: SplitStatistics) -> Spread:
        return split.heads.get(name, Spread())

    return [
        (f"edges of {FIELDS[name].meaning}", lambda s: _number(heads(s).total)),
        ("  heads of a word", lambda s: _mean(heads(s))),
        ("    most", lambda s: _number(max(heads(s).largest, 0))),
    ]


def _bytes_of(name: str) -> Cell:
    return lambda s: _ratio(s.bytes.get(name, 0), s.subwords.total)


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
        counts = statistics.labels.get(name, np.zeros(0, dtype=np.int64))
        return _percent(sum(int(counts[n]) for n in numbers if n < len(counts)), int(counts.sum()))

    return cell


def _number(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _mean(spread: Spread) -> str:
    return _ratio(spread.total, spread.count)


def _most(spread_of: Callable[[SplitStatistics], Spread]) -> list[StatisticRow]:
    """Return a row for the largest value of a :class:`Spread` and a row for its line."""

    def largest(statistics: SplitStatistics) -> str:
        spread = spread_of(statistics)
        return _number(spread.largest) if spread.count else "-"

    def line(statistics: SplitStatistics) -> str:
        spread = spread_of(statistics)
        return _number(spread.line) if spread.count else "-"

    return [("    most", largest), ("      in line", line)]


def _ratio(part: int, total: int) -> str:
    return f"{part / total:.2f}" if total else "-"


def _percent(part: int, total: int) -> str:
    return f"{100 * part / total:.2f} %" if total else "-"
