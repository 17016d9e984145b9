"""The manifest of a data directory. It records which text the parses belong to."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import deque
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

from fairseq_phrase.errors import UserError
from fairseq_phrase.store.fields import FIELDS, with_labels
from fairseq_phrase.store.labels import (
    begins_with,
    labels_fingerprint,
    number_of_labels,
    read_labels,
)
from fairseq_phrase.store.remedy import PREPROCESS, rerun

logger = logging.getLogger(__name__)
FORMAT_VERSION = 2
_BLOCKS, _BLOCK_BYTES = 64, 1 << 18


def fingerprint(path: str | os.PathLike) -> str:
    """Hash a file's size and up to 16 MiB of its content, in evenly spaced blocks.

    Text that was binarized again differs in nearly every block. So the fingerprint detects new text in
    constant time for a corpus of any size.
    """
    size = os.path.getsize(path)
    digest = hashlib.blake2b(str(size).encode(), digest_size=16)
    with open(path, "rb") as stream:
        if size <= _BLOCKS * _BLOCK_BYTES:
            digest.update(stream.read())
        else:
            for block in range(_BLOCKS):
                stream.seek(block * (size - _BLOCK_BYTES) // (_BLOCKS - 1))
                digest.update(stream.read(_BLOCK_BYTES))
    return digest.hexdigest()


@lru_cache(maxsize=64)
def _warn_once(message: str) -> None:
    """Warn once, even if a tokenizer and a parser give the same warning."""
    logger.warning(message)


@dataclass
class SplitRecord:
    """The manifest's record of one split, such as ``train.de-en``.

    Attributes:
        sentences: number of sentences.
        words: total number of words.
        subwords: total number of subwords, without end-of-sentence tokens.
        checksums: fingerprints of the split's files, including the text, by file name.
        unparsed_skipped: sentence pairs left out because a line has no parse.
        unparsed_flat: sentences that have flat trees because they have no parse.
        unknown_labels: labels of words or sentences that training does not have.
        parser_version: the version of the parser that made them, if it differs from the manifest's.
    """

    sentences: int
    words: int
    subwords: int
    checksums: dict[str, str]
    unparsed_skipped: int = 0
    unparsed_flat: int = 0
    unknown_labels: int = 0
    parser_version: str = ""


@dataclass
class Manifest:
    """The content of ``syntax.LANG.json``.

    Attributes:
        language: the parsed language.
        parser: the argument of ``--parser`` that made the parses (``spacy:de_core_news_sm``).
        parser_version: the parser's name and version.
        fields: which of :data:`FIELDS` the parses have.
        constituents: the source of the constituents: ``parser``, ``from-dependencies`` or ``none``.
        tokenized: whether the text was cut into words at white space and not by the parser.
        bpe: how words were cut into subwords, ``sentencepiece``, ``subword_nmt`` or ``none``.
        bpe_model: the subword model's file name in the data directory; empty if it is not known.
        dictionary: fingerprint of the language's fairseq dictionary.
        whole_lines: whether SentencePiece cut whole lines, and words were then found by their characters
            (``fairseq-phrase-attach``). Otherwise each word was cut separately.
        labels: fingerprints of the label dictionaries, by field
            (:func:`fairseq_phrase.store.labels.labels_fingerprint`). Empty if an earlier version wrote
            the manifest.
        labelling: what the target side labels, one of :data:`fairseq_phrase.choices.LABELLED`; empty for
            a translation.
        splits: the splits, by names such as ``train.de-en``.
        made_by: the command that made the parses.
        format: the version of this format.
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
    whole_lines: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    labelling: str = ""
    splits: dict[str, SplitRecord] = field(default_factory=dict)
    made_by: str = PREPROCESS
    format: int = FORMAT_VERSION

    @staticmethod
    def path(directory: str | os.PathLike, language: str) -> Path:
        """Return the path of a data directory's manifest."""
        return Path(directory) / f"syntax.{language}.json"

    def save(self, directory: str | os.PathLike) -> None:
        """Write the manifest into a data directory."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        self.path(directory, self.language).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, directory: str | os.PathLike, language: str) -> Manifest:
        """Read the manifest of a data directory.

        Raises:
            UserError: the manifest is missing, has another version or is damaged.
        """
        path = cls.path(directory, language)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != FORMAT_VERSION:
                raise UserError(
                    f"{path} has format {content['format']}, but this version reads "
                    f"{FORMAT_VERSION}: {rerun(directory)}"
                )
            splits = {name: SplitRecord(**record) for name, record in content["splits"].items()}
            manifest = cls(**{**content, "splits": splits})
            if not set(manifest.fields) <= set(FIELDS):
                raise ValueError(f"unknown fields {manifest.fields}")
            if not set(manifest.labels) <= set(with_labels(manifest.fields)):
                raise ValueError(f"labels of {', '.join(manifest.labels)}")
            deque(map(number_of_labels, manifest.labels.values()), maxlen=0)
            if Path(manifest.bpe_model).name != manifest.bpe_model:
                raise ValueError(f"bpe_model {manifest.bpe_model} is not a file of this folder")
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

    def require(self, fields: set[str], directory: str | os.PathLike) -> None:
        """Check that the parses have the fields that a model needs.

        Raises:
            UserError: a field is missing, for example heads if no parser was used; or there is no
                field of this name.
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
                f"{', '.join(missing)} for '{self.language}', which this model needs: "
                f"{rerun(directory)} with {FIELDS[missing[0]].made_by}"
            )

    def check_parser(
        self, version: str, directory: str | os.PathLike, *, strict: bool, option: str
    ) -> None:
        """Warn if new text is parsed by another parser than the parser of these parses.

        Args:
            version: the parser of the new text, with its version.
            directory: the data directory.
            strict: raise an error instead of the warning.
            option: the option that sets ``strict``, for the message.

        Raises:
            UserError: the parsers differ and ``strict`` is set.
        """
        if version == self.parser_version:
            return
        found = (
            f"{self.path(directory, self.language)} says that {self.parser_version} made its parses, "
            f"and this run parses with {version}, whose parses may differ"
        )
        if strict:
            raise UserError(f"{found}: install the former, or leave {option} out")
        _warn_once(f"{found} ({option} refuses this)")

    def labels_of(self, field_name: str, directory: str | os.PathLike) -> list[str]:
        """Read a field's labels in the order of their numbers, as many as these parses use.

        Raises:
            UserError: the dictionary is missing, or is not the one that the parses were made with.
        """
        path = Path(directory) / with_labels([field_name])[field_name]
        labels = read_labels(path)
        expected = self.labels.get(field_name)
        if expected is None:
            return labels
        if not begins_with(labels, expected):
            raise UserError(
                f"{path} is not the dictionary that numbered the {field_name} of '{self.language}': "
                f"put the old one back, or {rerun(directory)}"
            )
        return labels[: number_of_labels(expected)]

    def labels_fingerprint_of(self, field_name: str, directory: str | os.PathLike) -> str:
        """Return the fingerprint of a field's labels.

        Raises:
            UserError: see :meth:`labels_of`.
        """
        return labels_fingerprint(self.labels_of(field_name, directory))
