"""Parses and label dictionaries of earlier runs in the data directory that a run adds to."""

from __future__ import annotations

import filecmp
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path

from fairseq.data import Dictionary

from fairseq_phrase.data.preprocessing.dictionaries import LabelTable, given_labels, load_labels
from fairseq_phrase.data.preprocessing.options import Options
from fairseq_phrase.data.store.dictionaries import begins_with, number_of_labels
from fairseq_phrase.data.store.layout import with_labels
from fairseq_phrase.data.store.manifest import Manifest, SplitRecord, languages_in
from fairseq_phrase.data.subwords.protected_tokens import JOINER
from fairseq_phrase.data.subwords.segmenters import model_name
from fairseq_phrase.errors import UserError

#: Manifest fields in which a run may differ from the splits that stay, and the reasons.
APART = {
    "language": "each language has its manifest",
    **dict.fromkeys(
        ("parser_version", "parser_digest", "parser_stamp"), "another version is a warning"
    ),
    **dict.fromkeys(("bpe_model", "bpe_digest"), "compared by name_model"),
    **dict.fromkeys(
        ("labelling", "target_bpe", "target_model", "target_digest", "part"),
        "kept, because the target is not attached to",
    ),
    "labels": "numbered by label_tables",
    "splits": "those that stay are kept",
    "allowed": "kept",
    "made_by": "the last command",
    "format": "checked when a manifest is loaded",
}


class EarlierParses:
    """The parses of a data directory, and the splits that stay.

    Args:
        made: the splits that this run makes, with their language pair, ``train.de-en``.

    Attributes:
        staying: the splits of this language that this run does not make.

    Raises:
        UserError: a manifest is damaged.
    """

    def __init__(self, directory: Path, language: str, made: Collection[str]):
        self._directory, self._language = directory, language
        manifests = {name: Manifest.load(directory, name) for name in languages_in(directory)}
        self._own = manifests.pop(language, None)
        self._others = manifests
        self.staying: dict[str, SplitRecord] = {}
        if self._own is not None:
            records = self._own.splits.items()
            self.staying = {name: record for name, record in records if name not in made}

    def check(self, manifest: Manifest, options: Options) -> None:
        """Check that the splits that stay and the new splits can share one manifest.

        The settings of the target's segmentation and labels stay. If only the parser's version differs,
        this is a warning. The manifest keeps the version of the splits that stay, and each new split
        records its parser version.

        Raises:
            UserError: the splits were made with different settings.
        """
        if self._own is None:
            return
        for name in ("labelling", "target_bpe", "target_model", "target_digest", "part"):
            setattr(manifest, name, vars(self._own)[name])
        if not self.staying:
            return
        if set(self._own.protected) == set(manifest.protected):
            manifest.protected = self._own.protected  # in this order
        # The fields of the parses follow from other options, which the message names instead.
        for field in sorted(fields(Manifest), key=lambda field: field.name == "fields"):
            earlier, now = vars(self._own)[field.name], vars(manifest)[field.name]
            if field.name not in APART and earlier != now:
                name = "--protected-tokens" if field.name == "protected" else field.name
                raise UserError(
                    f"{self._directory} has parses of {', '.join(sorted(self.staying))}, made with "
                    f"{name.replace('_', ' ')} {_text(earlier)}, and this run has {_text(now)}: "
                    "name these splits too, to replace them, or run with the same"
                )
        earlier = self._own.identity(self._directory).only("parser")
        options.check(earlier, manifest.identity().only("parser"))
        manifest.parser_version = self._own.parser_version
        manifest.parser_digest = self._own.parser_digest
        manifest.parser_stamp = self._own.parser_stamp

    def check_tokens(self, protected: Collection[str], dictionary: Dictionary) -> None:
        """Check that tokens which are protected in another language are also protected here.

        Args:
            dictionary: the dictionary of the parsed language; tokens that it lacks are not in the text.

        Raises:
            UserError: a token is not protected here.
        """
        for language, other_manifest in self._others.items():
            tokens = [token for token in other_manifest.protected if token in dictionary]
            if not set(tokens) <= set(protected):
                raise UserError(
                    f"{self._directory} has parses of {language}, made with --protected-tokens "
                    f"{_text(tokens)}, which dict.{self._language}.txt has, too, and this run has "
                    f"{_text(list(protected))}: give the same"
                )

    def name_model(self, manifest: Manifest, given: Path | None) -> None:
        """Name the data directory's subword model in the manifest.

        Args:
            given: the model to be copied there, if any; without a model, the earlier one stays.

        Raises:
            UserError: another file has the model's name there.
        """
        if given is None:
            if self._own is not None and self._own.bpe == manifest.bpe:
                manifest.bpe_model, manifest.bpe_digest = self._own.bpe_model, self._own.bpe_digest
            return
        name = manifest.bpe_model = model_name(manifest.bpe)
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

    def label_tables(
        self, fields: Collection[str], labeldict: Path | None = None
    ) -> dict[str, LabelTable]:
        """Open the tables of labels, by field.

        Labels that parses in the data directory use keep their numbers. If only another language's
        parses use them, new labels are appended. If other splits of this language use them, new labels
        are unknown, like new words of a test set: a model has as many embeddings as its training data
        have labels. Labels that ``labeldict`` lacks are also unknown.

        Raises:
            UserError: a dictionary is missing or malformed, or ``labeldict`` numbers labels differently
                from the labels in use.
        """
        dictionaries = given_labels(labeldict, fields, [self._language], all_of_them=True)
        tables = {}
        for name, file in with_labels(fields).items():
            in_use = self._in_use(name)
            if labeldict is not None:
                labels = dictionaries[name].symbols[dictionaries[name].nspecial :]
                if any(not begins_with(labels, fingerprint) for fingerprint in in_use.values()):
                    raise UserError(
                        f"{labeldict / file} numbers labels differently from {self._directory / file}, "
                        f"which the parses of {', '.join(sorted(in_use))} use: remove --labeldict, "
                        "or name the directory that those were made with"
                    )
            dictionary = dictionaries.get(name)
            if dictionary is None and in_use:
                labels_fingerprint = (
                    self._own.labels.get(name) if self.staying and self._own else None
                )
                count = None if labels_fingerprint is None else number_of_labels(labels_fingerprint)
                dictionary = load_labels(self._directory / file, count)
            may_grow = labeldict is None and not self.staying
            tables[name] = LabelTable(dictionary, may_grow=may_grow)
        return tables

    def _in_use(self, name: str) -> dict[str, str]:
        """Return the fingerprints of a field's labels, by the parses that use the labels."""
        own_splits = (
            {} if self._own is None or not self.staying else {", ".join(self.staying): self._own}
        )
        return {
            who: manifest.labels[name]
            for who, manifest in (own_splits | self._others).items()
            if name in manifest.fields
        }


def _text(value: object) -> str:
    if isinstance(value, list):
        value = ",".join(token for token in value if token != JOINER)  # which options do not name
    return str(value) or "none"
