"""The layout of a data directory: files of labels and indices, the command that made it, and advice."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from fairseq_phrase.syntax.fields import FIELDS
from fairseq_phrase.text import read_json

PREPROCESS, ATTACH = "fairseq-phrase-preprocess", "fairseq-phrase-attach"


def maker_of(directory: str | os.PathLike[str]) -> str:
    """Return the command that made a data directory's parses.

    Returns:
        :data:`ATTACH` if a manifest names it, else :data:`PREPROCESS`, even if manifests are damaged.
    """
    for path in Path(directory).glob("syntax.*.json"):
        try:
            manifest = read_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(manifest, dict) and manifest.get("made_by") == ATTACH:
            return ATTACH
    return PREPROCESS


def rerun(directory: str | os.PathLike[str]) -> str:
    """Return the advice to make a data directory's parses again, ``run … again``."""
    return f"run {maker_of(directory)} again"


def with_labels(fields: Collection[str]) -> dict[str, str]:
    """Return the file names of the label dictionaries of these fields, by field."""
    return {
        name: field.label_file
        for name, field in FIELDS.items()
        if name in fields and field.label_file is not None
    }


def shared_index(field_name: str, fields: Collection[str]) -> str | None:
    """Return the field whose ``.idx`` file a field uses; None if it has a separate one.

    Fields with the same number of values for each sentence share the index of the first of them.

    Args:
        field_name: a name in :data:`FIELDS`, or ``text``.
        fields: all fields in the data directory.
    """
    field = FIELDS.get(field_name)
    if field is None or field.per == "edge":
        return None
    alike = (
        name
        for name, candidate in FIELDS.items()
        if name in fields and (candidate.per, candidate.columns) == (field.per, field.columns)
    )
    first = next(alike, field_name)
    return None if first == field_name else first
