"""Statistics of a data directory, against loops over its sentences."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from fairseq_phrase.data.store.indexed import IndexedReader
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.lab.inspection import corpus_statistics
from fairseq_phrase.lab.inspection.corpus_statistics import (
    SplitStatistics,
    Spread,
    split_statistics,
    statistics_text,
)
from fairseq_phrase.lab.inspection.parsed_text import load_dictionaries
from fairseq_phrase.syntax.dependency import DependencyTree
from tests.support.stores import TREE_FIELDS

SPLIT = "valid.de-en"


def add(statistics, records, unknown=3):
    """Add sentences, whose text has an end of sentence that their words lack."""
    joined = {
        name: (
            np.array([item for record in records for item in record[name]], dtype=np.int64),
            np.array([len(record[name]) for record in records]),
        )
        for name in records[0]
    }
    joined["spans"] = joined["spans"][0].reshape(-1, 3), joined["spans"][1]
    text, _ = joined.pop("text")
    statistics.add(text, joined["words"][1], joined, unknown)


@pytest.fixture(scope="module")
def parses(data_directory):
    store = ParseStore(data_directory, SPLIT, "de", set(TREE_FIELDS))
    return [store[index] for index in range(len(store))]


def counted(data_directory, **left_out):
    manifest = Manifest.load(data_directory, "de")
    manifest.splits[SPLIT].left_out = left_out
    dictionaries = load_dictionaries(data_directory, manifest)
    return split_statistics(data_directory, manifest, SPLIT, dictionaries)


@pytest.fixture(params=[1, 7, 1 << 20])
def statistics(data_directory, monkeypatch, request):
    """Of a split that is read in one block or in several."""
    monkeypatch.setattr(corpus_statistics, "BLOCK_SENTENCES", request.param)
    return counted(data_directory)


def spread(values_by_line):
    """The plain twin of :class:`Spread`, from each line's numbers."""
    values = [value for row in values_by_line for value in row]
    largest = max(values)
    line = 1 + next(line for line, row in enumerate(values_by_line) if largest in row)
    return Spread(len(values), sum(values), largest, line)


def test_lines_are_those_of_the_text_if_some_are_left_out(data_directory):
    of_sentences, of_text = (
        {name: spread for name, spread in vars(counted(data_directory, **left_out)).items()
         if isinstance(spread, Spread)}
        for left_out in ({}, {"empty": "1-3", "too_long": "5"})
    )  # fmt: skip
    assert all(spread.line for spread in of_sentences.values())
    for name, spread in of_sentences.items():
        assert of_text[name].line == (4 if spread.line == 1 else spread.line + 4)


def test_words_and_subwords_are_counted(statistics, parses):
    words = [int(parse["words"][-1]) + 1 for parse in parses]
    assert statistics.sentences == 100
    assert statistics.words == spread([[count] for count in words])
    assert statistics.subwords == spread([[len(parse["words"])] for parse in parses])


def test_dependency_trees_are_counted(statistics, parses):
    trees = [DependencyTree(parse["heads"]) for parse in parses]
    assert statistics.heights == spread([[int(tree.depths.max())] for tree in trees])


def test_constituents_are_counted(statistics, parses):
    assert statistics.constituents == spread([[len(parse["spans"])] for parse in parses])


def test_labels_and_unknown_subwords_are_counted(statistics, parses, data_directory):
    for name in ("deprels", "tags"):
        expected = Counter(value for parse in parses for value in parse[name].tolist())
        assert {n: c for n, c in enumerate(statistics.labels[name].tolist()) if c} == expected
    expected = Counter(value for parse in parses for value in parse["spans"][:, 2].tolist())
    assert {n: c for n, c in enumerate(statistics.labels["spans"].tolist()) if c} == expected
    text = IndexedReader(data_directory / f"{SPLIT}.de")
    unknown = sum(int((text[index] == 3).sum()) for index in range(100))
    assert statistics.unknown == unknown


def test_an_empty_line_is_nothing():
    crossing = {
        "text": [5, 6, 7, 8, 2],
        "words": [0, 1, 2, 3],
        "heads": [2, 3, 2, 2],
        "spans": [[0, 2, 4], [0, 4, 4]],
    }
    empty = {name: [2] if name == "text" else [] for name in crossing}
    straight = {**crossing, "heads": [1, 2, 2, 2], "text": [5, 3, 3, 8, 2], "spans": []}
    statistics = SplitStatistics("train.de-en")
    add(statistics, [empty, crossing, empty])
    add(statistics, [empty, straight])
    assert statistics.sentences == 5
    assert statistics.words == Spread(5, 8, 4, 2)
    assert statistics.heights == Spread(2, 4, 2, 2)
    assert statistics.constituents == Spread(5, 2, 2, 2)
    assert statistics.unknown == 2


@pytest.mark.parametrize("width", [1, 70, 80, 90, 1000])
def test_each_split_has_its_column_in_tables_that_fit(width):
    splits = [f"{name}.de-en" for name in ("train", "valid", "test", "test1", "test2", "test3")]
    text = statistics_text(list(map(SplitStatistics, splits)), {}, width)
    tables = [table.split("\n") for table in text.split("\n\n")]
    assert [name for table in tables for name in table[0].split()] == splits
    widths = [max(map(len, table)) for table in tables]
    for table, size in zip(tables, widths, strict=True):
        assert size <= width or len(table[0].split()) == 1
    if 1 < width < 1000:
        assert 1 < len(tables) < len(splits)
        assert max(widths) > width - 20  # as many as fit
