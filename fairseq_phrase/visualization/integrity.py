"""Verify every record of the parses in a data directory against the text they belong to.

Opening a data directory compares fingerprints, which use samples of large files. This module checks every
number, a block of sentences at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fairseq_phrase.data.store.dictionaries import load_dictionary
from fairseq_phrase.data.store.indexed import IndexedReader
from fairseq_phrase.data.store.layout import rerun, with_labels
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.errors import UserError, at
from fairseq_phrase.visualization.record_checks import RecordChecker, word_counts
from fairseq_phrase.visualization.sentence_blocks import Dictionaries, SplitFiles


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
    found = {"sentences": files.sentences, "words": words, "subwords": subwords}
    for what, count in found.items():
        if count != getattr(record, what):
            raise UserError(
                f"{Manifest.path(directory, manifest.language)} expects {getattr(record, what)} "
                f"{what} in {split}, found {count}: {rerun(directory)}"
            )
    ParseStore(directory, split, manifest.language, set())  # compares all fingerprints


def _check_lengths(files: SplitFiles, directory: Path, manifest: Manifest) -> None:
    """Check that text, parses and the other language's text have the same number of lines."""
    lengths = {f"{files.path_of(name)}.idx": len(reader) for name, reader in files.readers.items()}
    for language in files.split.rpartition(".")[2].split("-"):
        other = directory / f"{files.split}.{language}"
        if language != manifest.language and Path(f"{other}.idx").is_file():
            lengths[f"{other}.idx"] = len(IndexedReader(other))
    expected = manifest.splits[files.split].sentences
    for path, found in lengths.items():
        if found != expected:
            raise UserError(
                f"{at(path, min(found, expected) + 1)}: expected {expected} lines in all, as "
                f"{Manifest.path(directory, manifest.language).name} says, found {found}; "
                f"{rerun(directory)}"
            )
