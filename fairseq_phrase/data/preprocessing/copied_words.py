"""``--copy-words``: slots for a split's unknown source words, also in the target."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_phrase.data.preprocessing.options import Options
from fairseq_phrase.data.store.copied_words import (
    copied_path,
    number_of_slots,
    number_unknown,
    slot,
    stored,
)
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
            pieces, words = number_unknown(own.split(), known, options.copy_words)
            # A pair without unknown source words has no slots.
            others, _ = number_unknown(other.split(), known, 0, words)
            writer.append(stored(words))
            new_source.write(" ".join(pieces) + "\n")
            new_target.write(" ".join(others) + "\n")
    for path, new in zip((source, target), rewritten, strict=True):
        os.replace(new, path)
    return writer.finish()
