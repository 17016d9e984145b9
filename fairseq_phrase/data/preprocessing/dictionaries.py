"""Dictionaries, made by fairseq; slots for unknown words (``--copy-words``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

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
from fairseq_phrase.data.store.writer import TextWriter
from fairseq_phrase.errors import UserError


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


def add_slots(dictionary: Dictionary, options: Options) -> None:
    """Add the slots to a new dictionary, before it is made final."""
    for number in range(1, options.copy_words + 1):
        # The smallest count that passes --min-count.
        dictionary.add_symbol(slot(number), options.min_count)


def check_slots(path: Path, indices: Mapping[str, int], options: Options) -> None:
    """Check that a given dictionary has as many slots as ``--copy-words`` asks for.

    Raw text uses all slots of a dictionary, so data that use fewer slots differ from it.

    Raises:
        UserError: the dictionary has fewer or more slots.
    """
    slots = number_of_slots(indices)
    if options.copy_words and slots != options.copy_words:
        advice = f"give --copy-words {slots}, or another dictionary"
        if not slots:
            advice = "give the dictionary of data that were made with --copy-words, or none"
        raise UserError(
            f"--copy-words {options.copy_words}: {path} has {slots} slots ({slot(1)}, …): {advice}"
        )


def number_split(
    texts: Sequence[TextWriter], prefix: Path, indices: Mapping[str, int], options: Options
) -> list[Path]:
    """Replace unknown words in a split's two texts, and write the words next to the text.

    Args:
        texts: source and target.
        prefix: the path of the binarized source text, without ``.bin`` and ``.idx``.
        indices: the index of each entry of the dictionary, which has the slots (:func:`check_slots`).

    Returns:
        The paths of the files with the words.
    """
    source, target = texts
    writer = IndexedWriter(copied_path(prefix))
    with source.replaced() as write_source, target.replaced() as write_target:
        for source_line, target_line in zip(source.sentences(), target.sentences(), strict=True):
            subwords, words = number_unknown(source_line, indices, options.copy_words)
            # A pair without unknown source words has no slots.
            target_subwords, _ = number_unknown(target_line, indices, 0, words)
            writer.append(stored(words))
            write_source(subwords)
            write_target(target_subwords)
    return writer.finish()


def make_dictionaries(
    options: Options,
    subwords: Mapping[str, Mapping[str, int]],
    vocabularies: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Dictionary]:
    """Load or build both languages' dictionaries.

    Args:
        subwords: the number of each subword in the training text, by language; empty without a
            training set. All dictionaries must then be loaded.
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
        dictionaries.update(dict.fromkeys(group, dictionary))
    return dictionaries
