"""Verify every record of the parses in a data directory against the text they belong to.

Opening a data directory compares fingerprints, which use samples of large files. This module checks every
number: text, words, heads, labels and constituents, all sentences of a block at once. An invalid record
never makes the check itself fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fairseq_phrase.data.store.dictionaries import load_dictionary
from fairseq_phrase.data.store.indexed import IndexedReader
from fairseq_phrase.data.store.layout import rerun, with_labels
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.errors import UserError, location
from fairseq_phrase.lab.inspection.sentence_blocks import (
    Dictionaries,
    Ragged,
    SentenceBlock,
    SplitFiles,
)
from fairseq_phrase.syntax.fields import FIELDS, ParseField
from fairseq_phrase.syntax.tree_arrays import dependency_depths, previous_smaller


def load_dictionaries(directory: Path, manifest: Manifest) -> Dictionaries:
    """Read the dictionaries of a language's text and labels.

    Raises:
        UserError: a dictionary is missing or damaged.
    """
    names = {"text": f"dict.{manifest.language}.txt"}
    names |= with_labels(manifest.fields)
    loaded = {}
    for name, file in names.items():
        path = directory / file
        if not path.is_file():
            raise UserError(f"{path} is missing: {rerun(directory)}")
        try:
            loaded[name] = load_dictionary(path)
        except UserError as error:
            raise UserError(f"{path} is damaged ({error}): {rerun(directory)}") from None
    return loaded


def verify_split(
    directory: Path,
    manifest: Manifest,
    split: str,
    dictionaries: Dictionaries,
    advance: Callable[[int], object] = lambda sentences: None,
) -> None:
    """Verify every record of a split, then its counts, then its files' fingerprints.

    The records come first, because their messages name the line.

    Args:
        split: the split's name with its language pair.
        advance: called with the number of sentences that have been checked since the last call.

    Raises:
        UserError: a record or file is invalid; the message names the expected and the found value.
    """
    files = SplitFiles(directory, manifest, split)
    checker = RecordChecker(files, dictionaries)
    words = subwords = 0
    for block in files.blocks():
        checker.check(block)
        words += int(word_counts(block.arrays["words"]).sum())
        subwords += len(block.arrays["words"].values)
        advance(len(block))
    _check_lengths(files, directory, manifest)
    record = manifest.splits[split]
    for unit, count, expected in (
        ("sentences", files.sentences, record.sentences),
        ("words", words, record.words),
        ("subwords", subwords, record.subwords),
    ):
        if count != expected:
            raise UserError(
                f"{Manifest.path(directory, manifest.language)} expects {expected} "
                f"{unit} in {split}, found {count}: {rerun(directory)}"
            )
    ParseStore(directory, split, manifest.language, set())  # compares all fingerprints


def _check_lengths(files: SplitFiles, directory: Path, manifest: Manifest) -> None:
    """Check that text, parses and the other language's text have the same number of lines."""
    lengths = {f"{files.path_of(name)}.idx": len(reader) for name, reader in files.readers.items()}
    for language in files.split.rpartition(".")[2].split("-"):
        text_path = directory / f"{files.split}.{language}"
        if language != manifest.language and Path(f"{text_path}.idx").is_file():
            lengths[f"{text_path}.idx"] = len(IndexedReader(text_path))
    expected = manifest.splits[files.split].sentences
    for path, lines in lengths.items():
        if lines != expected:
            raise UserError(
                f"{location(path, min(lines, expected) + 1)}: expected {expected} lines in all, as "
                f"{Manifest.path(directory, manifest.language).name} states, found {lines}; "
                f"{rerun(directory)}"
            )


class _Fault(NamedTuple):
    """A problem of one sentence of a block, with the sentence's index from 0."""

    sentence: int
    problem: str


