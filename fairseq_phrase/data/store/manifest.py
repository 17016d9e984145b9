"""The manifest of a data directory. It records the text that the parses belong to."""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from fairseq_phrase.data.store.dictionaries import begins_with, number_of_labels, read_labels
from fairseq_phrase.data.store.identity import (
    Entry,
    Identity,
    dictionary_entry,
    numbered_entry,
    parser_entry,
)
from fairseq_phrase.data.store.layout import PREPROCESS, rerun, with_labels
from fairseq_phrase.errors import UserError
from fairseq_phrase.option_values import PARSERS, WHOLE_WORDS
from fairseq_phrase.parsers import resolve
from fairseq_phrase.syntax.fields import FIELDS
from fairseq_phrase.text import digest_of, read_json

if TYPE_CHECKING:
    from fairseq_phrase.parsers.pipeline import ParsingPipeline

FORMAT_VERSION = 2
#: The fields of a manifest that its identity leaves out, with the reasons. All others are compared.
FREE_FIELDS = {
    "language": "data_identity has it",
    "parser_stamp": "dates of the files whose content parser_digest has",
    "fields": "a model names those that it needs (Manifest.require)",
    "bpe_model": "a file's name; bpe_digest has its content",
    "target_model": "a file's name; target_digest has its content",
    "characters": "the subword model has them, and bpe_digest its content",
    "dictionary": "data_identity has its symbols",
    "splits": "text to train on or to translate; ParseStore checks that it is unchanged",
    "allowed": "the record has it next to its entries",
    "part": "which text to train on; check_parts compares the parts of a training",
    "made_by": "the command that messages name",
    "format": "checked when the manifest is loaded",
}
# The fields whose entries have other names or forms.
_NAMED = {
    "parser", "parser_version", "parser_digest", "constituents", "tokenized", "bpe", "whole_lines",
    "protected", "bpe_digest", "target_bpe", "target_digest", "labels", "labelling",
}  # fmt: skip
_BLOCKS, BLOCK_BYTES = 64, 1 << 16


