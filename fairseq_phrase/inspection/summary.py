"""The manifest and the statistics of a data directory as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_phrase.inspection.corpus_statistics import SplitStatistics, Spread
from fairseq_phrase.inspection.parsed_text import printable
from fairseq_phrase.store.fields import FIELDS, with_labels
from fairseq_phrase.store.manifest import Manifest

_FREQUENT = 10
_INDENT, _GAP = "  ", "  "
Cell = Callable[[SplitStatistics], str]
Row = tuple[str, Cell | None]  # a heading has no cells


def manifest_text(directory: Path, manifest: Manifest, dictionaries: dict[str, Any]) -> str:
    """Return the content of a manifest as text.

    Args:
        dictionaries: what :func:`fairseq_phrase.inspection.integrity.load_dictionaries` returned.
    """
    labels = [
        f"{_number(len(dictionaries[name]) - dictionaries[name].nspecial)} "
        f"{FIELDS[name].label_meaning}"
        for name in with_labels(dictionaries)
    ]
    cut = "at white space" if manifest.tokenized else "by the parser"
    rows = {
        "parser": f"{manifest.parser} ({manifest.parser_version})",
        "fields": ", ".join(manifest.fields),
        "constituents": manifest.constituents,
        "labels": ", ".join(labels),
        "words": f"cut {cut}",
        "subwords": " ".join(part for part in (manifest.bpe, manifest.bpe_model) if part),
        "dictionary": f"dict.{manifest.language}.txt, {_number(len(dictionaries['text']))} entries",
        "splits": ", ".join(manifest.splits),
    }
    path = Manifest.path(directory, manifest.language)
    lines = [f"{_INDENT}{name:<14}{printable(text)}" for name, text in rows.items() if text]
    return "\n".join([f"{path} (format {manifest.format})", *lines])


def statistics_text(
    statistics: Sequence[SplitStatistics], dictionaries: dict[str, Any], width: int
) -> str:
    """Return statistics as text, with a column for each split.

    Args:
        dictionaries: what :func:`fairseq_phrase.inspection.integrity.load_dictionaries` returned.
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


def _rows(statistics: Sequence[SplitStatistics]) -> list[Row]:
    rows: list[Row] = [
        ("sentences", lambda s: _number(s.sentences)),
        ("  unparsed, left out", lambda s: _number(s.skipped)),
        ("  unparsed, with flat trees", lambda s: _number(s.flat)),
        ("words", lambda s: _number(s.words.total)),
        ("  per sentence", lambda s: _mean(s.words)),
        ("    median", lambda s: _number(s.length_quantile(0.5))),
        ("    95 % have at most", lambda s: _number(s.length_quantile(0.95))),
        *_most("words"),
        ("subwords", lambda s: _number(s.subwords.total)),
        ("  per sentence", lambda s: _mean(s.subwords)),
        *_most("subwords"),
        ("  per word", lambda s: _mean(s.pieces)),
        *_most("pieces"),
        ("  not in the dictionary", lambda s: _number(s.unknown)),
    ]
    if any(split.projective is not None for split in statistics):
        rows += [
            ("dependency trees", None),
            ("  depth of a word", lambda s: _mean(s.depths)),
            ("  depth of a tree", lambda s: _mean(s.heights)),
            *_most("heights"),
            ("  dependents of a head", lambda s: _mean(s.dependents)),
            *_most("dependents"),
            ("  projective", lambda s: _percent(s.projective or 0, s.sentences)),
            ("  not projective", lambda s: _number(s.sentences - (s.projective or 0))),
        ]
    if any("spans" in split.bytes for split in statistics):
        rows += [
            ("constituents", lambda s: _number(s.constituents.total)),
            ("  per sentence", lambda s: _mean(s.constituents)),
            *_most("constituents"),
            ("  levels of a sentence", lambda s: _mean(s.levels)),
            *_most("levels"),
            ("  children of a constituent", lambda s: _mean(s.children)),
            *_most("children"),
        ]
    fields = list(dict.fromkeys(name for split in statistics for name in split.bytes))
    rows += [("bytes per subword", lambda s: _ratio(sum(s.bytes.values()), s.subwords.total))]
    rows += [(f"  {name}", _bytes_of(name)) for name in fields]
    return rows


def _bytes_of(name: str) -> Cell:
    return lambda s: _ratio(s.bytes.get(name, 0), s.subwords.total)


def _label_rows(statistics: Sequence[SplitStatistics], dictionaries: dict[str, Any]) -> list[Row]:
    """Return rows for the most frequent labels of each field, and one row for the others."""
    rows: list[Row] = []
    for name in with_labels(FIELDS):
        used = [split.labels[name] for split in statistics if name in split.labels]
        if not used:
            continue
        total = np.zeros(len(dictionaries[name]), dtype=np.int64)
        for counts in used:
            total[: len(counts)] += counts
        order = np.argsort(-total, kind="stable")
        order = order[total[order] > 0]
        frequent, others = order[:_FREQUENT].tolist(), order[_FREQUENT:].tolist()
        rows.append((FIELDS[name].label_meaning, None))
        for number in frequent:
            label = printable(dictionaries[name][number])
            rows.append((f"  {label}", _share_of(name, [number])))
        if others:
            rows.append((f"  {len(others)} others", _share_of(name, others)))
    return rows


def _share_of(name: str, numbers: list[int]) -> Cell:
    def cell(statistics: SplitStatistics) -> str:
        counts = statistics.labels.get(name, np.zeros(0, dtype=np.int64))
        return _percent(sum(int(counts[n]) for n in numbers if n < len(counts)), int(counts.sum()))

    return cell


def _number(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _mean(spread: Spread) -> str:
    return "-" if spread.mean is None else f"{spread.mean:.2f}"


def _most(name: str) -> list[Row]:
    """Return a row for the largest value of a :class:`Spread` and a row for its line."""

    def largest(statistics: SplitStatistics) -> str:
        spread = getattr(statistics, name)
        return _number(spread.largest) if spread.count else "-"

    def line(statistics: SplitStatistics) -> str:
        spread = getattr(statistics, name)
        return _number(spread.line) if spread.count else "-"

    return [("    most", largest), ("      in line", line)]


def _ratio(part: int, whole: int) -> str:
    return f"{part / whole:.2f}" if whole else "-"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "-"
