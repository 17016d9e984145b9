"""Verify every record of the parses in a data directory against the text they belong to.

Opening a data directory compares fingerprints, which use samples of large files. This module checks every
number: text, words, heads, labels and constituents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

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
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.fields import FIELDS, ParseField

_FIRST_LABEL = 3  # the first entries of a dictionary mark padding and ends; <unk> is a label


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


class RecordChecker:
    """Check the records of one split, sentence by sentence."""

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
        for index in range(len(block)):
            record = {name: rows.sentence(index).tolist() for name, rows in block.arrays.items()}
            for name, problem in self._faults(record):
                path = Path(f"{self._files.path_of(name)}.bin")
                where = location(path, block.first + index + 1)
                raise UserError(f"{where}: {problem}; {rerun(path.parent)}")

    def _faults(self, record: dict[str, list[int]]) -> Iterator[tuple[str, str]]:
        """Yield the field and the problem of each fault; a fault may cause those after it."""
        *tokens, end = record["text"] or [-1]
        if end != self._eos:
            yield (
                "text",
                f"expected the end of the sentence, {self._eos}, as the last token, found {end}",
            )
        for number, token in enumerate(tokens, start=1):
            if not 0 <= token < self._entries["text"] or token in self._special:
                yield (
                    "text",
                    f"expected token {number} to be one of the {self._entries['text']} in the "
                    f"dictionary, and no padding or end within the sentence, found {token}",
                )
        # Protected tokens do not belong to words (-1).
        words = [word for word in record["words"] if word != -1]
        count = words[-1] + 1 if words else 0
        items = {"subword": (len(tokens), "the text has"), "word": (count, "the words have")}
        for name, field in FIELDS.items():
            if name in record:
                faults = _field_faults(field, record[name], items, self._entries.get(name))
                yield from ((name, fault) for fault in faults)


def _field_faults(
    field: ParseField, values: list[int], items: dict[str, tuple[int, str]], entries: int | None
) -> Iterator[str]:
    """Check a field's number of values, their structure, and their labels.

    Args:
        items: by unit, the number of items of the sentence, and what determines it.
        entries: the number of entries of the dictionary of labels.
    """
    rows, remainder = divmod(len(values), field.columns)
    if remainder:
        yield f"expected groups of {field.columns} numbers, found {len(values)} numbers"
        return
    expected, owner = items.get(field.per, (rows, ""))
    if rows != expected:
        yield f"expected {expected} {field.per}s, as {owner}, found {rows}"
    if field.name in _STRUCTURES or field.per == "edge":
        check = _STRUCTURES.get(field.name, _check_edges)
        try:
            check(np.array(values, np.int64).reshape(-1, field.columns), items["word"][0])
        except ValueError as error:
            yield f"expected valid {field.name}: {error}"
    for number, label in enumerate(values[field.columns - 1 :: field.columns]):
        if entries is not None and not _FIRST_LABEL <= label < entries:
            yield (
                f"expected {field.per} {number} to have a label from {_FIRST_LABEL} to {entries - 1}, "
                f"as {field.label_file} numbers them, found {label} ({field.per}s count from 0)"
            )


def _check_words(rows: np.ndarray, count: int) -> None:
    words = rows[rows != -1].tolist()
    for number, (before, word) in enumerate(pairwise([-1, *words])):
        if word not in (max(before, 0), before + 1):
            raise ValueError(
                f"subword {number} belongs to word {word}, after word {before} (both count from 0)"
            )


def _check_heads(rows: np.ndarray, count: int) -> None:
    heads = rows[:, 0]
    if (DependencyTree(heads).heads != heads).any():
        raise ValueError("several words are their own heads, and one is the root")


def _check_spans(rows: np.ndarray, count: int) -> None:
    tree = ConstituencyTree(rows[:, :2], list(map(str, rows[:, 2])), count)
    if (tree.spans != rows[:, :2]).any():
        raise ValueError("children do not come before parents, or right comes before left")


def _check_edges(rows: np.ndarray, count: int) -> None:
    if ((rows[:, :2] < 0) | (rows[:, :2] >= count)).any():
        raise ValueError(f"an edge joins words that are not out of 0 to {count - 1}")


#: Checks of a field's numbers, in addition to the checks of their count and their labels.
_STRUCTURES = {"words": _check_words, "heads": _check_heads, "spans": _check_spans}


def word_counts(words: Ragged) -> np.ndarray:
    """Count each sentence's words; protected tokens (-1) are none. Shape: ``(sentences,)``, int64."""
    counts = np.zeros(len(words.sizes), dtype=np.int64)
    filled = words.sizes > 0
    counts[filled] = np.maximum.reduceat(words.values, words.offsets[:-1][filled]) + 1
    return counts
