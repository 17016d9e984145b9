"""What earlier runs left in a data directory, for a run that adds to it."""

from __future__ import annotations

import filecmp
from collections.abc import Collection
from pathlib import Path

from fairseq_phrase.corpus.dictionaries import load_dictionary
from fairseq_phrase.corpus.segmenters import MODEL_NAMES
from fairseq_phrase.errors import UserError
from fairseq_phrase.store.fields import LABEL_FILES
from fairseq_phrase.store.manifest import Manifest, SplitRecord
from fairseq_phrase.store.writer import LabelTable

# What a manifest says of all its splits alike.
_COMMON = (
    "parser", "parser_version", "constituents", "fields", "tokenized", "bpe", "whole_lines",
    "dictionary",
)  # fmt: skip


class EarlierParses:
    """The parses of a data directory, and which of them stay.

    Args:
        directory: the data directory.
        language: the language that is parsed now.
        made: the splits that are made now, with their language pair, ``train.de-en``.

    Attributes:
        staying: the splits of this language that are not made now.

    Raises:
        UserError: a manifest is damaged.
    """

    def __init__(self, directory: Path, language: str, made: Collection[str]):
        self._directory, self._language = directory, language
        languages = (
            path.name.removeprefix("syntax.").removesuffix(".json")
            for path in sorted(directory.glob("syntax.*.json"))
        )
        manifests = {name: Manifest.load(directory, name) for name in languages}
        self._own = manifests.pop(language, None)
        self._others = manifests
        self.staying: dict[str, SplitRecord] = {}
        if self._own is not None:
            records = self._own.splits.items()
            self.staying = {name: record for name, record in records if name not in made}

    def check(self, manifest: Manifest) -> None:
        """Check that the splits that stay and those that are made now can be under one manifest.

        Raises:
            UserError: they were not made alike.
        """
        if not self.staying or self._own is None:
            return
        for name in _COMMON:
            earlier, now = getattr(self._own, name), getattr(manifest, name)
            if earlier != now:
                raise UserError(
                    f"{self._directory} has parses of {', '.join(sorted(self.staying))}, made with "
                    f"{name.replace('_', ' ')} {earlier}, and this run has {now}: name these splits "
                    "too, to make them anew, or run with the same"
                )

    def model_name(self, bpe: str, given: Path | None) -> str:
        """Name the data directory's subword model; empty if there is none.

        Args:
            bpe: what cut the text.
            given: the model that is to be copied there, if any; without one, an earlier one stays.

        Raises:
            UserError: another file is there under its name.
        """
        if given is None:
            return self._own.bpe_model if self._own is not None and self._own.bpe == bpe else ""
        name = MODEL_NAMES[bpe]
        there = self._directory / name
        if there.is_file() and not filecmp.cmp(there, given, shallow=False):
            users = [] if self._own is None or not self.staying else [self._own]
            users += self._others.values()
            replaceable = self._own is not None and self._own.bpe_model == name
            if not replaceable or any(manifest.bpe_model == name for manifest in users):
                raise UserError(
                    f"{there} is there already and is another file than {given}: give that one, or "
                    "move it away if nothing needs it"
                )
        return name

    def label_tables(self, fields: Collection[str]) -> dict[str, LabelTable]:
        """Open the tables of labels, by field.

        Labels that something in the data directory goes by keep their numbers. Where that is another
        language, new labels come after them. Where it is other splits of this language, new ones are
        unknown, as new words of a test set are: a model has as many embeddings as its training data
        have labels.

        Args:
            fields: the fields that are written.

        Raises:
            UserError: a dictionary is missing or malformed.
        """
        tables = {}
        for name, file in LABEL_FILES.items():
            if name in fields:
                in_use = bool(self.staying) or any(
                    name in manifest.fields for manifest in self._others.values()
                )
                known = load_dictionary(self._directory / file) if in_use else None
                tables[name] = LabelTable(known, may_grow=not self.staying)
        return tables
