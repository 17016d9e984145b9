"""The label dictionaries of a run: given ones, those in use, or new ones."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from fairseq.data import Dictionary

from fairseq_phrase.errors import UserError
from fairseq_phrase.store.dictionaries import load_dictionary
from fairseq_phrase.store.fields import with_labels
from fairseq_phrase.store.manifest import Manifest
from fairseq_phrase.store.writer import LabelTable

logger = logging.getLogger(__name__)
_NAMED = 20  # unknown labels that a warning lists


def load_labels(path: Path, count: int | None = None) -> Dictionary:
    """Load a label dictionary.

    Args:
        path: the dictionary.
        count: load only this number of first labels.

    Raises:
        UserError: it is missing or malformed.
    """
    loaded = load_dictionary(path)
    if count is None or len(loaded) == loaded.nspecial + count:
        return loaded
    first = Dictionary()
    for number in range(first.nspecial, min(len(loaded), first.nspecial + count)):
        first.add_symbol(loaded[number], loaded.count[number])
    return first


def manifests_of(folder: Path | None, languages: Collection[str]) -> dict[str, Manifest]:
    """Load the manifests that a data directory has of some languages, by language."""
    if folder is None:
        return {}
    there = (name for name in languages if Manifest.path(folder, name).is_file())
    return {name: Manifest.load(folder, name) for name in there}


def given_labels(
    folder: Path | None,
    fields: Collection[str],
    manifests: Collection[Manifest],
    *,
    all_of_them: bool,
) -> dict[str, Dictionary]:
    """Load the label dictionaries of a data directory that a run reuses.

    Args:
        folder: the data directory: what ``--labeldict`` names, or the folder of ``--srcdict``.
        fields: the fields that are written.
        manifests: its manifests of the languages that are parsed. Labels that only another language's
            parses know are left out.
        all_of_them: require the dictionary of every field, as ``--labeldict`` does; otherwise missing
            ones are made.

    Returns:
        The dictionaries, by field.

    Raises:
        UserError: a dictionary is missing or malformed, or is not the one of the directory's parses.
    """
    given: dict[str, Dictionary] = {}
    if folder is None:
        return given
    for name, file in with_labels(fields).items():
        path = folder / file
        if path.is_file():
            known = [len(m.labels_of(name, folder)) for m in manifests if name in m.labels]
            given[name] = load_labels(path, max(known, default=None))
        elif all_of_them:
            raise UserError(
                f"--labeldict {folder}: {path} is not there; name the training data's directory, which "
                "was parsed by the same parser"
            )
    return given


def warn_of_unknown(labels: dict[str, LabelTable]) -> None:
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
