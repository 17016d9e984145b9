"""The interfaces of parsers."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fairseq_phrase.errors import UserError
from fairseq_phrase.syntax.brackets import NO_TAG
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.fields import FIELDS
from fairseq_phrase.syntax.sentence import ParsedSentence, Unparsed
from fairseq_phrase.text import digest_of, stamp_of


class LineParser(ABC):
    """A parser that turns raw lines into parses, for a corpus and for new text.

    A subclass needs :attr:`version`, :attr:`fields` and :meth:`parse`.

    Attributes:
        version: its name and version, for the manifest.
        files: the files of its weights.
        fields: which of :data:`fairseq_phrase.syntax.fields.FIELDS` its parses contain.
        is_instant: whether parsing takes almost no time; its progress is then not saved.
        sorts_by_length: whether the parser sorts lines by length; otherwise it gets sorted lines.
        any_language: whether it parses text of any language; one parser then serves both sides.
        words_spell_line: whether its words are the line's characters, which is then checked. A parser
            that also makes other words (German ``zum`` is ``zu dem``) sets it to False and itself
            compares its parse with the line.
    """

    version: str
    files: Sequence[Path] = ()
    fields: tuple[str, ...]
    words_spell_line = True
    any_language = False
    is_instant = False
    sorts_by_length = False

    @property
    def digest(self) -> str:
        """SHA-256 of its weights; empty for a parser without weights."""
        return digest_of(*self.files) if self.files else ""

    @property
    def stamp(self) -> str:
        """The sizes and dates of its files as one text; empty without files."""
        stamps = [f"{path.name} {stamp_of(path)[:2]}" for path in self.files]
        return hashlib.sha256("\n".join(stamps).encode()).hexdigest() if stamps else ""

    def text_of(self, line: str) -> str:
        """Return a line as text, for a subword model: without parts that only the parser reads."""
        return line

    @abstractmethod
    def parse(self, lines: Sequence[str]) -> Sequence[ParsedSentence | Unparsed]:
        """Parse lines; a line is one sentence, even if the parser finds several.

        If this raises an exception other than :class:`UserError`, the lines are split into halves and
        parsed again, down to the line that raised it. This line counts as unparsed.
        """

    def tokenize(self, lines: Sequence[str]) -> list[ParsedSentence]:
        """Split lines into the same words as :meth:`parse`, without trees."""
        return [
            sentence.sentence if isinstance(sentence, Unparsed) else without_trees(sentence)
            for sentence in self.parse(lines)
        ]

    def parse_words(
        self, sentences: Sequence[Sequence[str]]
    ) -> Sequence[ParsedSentence | Unparsed]:
        """Parse sentences that are already split into words, and keep these words.

        Raises:
            UserError: this parser can only parse raw text.
        """
        raise UserError(
            f"{self.version} cannot parse text that is already split into words: name another parser, or "
            f"give its class {type(self).__name__} the method parse_words"
        )


class FileParser(ABC):
    """Parses in a file next to the text, ``PREF.LANG.SUFFIX``.

    Attributes:
        version: the format's name, for the manifest.
        fields: which of :data:`fairseq_phrase.syntax.fields.FIELDS` the parses contain.
        any_language: whether it supports both sides of a corpus; each side then has its own file.
        words_spell_line: as in :class:`LineParser`.
        word_advice: advice if the words differ from the words of tokenized text.
    """

    suffix: str
    version: str
    digest = stamp = ""
    fields: tuple[str, ...]
    words_spell_line = True
    word_advice = ""
    any_language = True

    @abstractmethod
    def read(self, path: Path, lines: Iterable[str]) -> Iterator[ParsedSentence | Unparsed]:
        """Read the parses of a file, one for each line of its text.

        Raises:
            UserError: the file cannot be read, or has more or fewer parses than the text has lines.
        """


def split_at_white_space(line: str) -> ParsedSentence:
    """Return a line's words, split at white space, without trees."""
    words = line.split()
    return ParsedSentence(words, [True] * len(words))


def without_trees(sentence: ParsedSentence) -> ParsedSentence:
    """Return the sentence without its trees."""
    return replace(
        sentence, tree=None, deprels=[], tags=[], constituents=None, features={}, edges={}
    )


def flat(sentence: ParsedSentence, fields: Collection[str]) -> ParsedSentence:
    """Give a sentence flat trees in place of a missing parse.

    Args:
        fields: the fields that the trees must have, of :data:`fairseq_phrase.syntax.fields.FIELDS`.

    Returns:
        The words with flat trees: all words depend on the first, and one constituent covers them. Graphs
        have no edges.
    """
    count = len(sentence.words)
    return replace(
        sentence,
        tree=DependencyTree([0] * count) if "heads" in fields else None,
        deprels=(["root"] + ["dep"] * count)[:count] if "deprels" in fields else [],
        tags=[NO_TAG] * count if "tags" in fields else [],
        constituents=ConstituencyTree.flat(count) if "spans" in fields else None,
        features={name: [NO_TAG] * count for name in fields if FIELDS[name].is_feature},
        edges={name: [] for name in fields if FIELDS[name].per == "edge"},
    )
