"""Parses on disk, beside fairseq's own binarized text.

A data directory holds, for each split ``train.de-en`` and parsed language ``de``, the files
``train.de-en.de.{words,heads,deprels,tags,spans}.bin`` with their ``.idx`` and, for all splits, the
manifest ``syntax.de.json``, which ties them to the very text they belong to. What holds one value per
word shares one index, that of the first (``heads.idx``), because an index takes as many bytes as a
short sentence's values.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from fairseq_phrase.errors import UserError
from fairseq_phrase.syntax.indexed import IndexedReader

FORMAT_VERSION = 2
#: What a parse is made of, in the order of the files: per subword the index of its word; per word
#: the index of its head, its relation and its tag, as ``dict.{deprel,tag}.txt`` number them; per
#: constituent its first word, one past its last and its label, as ``dict.constituent.txt`` does.
FIELDS = ("words", "heads", "deprels", "tags", "spans")
_PER_WORD = ("heads", "deprels", "tags")
#: The dictionaries of the labels, by field.
LABEL_FILES = {
    "deprels": "dict.deprel.txt",
    "tags": "dict.tag.txt",
    "spans": "dict.constituent.txt",
}
_REMEDIES = {
    "words": "any --parser",
    "heads": "a dependency parser (--parser spacy:MODEL, stanza:LANG or conllu)",
    "deprels": "a dependency parser (--parser spacy:MODEL, stanza:LANG or conllu)",
    "tags": "a parser that tags (--parser spacy:MODEL, stanza:LANG, conllu or ptb)",
    "spans": "a constituency parser (--parser stanza:LANG or ptb), or a dependency parser and "
    "--constituents from-dependencies",
}
_BLOCKS, _BLOCK_BYTES = 64, 1 << 18


def shared_index(field_name: str, fields: Collection[str]) -> str | None:
    """Name the field whose ``.idx`` file a field is read by; None where it has its own.

    Args:
        field_name: one of :data:`FIELDS`.
        fields: all that are in the data directory.
    """
    first = next((name for name in _PER_WORD if name in fields), None)
    return first if field_name in _PER_WORD and field_name != first else None


def fingerprint(path: str | os.PathLike) -> str:
    """Hash a file's size and up to 16 MiB of it, in blocks spread evenly.

    Text that was binarized anew differs in nearly every block, so this tells it from the old in
    constant time, however large the corpus.
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


@dataclass
class SplitRecord:
    """What the manifest says of one split, by names such as ``train.de-en``.

    Attributes:
        sentences: number of sentences.
        words: number of words in all.
        subwords: number of subwords in all, end-of-sentence tokens left out.
        checksums: fingerprints of the split's files, the text's own included, by file name.
        unparsed_skipped: sentence pairs left out because a line has no parse.
        unparsed_flat: sentences that have flat trees because they have no parse.
    """

    sentences: int
    words: int
    subwords: int
    checksums: dict[str, str]
    unparsed_skipped: int = 0
    unparsed_flat: int = 0


@dataclass
class Manifest:
    """What ``syntax.LANG.json`` says.

    Attributes:
        language: the parsed language.
        parser: how the parses were made, as ``--parser`` names it (``spacy:de_core_news_sm``).
        parser_version: the parser's own name and version.
        fields: which of :data:`FIELDS` are there.
        constituents: where the constituents are from: ``parser``, ``from-dependencies`` or ``none``.
        tokenized: whether the text was cut into words at white space, not by the parser.
        bpe: how words were cut into subwords, ``sentencepiece`` or ``subword_nmt``.
        bpe_model: the subword model's file name in the data directory; empty where it is not known.
        dictionary: fingerprint of the language's fairseq dictionary.
        whole_lines: whether SentencePiece cut whole lines, in which words were then found by their
            characters (``fairseq-phrase-attach``); otherwise each word was cut on its own.
        splits: the splits, by names such as ``train.de-en``.
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
    splits: dict[str, SplitRecord] = field(default_factory=dict)
    format: int = FORMAT_VERSION

    @staticmethod
    def path(directory: str | os.PathLike, language: str) -> Path:
        """Return where a data directory keeps its manifest."""
        return Path(directory) / f"syntax.{language}.json"

    def save(self, directory: str | os.PathLike) -> None:
        """Write the manifest into a data directory."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        self.path(directory, self.language).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, directory: str | os.PathLike, language: str) -> Manifest:
        """Read the manifest of a data directory.

        Raises:
            UserError: there is none, or it is of another version or damaged.
        """
        path = cls.path(directory, language)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != FORMAT_VERSION:
                raise UserError(
                    f"{path} is of format {content['format']}, this version reads "
                    f"{FORMAT_VERSION}: run fairseq-phrase-preprocess again"
                )
            splits = {name: SplitRecord(**record) for name, record in content["splits"].items()}
            manifest = cls(**{**content, "splits": splits})
            if not set(manifest.fields) <= set(FIELDS):
                raise ValueError(f"unknown fields {manifest.fields}")
            return manifest
        except FileNotFoundError:
            raise UserError(
                f"{path} is missing: {directory} holds no parses of '{language}'. Make them with "
                f"fairseq-phrase-preprocess --source-lang {language} --parser spacy:MODEL "
                f"--destdir {directory} … or, for text that is binarized already, with "
                "fairseq-phrase-attach (see their --help)"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path} is damaged ({error}): run fairseq-phrase-preprocess again"
            ) from None

    def require(self, fields: set[str], directory: str | os.PathLike) -> None:
        """Check that the parses hold what a model needs.

        Raises:
            UserError: a field is missing, for instance heads where there was no parser.
        """
        missing = sorted(fields - set(self.fields))
        if missing:
            raise UserError(
                f"{directory} was made with --parser {self.parser} and has no "
                f"{', '.join(missing)} for '{self.language}', which this model needs: run "
                f"fairseq-phrase-preprocess again with {_REMEDIES[missing[0]]}"
            )


