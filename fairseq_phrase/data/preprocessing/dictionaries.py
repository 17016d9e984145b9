"""Dictionaries of text and labels, made by fairseq after all lines are counted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from fairseq.data import Dictionary

from fairseq_phrase.data.preprocessing.options import Options, is_training
from fairseq_phrase.data.preprocessing.splits import Split
from fairseq_phrase.data.store.copied_words import slot
from fairseq_phrase.data.store.dictionaries import (
    as_entry,
    labels_fingerprint,
    load_dictionary,
    warn_of_unknown_labels,
)
from fairseq_phrase.data.store.layout import with_labels
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.errors import UserError

logger = logging.getLogger(__name__)
_NAMED = 20  # number of unknown labels in a warning


def make_dictionaries(
    options: Options, splits: Sequence[Split], vocabularies: Mapping[str, Sequence[str]]
) -> dict[str, Dictionary]:
    """Load or build both languages' dictionaries, after the subwords of all splits are counted.

    Args:
        splits: without a training split, all dictionaries must be given.
        vocabularies: by language, the entries of a dictionary that are known without a text.
    """
    # Text of one language has one dictionary.
    paths = dict(zip(options.languages, (options.srcdict, options.tgtdict), strict=False))
    dictionaries = {
        language: load_dictionary(path) for language, path in paths.items() if path is not None
    }
    for dictionary in dictionaries.values():
        for token in options.protected:
            if token not in dictionary:
                dictionary.add_symbol(token)  # at the end, as fairseq's mBART adds language tags
    missing = [language for language in options.languages if language not in dictionaries]
    if options.joined_dictionary and dictionaries:
        dictionaries.update(dict.fromkeys(missing, next(iter(dictionaries.values()))))
        missing = []
    groups = [missing] if options.joined_dictionary and missing else [[name] for name in missing]
    for group in groups:
        dictionary = Dictionary()
        entries = vocabularies[group[0]]
        are_labels = options.labels is not None and group == [options.target_lang]
        for entry in (*entries, *(() if are_labels else options.protected)):
            # fairseq sorts by frequency. An entry that the training text lacks also gets a count.
            dictionary.add_symbol(entry, max(1, options.min_count))
        for language in group:
            for split in filter(lambda split: is_training(split.name), splits):
                for subword, count in split.subwords[language].items():
                    dictionary.add_symbol(subword, count)
        for number in range(1, options.copy_words + 1):
            # The smallest count that passes --min-count.
            dictionary.add_symbol(slot(number), options.min_count)
        if are_labels:
            # fairseq pads dictionaries with made-up words, which would be labels here.
            dictionary.finalize(padding_factor=1)
        else:
            dictionary.finalize(threshold=options.min_count, padding_factor=8)
        dictionaries.update(dict.fromkeys(group, dictionary))
    return dictionaries


class LabelTable:
    """The labels of a field, with the numbers of a fairseq dictionary, which has frequent labels first.

    Args:
        dictionary: a dictionary to continue; its labels keep their numbers.
        may_grow: append new labels that ``dictionary`` lacks. Otherwise they are unknown, like words that
            a text's dictionary lacks.
    """

    def __init__(self, dictionary: Dictionary | None = None, *, may_grow: bool = True):
        self._counts: Counter[str] = Counter()
        self._known, self.may_grow = dictionary, may_grow
        self._dictionary: Dictionary | None = None

    def add(self, counts: Mapping[str, int]) -> None:
        """Add labels, with the number of occurrences of each."""
        for label, count in counts.items():
            self._counts[as_entry(label)] += count

    def dictionary(self) -> Dictionary:
        """The dictionary of all labels that were added before the first access."""
        if self._dictionary is None:
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
        return np.array([dictionary.index(as_entry(label)) for label in labels], dtype=np.int32)

    def fingerprint(self) -> str:
        """Return the fingerprint of the dictionary, for the manifest."""
        dictionary = self.dictionary()
        return labels_fingerprint(dictionary.symbols[dictionary.nspecial :])

    def save(self, path: Path) -> None:
        """Write the dictionary in fairseq's text format."""
        self.dictionary().save(str(path))


def count_labels(splits: Iterable[Split], labels: Mapping[str, LabelTable]) -> None:
    """Add the labels of all splits to their tables, by field."""
    for split in splits:
        for output in split.outputs:
            for (_, name), tally in output.tallies.items():
                if name in labels:
                    labels[name].add(tally.labels)


def warn_of_new_labels(labels: Mapping[str, LabelTable]) -> None:
    """Warn about labels that given dictionaries lack, after everything is written."""
    for name, table in labels.items():
        if unknown := table.unknown():
            logger.warning(
                "%d of the text's labels are not in the given %s and become <unk>: %s%s",
                len(unknown),
                with_labels([name])[name],
                ", ".join(unknown[:_NAMED]),
                ", …" if len(unknown) > _NAMED else "",
            )


def warn_of_unknown(split: Split, dictionary: Dictionary) -> None:
    """Warn about a split's labels that the training data lack."""
    labels = split.subwords[split.sides[1].language]
    unknown = Counter({label: n for label, n in labels.items() if label not in dictionary})
    if unknown:
        warn_of_unknown_labels(split.name, unknown.total(), labels.total(), unknown)


def load_labels(path: Path, count: int | None = None) -> Dictionary:
    """Load a label dictionary.

    Args:
        count: the number of labels to keep, the first ones; None for all.

    Raises:
        UserError: the file is missing or malformed.
    """
    loaded = load_dictionary(path)
    if count is None or len(loaded) == loaded.nspecial + count:
        return loaded
    first = Dictionary()
    for number in range(first.nspecial, min(len(loaded), first.nspecial + count)):
        first.add_symbol(loaded[number], loaded.count[number])
    return first


def manifests_of(folder: Path, languages: Iterable[str]) -> dict[str, Manifest]:
    """Load a data directory's manifests of some languages, by language."""
    there = (name for name in languages if Manifest.path(folder, name).is_file())
    return {name: Manifest.load(folder, name) for name in there}


def given_labels(
    folder: Path | None,
    fields: Collection[str],
    languages: Iterable[str],
    *,
    all_of_them: bool,
) -> dict[str, Dictionary]:
    """Load the label dictionaries of a data directory that a run reuses, by field.

    Args:
        folder: the data directory: the argument of ``--labeldict``, or the folder of ``--srcdict``.
        languages: the parsed languages. Labels known only to another language's parses are left out.
        all_of_them: require the dictionary of every field, as ``--labeldict`` does; otherwise missing
            dictionaries are made.

    Raises:
        UserError: a dictionary is missing or malformed, or does not belong to the directory's parses.
    """
    dictionaries: dict[str, Dictionary] = {}
    if folder is None:
        return dictionaries
    manifests = manifests_of(folder, languages).values()
    for name, file in with_labels(fields).items():
        path = folder / file
        if path.is_file():
            sizes = [len(m.labels_of(name, folder)) for m in manifests if name in m.labels]
            dictionaries[name] = load_labels(path, max(sizes, default=None))
        elif all_of_them:
            raise UserError(
                f"--labeldict {folder}: {path} is not there; name the training data's directory, which "
                "was parsed by the same parser"
            )
    return dictionaries
