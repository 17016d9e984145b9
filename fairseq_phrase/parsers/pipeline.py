"""A parser with all that stands around it: one way for a corpus and for new text."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import FileParser, LineParser, Unparsed, load_parser
from fairseq_phrase.parsers.base import flat
from fairseq_phrase.parsers.moses import unescape_moses
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence

logger = logging.getLogger(__name__)
#: Where constituents come from, ``--constituents``.
CONSTITUENTS = ("parser", "from-dependencies", "none")
Parse = ParsedSentence | Unparsed
Line = TypeVar("Line", str, list[str])


@dataclass(frozen=True)
class ParsingOptions:
    """How text is parsed; the manifest keeps it, so that new text is parsed alike.

    Attributes:
        parser: as ``--parser`` names it.
        constituents: one of :data:`CONSTITUENTS`: what the parser gives, if it gives any; made from its
            dependency trees; or none.
        tokenized: the text is cut into words at white space already, perhaps with Moses' escapes. These
            words are kept; the parser sees them unescaped.
    """

    parser: str = "none"
    constituents: str = "parser"
    tokenized: bool = False


class ParsingPipeline:
    """A parser and what is done to its input and output.

    Args:
        options: how to parse.

    Attributes:
        parser: the parser.
        fields: which of :data:`fairseq_phrase.syntax.store.FIELDS` come out.

    Raises:
        UserError: the parser is not there, or makes no dependency trees to have constituents from.
    """

    def __init__(self, options: ParsingOptions):
        self.options = options
        self.parser: LineParser | FileParser = load_parser(options.parser)
        fields = [name for name in self.parser.fields if name != "spans"]
        if options.constituents == "from-dependencies":
            if "heads" not in fields:
                raise UserError(
                    f"--constituents from-dependencies: --parser {options.parser} makes no dependency "
                    "trees"
                )
            fields.append("spans")
        elif options.constituents == "parser" and "spans" in self.parser.fields:
            fields.append("spans")
        self.fields = tuple(fields)

    @property
    def constituents(self) -> str:
        """Where the constituents that come out are from, one of :data:`CONSTITUENTS`."""
        return self.options.constituents if "spans" in self.fields else "none"

    def read(self, path: Path, lines: Iterator[str]) -> Iterator[Parse]:
        """Read parses from a file beside the text (:meth:`FileParser.read`)."""
        assert isinstance(self.parser, FileParser)
        return map(self._finished, self.parser.read(path, lines))

    def parse(self, lines: Sequence[str]) -> list[Parse]:
        """Parse lines; those on which the parser fails come back unparsed.

        Lines go to the parser by length, because parsers work on batches.

        Raises:
            UserError: the parser cannot be used at all.
        """
        order = sorted(range(len(lines)), key=lambda index: len(lines[index]))
        parsed: list[Parse | None] = [None] * len(lines)
        by_length = self._parse_robustly([lines[index] for index in order])
        for index, sentence in zip(order, by_length, strict=True):
            parsed[index] = self._finished(sentence)
        return parsed  # type: ignore[return-value]  # every place is filled

    def tokenize(self, line: str) -> ParsedSentence:
        """Cut a line into the words that :meth:`parse` makes of it."""
        assert isinstance(self.parser, LineParser)
        return _words_of(line) if self.options.tokenized else self.parser.tokenize([line])[0]

    def flat(self, unparsed: Unparsed) -> ParsedSentence:
        """Give a line without a parse trees that say nothing."""
        return flat(unparsed.sentence, self.fields)

    def _parse_robustly(self, lines: Sequence[str]) -> Sequence[Parse]:
        """Parse lines all at once; where that fails, one by one, to find the one that fails."""
        try:
            parsed = self._parse(lines)
            if len(parsed) != len(lines):
                raise RuntimeError(f"{len(parsed)} parses of {len(lines)} lines came back")
            return parsed
        except (UserError, MemoryError):
            raise
        except Exception as error:
            if len(lines) > 1:
                return [self._parse_robustly([line])[0] for line in lines]
            reason = f"{self.options.parser} failed: {type(error).__name__}: {error}"
            return [Unparsed(reason, _words_of(lines[0]))]

    def _parse(self, lines: Sequence[str]) -> Sequence[Parse]:
        assert isinstance(self.parser, LineParser)
        if not self.options.tokenized:
            return self.parser.parse(lines)
        words = [line.split() for line in lines]
        plain = [[unescape_moses(word) for word in sentence] for sentence in words]
        return [
            _with_words(sentence, kept)
            for sentence, kept in zip(self.parser.parse_words(plain), words, strict=True)
        ]

    def _finished(self, sentence: Parse) -> Parse:
        if isinstance(sentence, Unparsed):
            return sentence
        if self.options.constituents == "from-dependencies" and sentence.tree is not None:
            tree = ConstituencyTree.from_dependencies(sentence.tree, sentence.tags)
            return replace(sentence, constituents=tree)
        if self.options.constituents == "none" and sentence.constituents is not None:
            return replace(sentence, constituents=None)
        return sentence


def _with_words(sentence: Parse, words: list[str]) -> Parse:
    """Put the text's own words in the place of those that the parser saw.

    Raises:
        ValueError: the parser has made more or fewer words of them.
    """
    kept = ParsedSentence(words, [True] * len(words))
    if isinstance(sentence, Unparsed):
        return replace(sentence, sentence=kept)
    if len(sentence.words) != len(words):
        raise ValueError(f"{len(words)} words went in and {len(sentence.words)} came out")
    return replace(sentence, words=words, space_before=kept.space_before)


def _words_of(line: str) -> ParsedSentence:
    words = line.split()
    return ParsedSentence(words, [True] * len(words))