class RecordChecker:
    """Check the records of one split."""

    def __init__(self, files: SplitFiles, dictionaries: Dictionaries):
        self._files = files
        self._entries = {name: len(entries) for name, entries in dictionaries.items()}
        text = dictionaries["text"]
        self._eos, self._special = text.eos(), (text.bos(), text.pad(), text.eos())

    def check(self, block: SentenceBlock) -> None:
        """Check every record of a block.

        Raises:
            UserError: a record is invalid. The message names the first invalid record with its line, the
                expected and the found value.
        """
        # If a line has several faults, the first in this order causes the others.
        faults = [(name, fault) for name, check in self._checks(block) for fault in check]
        if faults:
            name, first = min(faults, key=lambda fault: fault[1].sentence)
            path = Path(f"{self._files.path_of(name)}.bin")
            where = location(path, block.first + first.sentence + 1)
            raise UserError(f"{where}: {first.problem}; {rerun(path.parent)}")

    def _checks(self, block: SentenceBlock) -> Iterator[tuple[str, Iterator[_Fault]]]:
        text, arrays = block.arrays["text"], block.arrays
        yield "text", self._text(text)
        counts = word_counts(arrays["words"])
        items = {
            "subword": (np.maximum(text.sizes - 1, 0), "subwords, as the text has"),
            "word": (counts, "words, as the words have"),
        }
        for name, field in FIELDS.items():
            if name not in arrays:
                continue
            yield name, _sizes(field, arrays[name], *items.get(field.per, (None, "")))
            items_of_sentences = _whole_items(arrays[name], field.columns)
            if name in _STRUCTURES:
                yield name, _STRUCTURES[name](items_of_sentences, counts)
            if field.per == "edge":
                yield name, _edges(items_of_sentences, counts)
            if field.label_file is not None:
                yield name, self._labels(field, items_of_sentences)

    def _text(self, text: Ragged) -> Iterator[_Fault]:
        ends = np.maximum(text.offsets[1:] - 1, 0)
        tokens, sentences, entries = text.values, text.sentences, self._entries["text"]
        last_tokens = np.where(text.sizes > 0, tokens[ends] if len(tokens) else 0, -1)
        for sentence in _first(last_tokens != self._eos):
            last = last_tokens[sentence] if last_tokens[sentence] >= 0 else "no token"
            yield _Fault(
                sentence,
                f"expected the end of the sentence, {self._eos}, as the last token, found {last}",
            )
        inside = np.ones(len(tokens), dtype=bool)
        inside[ends[text.sizes > 0]] = False
        wrong = (tokens < 0) | (tokens >= entries)
        wrong |= inside & np.isin(tokens, self._special)
        for index in _first(wrong):
            yield _Fault(
                sentences[index],
                f"expected token {text.positions[index] + 1} to be one of the {entries} in the "
                f"dictionary, and no padding or end within the sentence, found {tokens[index]}",
            )

    def _labels(self, field: ParseField, values: Ragged) -> Iterator[_Fault]:
        """Check that labels are in their dictionary; its first three entries mark padding and ends."""
        labels = values.values.reshape(-1, field.columns)[:, -1]
        items = Ragged(labels, values.offsets // field.columns)
        entries, positions = self._entries[field.name], items.positions
        for index in _first((labels < len(self._special)) | (labels >= entries)):
            yield _Fault(
                items.sentences[index],
                f"expected {field.per} {positions[index]} to have a label from {len(self._special)} to "
                f"{entries - 1}, as {field.label_file} numbers them, found {labels[index]} "
                f"({field.per}s count from 0)",
            )


def in_words(words: Ragged) -> Ragged:
    """Drop protected tokens, which do not belong to words (-1)."""
    real = words.values != -1
    return Ragged(words.values[real], np.concatenate([[0], np.cumsum(real)])[words.offsets])


def word_counts(words: Ragged) -> np.ndarray:
    """Count each sentence's words. Shape: ``(sentences,)``, int64."""
    words = in_words(words)
    counts = np.zeros(len(words.sizes), dtype=np.int64)
    filled = words.sizes > 0
    counts[filled] = words.values[words.offsets[1:][filled] - 1] + 1
    return counts


def _whole_items(values: Ragged, columns: int) -> Ragged:
    """Drop all sentences after one whose numbers are not complete items, because they are shifted."""
    broken = values.sizes % columns != 0
    if not broken.any():
        return values
    stop = int(broken.argmax())
    return Ragged(values.values[: values.offsets[stop]], values.offsets[: stop + 1])


def _sizes(
    field: ParseField, values: Ragged, items: np.ndarray | None, description: str
) -> Iterator[_Fault]:
    """Check the number of values of each sentence.

    Args:
        items: required number of items of each sentence; None if any number is valid.
        description: the items and the file that determines their number, for the message.
    """
    columns = field.columns
    if columns > 1:
        groups = {2: "pairs", 3: "triples"}.get(columns, f"groups of {columns}")
        for sentence in _first(values.sizes % columns != 0):
            yield _Fault(
                sentence, f"expected {groups} of numbers, found {values.sizes[sentence]} numbers"
            )
    if items is not None:
        for sentence in _first(values.sizes != items * columns):
            count = values.sizes[sentence] // columns
            yield _Fault(sentence, f"expected {items[sentence]} {description}, found {count}")


def _words(words: Ragged, counts: np.ndarray) -> Iterator[_Fault]:
    """Check that each subword belongs to the word of the previous subword or to the next word."""
    words = in_words(words)
    steps = np.diff(words.values, prepend=0)
    starts = words.offsets[:-1][words.sizes > 0]
    steps[starts] = words.values[starts]
    wrong = (steps < 0) | (steps > 1)
    wrong[starts] = words.values[starts] != 0
    positions, values = words.positions, words.values
    for index in _first(wrong):
        expected = "0"
        if positions[index]:
            expected = f"{values[index - 1]} or {values[index - 1] + 1}"
        yield _Fault(
            words.sentences[index],
            f"expected subword {positions[index]} to belong to word {expected}, found {values[index]} "
            "(both count from 0)",
        )


def _heads(heads: Ragged, counts: np.ndarray) -> Iterator[_Fault]:
    sizes, positions = heads.sizes, heads.positions
    sentences, values = heads.sentences, heads.values
    outside = (values < 0) | (values >= sizes[sentences])
    for index in _first(outside):
        yield _Fault(
            sentences[index],
            f"expected the head of word {positions[index]} out of 0 to "
            f"{sizes[sentences[index]] - 1}, found {values[index]} (words count from 0)",
        )
    is_root = values == positions
    roots = np.bincount(sentences[is_root], minlength=len(sizes))
    for sentence in _first((roots != 1) & (sizes > 0)):
        yield _Fault(
            sentence, f"expected one root, a word that is its own head, found {roots[sentence]}"
        )
    itself = np.arange(len(values))
    inside = np.where(outside, itself, values + np.repeat(heads.offsets[:-1], sizes))
    circling = dependency_depths(inside, int(sizes.max(initial=0)))[1]
    for index in _first(circling):
        yield _Fault(
            sentences[index],
            f"expected a tree, found a cycle in the heads above word {positions[index]} "
            "(words count from 0)",
        )


def _spans(spans: Ragged, counts: np.ndarray) -> Iterator[_Fault]:
    """Check that constituents do not cross, and that children come before parents."""
    starts, ends, _ = spans.values.reshape(-1, 3).T
    triples = Ragged(starts, spans.offsets // 3)
    sentences, positions = triples.sentences, triples.positions
    words = counts[sentences]
    for index in _first((starts < 0) | (starts >= ends) | (ends > words)):
        yield _Fault(
            sentences[index],
            f"expected constituent {positions[index]} to cover words out of 0 to "
            f"{words[index] - 1}, found {starts[index]} to {ends[index] - 1} (both count from 0)",
        )
    inner = positions[1:] > 0
    out_of_order = (ends[:-1] > ends[1:]) | (ends[:-1] == ends[1:]) & (starts[:-1] < starts[1:])
    for before in _first(inner & out_of_order):
        index = before + 1
        yield _Fault(
            sentences[index],
            f"expected children before parents and left before right, found constituent "
            f"{positions[index]} over words {starts[index]} to {ends[index] - 1} after "
            f"{starts[before]} to {ends[before] - 1} (words count from 0)",
        )
    earlier_spans = previous_smaller(starts, triples.offsets[sentences])
    for index in _first((earlier_spans >= 0) & (ends[earlier_spans] > starts)):
        earlier = earlier_spans[index]
        yield _Fault(
            sentences[index],
            f"expected constituents nested or disjoint, found words {starts[earlier]} to "
            f"{ends[earlier] - 1} and {starts[index]} to {ends[index] - 1}, which cross (words count "
            "from 0)",
        )


def _edges(edges: Ragged, counts: np.ndarray) -> Iterator[_Fault]:
    ends = edges.values.reshape(-1, 3)[:, :2]
    triples = Ragged(ends[:, 0], edges.offsets // 3)
    sentences, positions = triples.sentences, triples.positions
    for index in _first(((ends < 0) | (ends >= counts[sentences][:, None])).any(1)):
        yield _Fault(
            sentences[index],
            f"expected edge {positions[index]} to join words out of 0 to "
            f"{counts[sentences[index]] - 1}, found {ends[index, 0]} and {ends[index, 1]} (both count "
            "from 0)",
        )


#: Checks of a field's numbers, in addition to the checks of their count and their labels.
_STRUCTURES = {"words": _words, "heads": _heads, "spans": _spans}


def _first(wrong: np.ndarray) -> Iterator[int]:
    """Yield the index of the first wrong item, if any."""
    if wrong.any():
        yield int(wrong.argmax())
