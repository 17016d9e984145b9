"""Queries of a data directory: names of splits, labels, and whether copying can be learned."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import Dictionary, data_utils, indexed_dataset
from fairseq.tasks.translation import TranslationTask
from fairseq.utils import split_paths

from fairseq_phrase.data.store.copied_words import number_of_slots, slot
from fairseq_phrase.data.store.indexed import IndexedReader
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.errors import UserError

_SENTENCES = 1 << 16  # number of sentences read at a time


def languages_in_names(directory: str | Path) -> tuple[str, str]:
    """Return the source and the target language that the names of a data directory's files contain.

    Raises:
        UserError: no name contains two languages, or the data are monolingual.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise UserError(f"{directory.absolute()} is not a folder: name the data directory")
    source, target = data_utils.infer_language_pair(str(directory))
    if source is not None:
        return source, target
    if (directory / "dict.txt").is_file():
        raise UserError(f"{directory} has text of one language: name data with source and target")
    raise UserError(
        f"{directory} is not a data directory: no file in it names two languages (languages with a "
        "hyphen are named with --source-lang and --target-lang)"
    )


def pair_names(
    directory: str, split: str, languages: tuple[str, str], impl: str | None, *, combine: bool
) -> list[str]:
    """Find ``split`` and, if combined, ``split1``, ``split2``…, in either order of languages.

    Returns:
        The existing names, such as ``train.de-en``, in their order.
    """
    source, target = languages
    names: list[str] = []
    while True:
        part = f"{split}{len(names) or ''}"
        either = (f"{part}.{source}-{target}", f"{part}.{target}-{source}")
        paths = {name: os.path.join(directory, f"{name}.{source}") for name in either}
        existing = [
            n for n, path in paths.items() if indexed_dataset.dataset_exists(path, impl=impl)
        ]
        names += existing[:1]
        if not existing or not combine:
            return names


def read_label_dictionary(directory: str | Path, language: str, field_name: str) -> Dictionary:
    """Read the numbered labels of a field of one language's parses."""
    dictionary = Dictionary()
    for label in Manifest.load(directory, language).labels_of(field_name, directory):
        dictionary.add_symbol(label)
    return dictionary


def refuse_unknown_words(text: str, dictionary: Dictionary) -> None:
    """Check that a training text has no unknown words, which a copying model would learn to generate.

    Args:
        text: the path of the binarized target text, without ``.bin`` and ``.idx``.
        dictionary: the target dictionary, which has no slots for unknown words.

    Raises:
        UserError: the text has an unknown word.
    """
    if indexed_dataset.infer_dataset_impl(text) != "mmap":
        return  # fairseq's older formats, which cannot be read in one array
    reader = IndexedReader(text)
    for first in range(0, len(reader), _SENTENCES):
        last = min(first + _SENTENCES, len(reader))
        values = reader.between(first, last)
        unknown = np.flatnonzero(values == dictionary.unk())
        if len(unknown):
            ends = reader.sizes[first:last].cumsum()
            sentence = first + int(np.searchsorted(ends, unknown[0], side="right")) + 1
            raise UserError(
                f"--copy: sentence {sentence} of {text} has an unknown word, so the model would learn to "
                f"write {dictionary.unk_word}: make the data again by fairseq-phrase-preprocess with "
                "--copy-words 20 --joined-dictionary, which gives unknown words of the source entries "
                "that can be copied"
            )


def check_copying(task: Any) -> None:
    """Check the data if the task is fairseq's own; this project's tasks check theirs.

    Raises:
        UserError: the model would train on unknown words, or on slots for unknown words.
    """
    target = task.target_dictionary
    if not isinstance(task, TranslationTask) or type(target) is not Dictionary:
        return
    if number_of_slots(target.indices):
        raise UserError(
            f"--copy: the data have {slot(1)} in place of unknown words, which only --task "
            "syntax_translation can write back: use it in training and translation"
        )
    options = task.cfg
    languages = options.source_lang, options.target_lang
    for folder in split_paths(options.data):
        # fairseq combines the parts of training data.
        for name in pair_names(
            folder, options.train_subset, languages, options.dataset_impl, combine=True
        ):
            refuse_unknown_words(os.path.join(folder, f"{name}.{options.target_lang}"), target)
