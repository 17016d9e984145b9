"""Sentences of a data directory as text with trees, for display."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_phrase.data.store.dictionaries import load_dictionary
from fairseq_phrase.data.store.indexed import IndexedReader
from fairseq_phrase.data.store.layout import rerun, with_labels
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.errors import UserError
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.fields import FIELDS
from fairseq_phrase.syntax.sentence import Edge

# These characters join emoji and compose flags. They do not affect the text around them.
_HARMLESS_FORMATS = frozenset("\u200c\u200d") | frozenset(map(chr, range(0xE0020, 0xE0080)))
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
#: The dictionaries of a language's text and labels, by ``text`` and field.
Dictionaries = dict[str, Any]


def load_dictionaries(directory: Path, manifest: Manifest) -> Dictionaries:
    """Read the dictionaries of a language's text and labels.

    Raises:
        UserError: a dictionary is missing or damaged.
    """
    names = {"text": f"dict.{manifest.language}.txt", **with_labels(manifest.fields)}
    try:
        return {name: load_dictionary(directory / file) for name, file in names.items()}
    except UserError as error:
        raise UserError(f"{error}: {rerun(directory)}") from None


@dataclass(frozen=True)
class ParsedText:
    """A sentence's words and trees.

    Attributes:
        location: its file and line, ``train.de-en.de, line 7``.
        words: the words' texts, without the marks of subwords.
        space_before: whether white space precedes each word.
        subwords: the subwords of each word, without their marks; ``▁`` for a subword that is only a mark.
        heads: the head of each word; the root is its own head; None without dependency trees.
            Shape: ``(words,)``, word indices from 0.
        deprels: the relation of each word to its head; empty without dependency trees.
        tags: the part of speech of each word; empty without tags.
        constituents: the constituents; None without constituency trees.
        graphs: the edges of each graph, by field.
    """

    location: str
    words: list[str]
    space_before: list[bool]
    subwords: list[list[str]]
    heads: np.ndarray | None
    deprels: list[str]
    tags: list[str]
    constituents: ConstituencyTree | None
    graphs: dict[str, list[Edge]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The sentence."""
        parts = zip(self.words, self.space_before, strict=True)
        return "".join(f" {word}" if space else word for word, space in parts).strip()

    @property
    def summary(self) -> str:
        """The sentence's location and length."""
        subwords = sum(map(len, self.subwords))
        return f"{self.location}: {_count(len(self.words), 'word')}, {_count(subwords, 'subword')}"

    def segmented(self, word: int) -> str:
        """Return a word's subwords, ``Hun·d``; empty if the word is one subword."""
        return "·".join(self.subwords[word]) if len(self.subwords[word]) > 1 else ""


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    r"""Escape characters that control a terminal or a page.

    A data directory may be untrusted, and ``\x1b`` starts commands of a terminal.

    Returns:
        The text, with control characters, bidirectional marks, line separators and the like as
        ``\x1b`` or ``\u202e``.
    """
    return "".join(
        character.encode("unicode_escape", "surrogatepass").decode()
        if unicodedata.category(character) in _INVISIBLE and character not in _HARMLESS_FORMATS
        else character
        for character in text
    )


class ParsedTextReader:
    """Read sentences of one split with their trees.

    Args:
        split: the split's name with its language pair, ``train.de-en``.

    Raises:
        UserError: the parses are missing or damaged, or belong to another text.
    """

    def __init__(self, directory: Path, manifest: Manifest, split: str, dictionaries: Dictionaries):
        self._name = f"{split}.{manifest.language}"
        self._bpe, self._dictionaries = manifest.bpe, dictionaries
        self._record, self._protected = manifest.splits[split], frozenset(manifest.protected)
        self._store = ParseStore(directory, split, manifest.language, set(manifest.fields))
        self._text = IndexedReader(directory / self._name)

    def __len__(self) -> int:
        return len(self._store)

    def index_of(self, line: int) -> int:
        """Return the index of the sentence of a line of the text, from 1.

        Raises:
            UserError: the line does not exist, or was omitted.
        """
        index, before = self._record.index_of(line), self._record.lines_before
        if index is None and line > before:
            raise UserError(f"{self._name}: line {line} of the text was left out")
        if index is None or not 0 <= index < len(self):
            last = self._record.line_of(len(self) - 1)
            raise UserError(f"{self._name} has lines {before + 1} to {last}, not {line}")
        return index

    def read(self, index: int) -> ParsedText:
        """Read one sentence, by its index from 0.

        Raises:
            UserError: its record is invalid.
        """
        location = f"{self._name}, line {self._record.line_of(index)}"
        parse = self._store[index]
        tokens = self._text[index][:-1]
        try:
            return self._parsed_text(location, tokens, parse)
        except (ValueError, IndexError) as error:
            raise UserError(f"{location} is broken: {error}; --check names the file") from None

    def _parsed_text(
        self, location: str, tokens: np.ndarray, parse: dict[str, np.ndarray]
    ) -> ParsedText:
        symbols = [self._dictionaries["text"][token] for token in tokens.tolist()]
        pairs = zip(parse["words"].tolist(), symbols, strict=True)
        words = [
            [symbol for _, symbol in word]
            for number, word in groupby(pairs, key=lambda pair: pair[0])
            if number >= 0
        ]
        spelled = [self._spelled(subwords) for subwords in words]
        constituents = None
        if "spans" in parse:
            spans = parse["spans"]
            labels = self._labels("spans", spans[:, 2])
            constituents = ConstituencyTree(spans[:, :2], labels, len(words))
        return ParsedText(
            location,
            [self._text_of(subwords) for subwords, _ in spelled],
            [space for _, space in spelled],
            [subwords for subwords, _ in spelled],
            DependencyTree(parse["heads"]).heads if "heads" in parse else None,
            self._labels("deprels", parse["deprels"]) if "deprels" in parse else [],
            self._labels("tags", parse["tags"]) if "tags" in parse else [],
            constituents,
            {name: self._edges(name, parse[name], len(words)) for name in parse
             if FIELDS[name].per == "edge"},
        )  # fmt: skip

    def _edges(self, name: str, edges: np.ndarray, words: int) -> list[Edge]:
        if edges.size and not 0 <= edges[:, :2].min() <= edges[:, :2].max() < words:
            raise ValueError(f"an edge of {name} joins a word that is not there")
        labels = self._labels(name, edges[:, 2])
        return list(map(Edge, edges[:, 0].tolist(), edges[:, 1].tolist(), labels))

    def _text_of(self, subwords: list[str]) -> str:
        text = "".join(subword for subword in subwords if subword not in self._protected)
        return text.removeprefix("▁").replace("▁", " ")

    def _labels(self, name: str, numbers: np.ndarray) -> list[str]:
        return [self._dictionaries[name][number] for number in numbers.tolist()]

    def _spelled(self, symbols: list[str]) -> tuple[list[str], bool]:
        """Remove the marks from a word's subwords; return whether white space precedes the word."""
        if self._bpe == "none":
            return symbols, True
        if self._bpe == "subword_nmt":  # does not keep white space
            return [*(symbol.removesuffix("@@") for symbol in symbols[:-1]), symbols[-1]], True
        space = symbols[0].startswith("▁")
        return [symbols[0].removeprefix("▁") or symbols[0], *symbols[1:]], space
