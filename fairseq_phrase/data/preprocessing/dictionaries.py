"""Dictionaries and binarized text, made by fairseq; slots for unknown words (``--copy-words``)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.binarizer import BinarizeSummary, FileBinarizer, VocabularyDatasetBinarizer
from fairseq.data import Dictionary

from fairseq_phrase.data.preprocessing.options import Options
from fairseq_phrase.data.store.copied_words import (
    copied_path,
    number_of_slots,
    number_unknown,
    slot,
    stored,
)
from fairseq_phrase.data.store.dictionaries import load_dictionary
from fairseq_phrase.data.store.indexed import IndexedWriter
from fairseq_phrase.errors import UserError
from fairseq_phrase.text import read_lines


def check_copy_words(options: Options) -> None:
    """Check that the options are compatible with ``--copy-words``.

    Raises:
        UserError: the data are not parallel, or have two dictionaries.
    """
    if not options.copy_words:
        return
    if options.target_lang is None or options.labels is not None:
        raise UserError(
            "--copy-words is for parallel text: leave it out for labels and one language"
        )
    if not options.joined_dictionary:
        raise UserError(
            "--copy-words needs --joined-dictionary: a word that is copied has one entry for source and "
            "target"
        )


def add_slots(dictionary: Any, options: Options) -> None:
    """Add the slots to a new dictionary, before it is made final."""
    for number in range(1, options.copy_words + 1):
        # The smallest count that passes --min-count.
        dictionary.add_symbol(slot(number), options.min_count)


def check_slots(path: Path, known: Mapping[str, int], options: Options) -> None:
    """Check that a given dictionary has as many slots as ``--copy-words`` asks for.

    Raw text uses all slots of a dictionary, so data that use fewer slots differ from it.

    Raises:
        UserError: the dictionary has fewer or more slots.
    """
    slots = number_of_slots(known)
    if options.copy_words and slots != options.copy_words:
        advice = f"give --copy-words {slots}, or another dictionary"
        if not slots:
            advice = "give the dictionary of data that were made with --copy-words, or none"
        raise UserError(
            f"--copy-words {options.copy_words}: {path} has {slots} slots ({slot(1)}, …): {advice}"
        )


def number_split(
    source: Path, target: Path, prefix: Path, known: Mapping[str, int], options: Options
) -> list[Path]:
    """Replace unknown words in a split's two files of subwords, and write the words next to the text.

    Args:
        source: the source's subwords, which are rewritten.
        prefix: the path of the binarized source text, without ``.bin`` and ``.idx``.
        known: the index of each entry of the dictionary, which has the slots (:func:`check_slots`).

    Returns:
        The paths of the files with the words.
    """
    writer = IndexedWriter(copied_path(prefix))
    rewritten = [path.with_name(path.name + ".numbered") for path in (source, target)]
    with (
        open(rewritten[0], "w", encoding="utf-8") as new_source,
        open(rewritten[1], "w", encoding="utf-8") as new_target,
    ):
        for own, other in zip(read_lines(source), read_lines(target), strict=True):
            subwords, words = number_unknown(own.split(), known, options.copy_words)
            # A pair without unknown source words has no slots.
            others, _ = number_unknown(other.split(), known, 0, words)
            writer.append(stored(words))
            new_source.write(" ".join(subwords) + "\n")
            new_target.write(" ".join(others) + "\n")
    for path, new in zip((source, target), rewritten, strict=True):
        os.replace(new, path)
    return writer.finish()


def make_dictionaries(
    options: Options,
    subwords: dict[str, Counter[str]],
    vocabularies: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Dictionary]:
    """Load or build both languages' dictionaries.

    Args:
        subwords: the number of each subword in the training text, by language; empty without a
            training set. All dictionaries must then be loaded.
        vocabularies: by language, the entries of a dictionary that are known without a text.
    """
    # Text of one language has one dictionary.
    given = dict(zip(options.languages, (options.srcdict, options.tgtdict), strict=False))
    made = {language: load_dictionary(path) for language, path in given.items() if path is not None}
    for dictionary in made.values():
        for token in options.protected:
            if token not in dictionary:
                dictionary.add_symbol(token)  # at the end, as fairseq's mBART adds language tags
    missing = [language for language in options.languages if language not in made]
    if options.joined_dictionary and made:
        made.update(dict.fromkeys(missing, next(iter(made.values()))))
        missing = []
    groups = [missing] if options.joined_dictionary and missing else [[name] for name in missing]
    for group in groups:
        dictionary = Dictionary()
        entries = (vocabularies or {}).get(group[0], ())
        are_labels = options.labels is not None and group == [options.target_lang]
        for entry in (*entries, *(() if are_labels else options.protected)):
            # fairseq sorts by frequency. An entry that the training text lacks also gets a count.
            dictionary.add_symbol(entry, max(1, options.min_count))
        for language in group:
            for subword, count in subwords[language].items():
                dictionary.add_symbol(subword, count)
        add_slots(dictionary, options)
        if are_labels:
            # fairseq pads dictionaries with made-up words, which would be labels here.
            dictionary.finalize(padding_factor=1)
        else:
            dictionary.finalize(threshold=options.min_count, padding_factor=8)
        made.update(dict.fromkeys(group, dictionary))
    return made


# fairseq's summary counts lines with unknown subwords here.
_LINES = "lines"


class _SubwordBinarizer(VocabularyDatasetBinarizer):
    """fairseq's binarizer, without a Python call and a tensor access for every subword."""

    def binarize_line(self, line: str, summary: BinarizeSummary) -> torch.Tensor:
        """Turn a line of subwords into their numbers. Shape: ``(subwords + 1,)``, int32."""
        known, unknown = self.dict.indices, self.dict.unk_index
        numbers = [known.get(subword, unknown) for subword in line.split()]
        numbers.append(self.dict.eos_index)
        summary.num_seq += 1
        summary.num_tok += len(numbers)
        if unknown in numbers:
            summary.replaced = Counter(summary.replaced)
            summary.replaced[_LINES] += 1
        return torch.from_numpy(np.array(numbers, dtype=np.int32))


def binarize(subwords: Path, prefix: Path, dictionary: Dictionary, workers: int) -> int:
    """Let fairseq binarize a file of subwords, then delete the file.

    Args:
        prefix: the path of the binarized text, without ``.bin`` and ``.idx``.

    Returns:
        The number of lines with subwords that the dictionary lacks.
    """
    summary = FileBinarizer.multiprocess_dataset(
        str(subwords), "mmap", _SubwordBinarizer(dictionary, str.split), str(prefix),
        vocab_size=len(dictionary), num_workers=workers,
    )  # fmt: skip
    subwords.unlink()
    return Counter(summary.replaced)[_LINES]