def fingerprint(path: str | os.PathLike[str]) -> str:
    """Hash a file's size and up to 4 MiB of its content, in evenly spaced blocks.

    Text that was binarized again differs in nearly every block. So the fingerprint detects new text in
    constant time for a corpus of any size.
    """
    size = os.path.getsize(path)
    digest = hashlib.blake2b(str(size).encode(), digest_size=16)
    with open(path, "rb") as stream:
        if size <= _BLOCKS * BLOCK_BYTES:
            digest.update(stream.read())
        else:
            for block in range(_BLOCKS):
                stream.seek(block * (size - BLOCK_BYTES) // (_BLOCKS - 1))
                digest.update(stream.read(BLOCK_BYTES))
    return digest.hexdigest()


def parser_entries(parser: str, version: str, digest: str, constituents: str) -> dict[str, Entry]:
    """Return the entries of the parser and its settings.

    Args:
        parser: the argument of ``--parser``. The part after the colon is left out if version and weights
            describe it: for this project's parsers, and for a folder, which differs between machines.
        digest: the digest of its weights; empty without weights.
        constituents: one of :data:`fairseq_phrase.option_values.CONSTITUENTS`; ``none`` has no entry,
            because a model that reads constituents cannot be used without them.
    """
    name, _, argument = parser.partition(":")
    if name not in PARSERS and not (digest and Path(argument).is_absolute()):
        name = parser.removesuffix(":")
    entries = {
        "parser": parser_entry(version, digest),
        "parser-name": Entry(name, name, "parser"),
    }
    if constituents != "none":
        entries["constituents"] = Entry(constituents, constituents, "parser")
    return entries


def pipeline_entries(pipeline: ParsingPipeline, digest: str | None = None) -> dict[str, Entry]:
    """Return the entries of the settings on which a pipeline's parses depend.

    Args:
        digest: the digest of the parser's weights, if known; the weights are then not read.
    """
    parser, name = pipeline.parser, resolve(pipeline.options.parser)
    digest = parser.digest if digest is None else digest
    return parser_entries(name, parser.version, digest, pipeline.constituents)


def model_entry(file: str | Path, digest: str, part: str = "text") -> Entry:
    """Return the entry of a subword model."""
    return Entry(digest, f"{file} ({digest[:6]})", part)


def _check_types(record: Any) -> None:
    """Check the types of a record's fields and of what lists and mappings hold, which JSON does not."""
    for name, kind in get_type_hints(type(record)).items():
        value, types = getattr(record, name), get_args(kind)
        fits = type(value) is (get_origin(kind) or kind)
        if fits and types:
            items = value.items() if isinstance(value, dict) else [(item,) for item in value]
            pairs = [pair for item in items for pair in zip(item, types, strict=True)]
            fits = all(of is Any or type(part) is of for part, of in pairs)
        if not fits:
            raise ValueError(f"its {name} is {value!r:.100}")


class LineRanges:
    """Ascending numbers of lines, from 1, as text: ``3,17,553-560``.

    Args:
        text: the numbers.

    Raises:
        ValueError: the text is malformed.
    """

    def __init__(self, text: str = ""):
        self._ranges: list[tuple[int, int]] = []
        for part in filter(None, text.split(",")):
            first, _, last = part.partition("-")
            self._ranges.append((int(first), int(last or first)))

    def __str__(self) -> str:
        return ",".join(f"{a}-{b}" if a < b else str(a) for a, b in self._ranges)

    @classmethod
    def united(cls, texts: Iterable[str]) -> LineRanges:
        """Join disjoint sets of numbers."""
        union = cls()
        union._ranges = sorted(line_range for text in texts for line_range in cls(text)._ranges)
        return union

    def append(self, line: int) -> None:
        """Add a line after the last one."""
        if self._ranges and self._ranges[-1][1] == line - 1:
            self._ranges[-1] = self._ranges[-1][0], line
        else:
            self._ranges.append((line, line))

    def number_outside(self, index: int) -> int:
        """Return the number of a line by its index, from 0, among the lines outside the ranges."""
        line = index + 1
        for first, last in self._ranges:
            if first > line:
                break
            line += last - first + 1
        return line

    def index_outside(self, line: int) -> int | None:
        """Return the index of a line among the lines outside the ranges; None if it is in a range."""
        index = line - 1
        for first, last in self._ranges:
            if first > line:
                break
            if line <= last:
                return None
            index -= last - first + 1
        return index


@dataclass
class SplitRecord:
    """The manifest's record of one split, such as ``train.de-en``.

    Attributes:
        subwords: total number of subwords, without end-of-sentence tokens.
        checksums: fingerprints of the split's files, including the text, by file name.
        unparsed_skipped: number of sentence pairs left out because a line lacks a parse.
        unparsed_flat: number of sentences with flat trees because they lack a parse.
        unknown_labels: number of labels of words or sentences that the training data lack.
        changed: the number of lines whose subwords spell another text, by language.
        left_out: the numbers of the left-out lines of the text (:class:`LineRanges`), by reason:
            ``empty``, ``too_long`` or ``skipped`` (without a parse).
        parser_version: the version of the parser, if it differs from the manifest's version.
        lines_before: the number of the text's lines that belong to earlier parts (``--parts``).
    """

    sentences: int
    words: int
    subwords: int
    checksums: dict[str, str]
    unparsed_skipped: int = 0
    unparsed_flat: int = 0
    unknown_labels: int = 0
    parser_version: str = ""
    changed: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    lines_before: int = 0

    def _outside(self) -> LineRanges:
        """Return the numbers of the lines that have no sentence here, up to the last one that has."""
        before = f"1-{self.lines_before}" if self.lines_before else ""
        return LineRanges.united([before, *self.left_out.values()])

    def line_of(self, index: int) -> int:
        """Return the number of a sentence's line in the text, from 1, by its index from 0."""
        return self._outside().number_outside(index)

    def index_of(self, line: int) -> int | None:
        """Return the index of a line's sentence, from 0; None if the line was left out.

        Args:
            line: its number in the text, from 1.
        """
        return self._outside().index_outside(line)


@dataclass
class Manifest:
    """The content of ``syntax.LANG.json``.

    Attributes:
        parser: the argument of ``--parser`` that made the parses (``spacy:de_core_news_sm``).
        fields: the names in :data:`FIELDS` that the parses have.
        constituents: the source of the constituents: ``parser``, ``from-dependencies`` or ``none``.
        tokenized: whether the text was split into words at white space and not by the parser.
        bpe: the segmentation of words into subwords, ``sentencepiece``, ``subword_nmt`` or ``none``.
        bpe_model: the subword model's file name in the data directory; empty if it is not known.
        bpe_digest: SHA-256 of the subword model; empty without one.
        target_bpe: the segmentation of the pair's other language; empty if it is ``bpe``.
        target_model: the file name of its subword model, if it is not ``bpe_model``; empty if it is, or
            if unknown.
        target_digest: SHA-256 of ``target_model``.
        characters: normal form, character coverage and byte fallback of the SentencePiece model, if it
            was trained with the data.
        protected: tokens that are not segmented and not parsed.
        parser_digest: digest of the parser's weights; empty for a parser without weights.
        parser_stamp: sizes and dates of their files; the files are only read if these change.
        dictionary: fingerprint of the language's fairseq dictionary.
        whole_lines: whether SentencePiece segmented whole lines, and words were then found by their
            characters (``fairseq-phrase-attach``). Otherwise each word was segmented separately.
        labels: fingerprints of the label dictionaries, by field
            (:func:`fairseq_phrase.data.store.dictionaries.labels_fingerprint`).
        labelling: the units that the target labels, in :data:`fairseq_phrase.option_values.LABELLED`;
            empty for a translation.
        allowed: differences that ``--allow-difference`` allowed.
        part: with ``--parts``, which part of the training text this is: its ``number`` from 1, ``of`` how
            many, a digest of the ``text``, and a digest of the ``run``: of text and options. Else empty.
    """

    language: str
    parser: str
    parser_version: str
    fields: list[str]
    constituents: str
    tokenized: bool
    bpe: str
    bpe_model: str
    dictionary: str
    bpe_digest: str = ""
    target_bpe: str = ""
    target_model: str = ""
    target_digest: str = ""
    characters: dict[str, Any] = field(default_factory=dict)
    protected: list[str] = field(default_factory=list)
    parser_digest: str = ""
    parser_stamp: str = ""
    whole_lines: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    labelling: str = ""
    splits: dict[str, SplitRecord] = field(default_factory=dict)
    allowed: list[str] = field(default_factory=list)
    part: dict[str, str] = field(default_factory=dict)
    made_by: str = PREPROCESS
    format: int = FORMAT_VERSION

    @staticmethod
    def path(directory: str | os.PathLike[str], language: str) -> Path:
        """Return the path of a data directory's manifest."""
        return Path(directory) / f"syntax.{language}.json"

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the manifest into a data directory."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        self.path(directory, self.language).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, directory: str | os.PathLike[str], language: str) -> Manifest:
        """Read the manifest of a data directory.

        Raises:
            UserError: the manifest is missing, has another version or is damaged.
        """
        path = cls.path(directory, language)
        try:
            content = read_json(path.read_text(encoding="utf-8"))
            if content["format"] != FORMAT_VERSION:
                raise UserError(
                    f"{path} has format {content['format']}, but this version reads "
                    f"{FORMAT_VERSION}: {rerun(directory)}"
                )
            splits = {name: SplitRecord(**record) for name, record in content["splits"].items()}
            manifest = cls(**{**content, "splits": splits})
            for record in (manifest, *splits.values()):
                _check_types(record)
            if manifest.language != language:
                raise ValueError(f"it is of the language {manifest.language}")
            if unknown := sorted(set(manifest.fields) - set(FIELDS)):
                raise UserError(
                    f"{path} has the parse field {', '.join(unknown)}, which belongs to a package that "
                    "is not installed or cannot be imported: install it"
                )
            if not set(manifest.labels) <= set(with_labels(manifest.fields)):
                raise ValueError(f"labels of {', '.join(manifest.labels)}")
            deque(map(number_of_labels, manifest.labels.values()), maxlen=0)
            if manifest.part and set(manifest.part) != {"number", "of", "text", "run"}:
                raise ValueError(f"a part with {', '.join(manifest.part)}")
            for name in (manifest.bpe_model, manifest.target_model):
                if Path(name).name != name:
                    raise ValueError(f"the subword model {name} is not a file of this folder")
            return manifest
        except FileNotFoundError:
            raise UserError(
                f"{path} is missing: {directory} has no parses of '{language}'. Make them with "
                f"fairseq-phrase-preprocess --source-lang {language} --parser spacy:MODEL "
                f"--destdir {directory} … or, for text that is already binarized, with "
                "fairseq-phrase-attach (see their --help)"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is damaged ({error}): {rerun(directory)}") from None

    def require(
        self, fields: set[str], directory: str | os.PathLike[str], needer: str = "this model"
    ) -> None:
        """Check that the parses have the fields that a model, or an option, needs.

        Raises:
            UserError: a field is missing, for example heads if no parser was used; or the name of a
                field is unknown.
        """
        if unknown := sorted(fields - set(FIELDS)):
            raise UserError(
                f"this model asks for the parse fields {', '.join(unknown)}, which do not exist: "
                f"expected some of {', '.join(FIELDS)}"
            )
        missing = sorted(fields - set(self.fields))
        if missing:
            raise UserError(
                f"{directory} was made with --parser {self.parser} and has no "
                f"{', '.join(missing)} for '{self.language}', which {needer} needs: "
                f"{rerun(directory)} with {FIELDS[missing[0]].made_by}"
            )

    def identity(self, where: str | Path = "this run") -> Identity:
        """Return the record of segmentation, parsing and numbering, without :data:`FREE_FIELDS`."""
        unit = "whole lines" if self.whole_lines else "words"
        unit = f"{self.bpe} of {'tokenized ' if self.tokenized else ''}{unit}"
        if self.protected:
            unit += f" but {' '.join(self.protected)}"
        entries = {
            "segmenter": Entry(unit, unit, "text"),
            **parser_entries(
                self.parser, self.parser_version, self.parser_digest, self.constituents
            ),
        }
        if self.bpe_digest:
            entries["subword-model"] = model_entry(self.bpe_model, self.bpe_digest)
        if self.target_bpe not in ("", self.bpe):
            entries["target-segmenter"] = Entry(self.target_bpe, self.target_bpe, "target-text")
        if self.target_digest:
            entries["target-subword-model"] = model_entry(
                self.target_model, self.target_digest, "target-text"
            )
        if self.labelling:
            entries["labels"] = Entry(self.labelling, self.labelling, "labelled")
        for name, file in with_labels(self.labels).items():
            entries[f"{name}-labels"] = numbered_entry(self.labels[name], file, "labels")
        for setting in fields(self):
            if setting.name not in FREE_FIELDS and setting.name not in _NAMED:
                make = setting.default_factory
                default = str(setting.default if make is MISSING else make())
                value = str(vars(self)[setting.name])
                entries[setting.name.replace("_", "-")] = Entry(
                    value, value, "data", default=default
                )
        return Identity(entries, tuple(self.allowed), where=where)

    def subword_model_of(self, language: str) -> Entry | None:
        """Return the entry of the segmentation of one of the pair's languages; None if unknown."""
        bpe, file, digest, part = self.bpe, self.bpe_model, self.bpe_digest, "text"
        if language != self.language and self.target_bpe not in ("", bpe):
            bpe, file, digest = self.target_bpe, self.target_model, self.target_digest
            part = "target-text"
        if bpe == WHOLE_WORDS:
            return Entry(bpe, f"--bpe {bpe}", part)
        return model_entry(file, digest, part) if digest else None

    def labels_of(self, field_name: str, directory: str | os.PathLike[str]) -> list[str]:
        """Read a field's labels in the order of their numbers, as many as these parses use.

        Raises:
            UserError: the parses lack the field; or the dictionary is missing or is not the dictionary
                of these parses.
        """
        self.require({field_name}, directory)
        path = Path(directory) / with_labels([field_name])[field_name]
        labels = read_labels(path)
        expected = self.labels[field_name]
        if not begins_with(labels, expected):
            raise UserError(
                f"{path} is not the dictionary that numbered the {field_name} of '{self.language}': "
                f"put the old one back, or {rerun(directory)}"
            )
        return labels[: number_of_labels(expected)]


def languages_in(directory: str | os.PathLike[str]) -> list[str]:
    """Return the languages whose parses a data directory has."""
    names = (path.name for path in Path(directory).glob("syntax.*.json"))
    return sorted(name.removeprefix("syntax.").removesuffix(".json") for name in names)


def data_identity(
    directory: str | os.PathLike[str],
    source: str,
    target: str | None = None,
    labels: Collection[str] | None = None,
) -> Identity:
    """Return the record of a data directory.

    Args:
        source: the source language, whose manifest is read if it exists.
        target: the target language; None for text of one language.
        labels: the entries of labels to leave in; None for all.

    Raises:
        UserError: a file is damaged, or the subword model is not the model that segmented the text.
    """
    entries: dict[str, Entry] = {}
    for side, language in (("source", source), ("target", target)):
        if language is None:
            continue
        entries[f"{side}-language"] = Entry(language, language, "languages")
        dictionary = Path(directory) / f"dict.{language}.txt"
        if dictionary.is_file():
            entries[f"{side}-dictionary"] = dictionary_entry(dictionary, side)
    if Manifest.path(directory, source).is_file():
        manifest = Manifest.load(directory, source)
        models = {
            manifest.bpe_model: manifest.bpe_digest,
            manifest.target_model: manifest.target_digest,
        }
        for name, digest in models.items():
            model = Path(directory) / name
            if digest and model.is_file() and digest_of(model) != digest:
                raise UserError(
                    f"{model} is not the subword model that split the text of {directory}: put the old "
                    f"one back, or {rerun(directory)}"
                )
        for name, entry in manifest.identity().entries.items():
            if entry.part != "labels" or labels is None or name in labels:
                entries[name] = entry
        return Identity(entries, tuple(manifest.allowed), where=str(directory))
    if target is not None and Manifest.path(directory, target).is_file():
        # The source is not parsed, but the target's manifest has its segmentation.
        entry_of_model = Manifest.load(directory, target).subword_model_of(source)
        if entry_of_model is not None and entry_of_model.value != WHOLE_WORDS:
            entries["subword-model"] = replace(entry_of_model, part="text")
    return Identity(entries, where=str(directory))