class ParseStore:
    """The parses of one split, read from disk.

    Args:
        directory: the data directory.
        split: the split's name with its language pair, ``train.de-en``.
        language: the parsed language.
        fields: what to read, out of :data:`FIELDS`.

    Raises:
        UserError: the parses are missing or damaged, or belong to another text or dictionary.
    """

    def __init__(self, directory: str | os.PathLike, split: str, language: str, fields: set[str]):
        self.directory, self.split, self.language = Path(directory), split, language
        manifest = Manifest.load(directory, language)
        manifest.require(fields, directory)
        if split not in manifest.splits:
            raise UserError(
                f"{Manifest.path(directory, language)} knows no split {split}: run "
                "fairseq-phrase-preprocess or fairseq-phrase-attach for it"
            )
        self._check(manifest)
        prefix = f"{split}.{language}"
        self._readers = {}
        for name in FIELDS:
            if name in fields:
                index = shared_index(name, manifest.fields)
                self._readers[name] = IndexedReader(
                    self.directory / f"{prefix}.{name}",
                    self.directory / f"{prefix}.{index}" if index else None,
                )

    def _check(self, manifest: Manifest) -> None:
        dictionary = self.directory / f"dict.{self.language}.txt"
        if not dictionary.is_file():
            raise UserError(f"{dictionary} is missing: run fairseq-phrase-preprocess again")
        if fingerprint(dictionary) != manifest.dictionary:
            raise UserError(
                f"{dictionary} is not the dictionary that {self.split} was made with: put the old "
                "one back, or run fairseq-phrase-preprocess again"
            )
        for name, expected in manifest.splits[self.split].checksums.items():
            path = self.directory / name
            if not path.is_file():
                raise UserError(f"{path} is missing: run fairseq-phrase-preprocess again")
            if fingerprint(path) != expected:
                raise UserError(
                    f"{path}{self._first_difference()} has changed since the parses were made, so "
                    "they may not belong to it: run fairseq-phrase-preprocess again (or "
                    "fairseq-phrase-attach, if it made them)"
                )

    def _first_difference(self) -> str:
        """Name the first sentence whose text and parse differ in length, if there is one."""
        text = IndexedReader(self.directory / f"{self.split}.{self.language}").sizes
        words = IndexedReader(self.directory / f"{self.split}.{self.language}.words").sizes
        common = min(len(text), len(words))
        differing = np.flatnonzero(text[:common] != words[:common] + 1)
        if len(differing):
            return f", line {differing[0] + 1},"
        return f", line {common + 1}," if len(text) != len(words) else ""

    def __len__(self) -> int:
        """Return the number of sentences."""
        return len(next(iter(self._readers.values())))

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """Return one sentence's parse.

        Args:
            index: the sentence, from 0.

        Returns:
            By field: ``words`` (shape ``(subwords,)``, word indices from 0, the end-of-sentence
            token left out), ``heads`` (``(words,)``, word indices from 0, the root its own),
            ``deprels`` and ``tags`` (``(words,)``, numbers in their dictionaries), ``spans``
            (``(constituents, 3)``: first word, one past the last, number of the label; children before
            parents).
        """
        return {name: _shaped(name, reader[index]) for name, reader in self._readers.items()}

    def many(self, indices: np.ndarray) -> list[dict[str, np.ndarray]]:
        """Return the parses of several sentences as one read.

        Args:
            indices: the sentences, from 0, in any order.
                Shape: ``(sentences,)``

        Returns:
            Their parses, as :meth:`__getitem__` returns them.
        """
        parses: list[dict[str, np.ndarray]] = [{} for _ in indices]
        for name, reader in self._readers.items():
            for parse, values in zip(parses, reader.many(indices), strict=True):
                parse[name] = _shaped(name, values)
        return parses


def _shaped(name: str, values: np.ndarray) -> np.ndarray:
    return values.reshape(-1, 3) if name == "spans" else values
