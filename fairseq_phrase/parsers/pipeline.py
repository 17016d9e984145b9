"""A parser with the steps before and after it, for corpora and new text."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import FileParser, LineParser, Unparsed, load_parser
from fairseq_phrase.parsers.interfaces import split_at_white_space
from fairseq_phrase.syntax.alignment import TextReader, forms_in_text
from fairseq_phrase.syntax.brackets import NO_TAG
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.fields import FIELDS
from fairseq_phrase.syntax.sentence import Edge, ParsedSentence, join_white_space
from fairseq_phrase.syntax.spellings import unescape_moses
from fairseq_phrase.text import plain_spaces

Parse = ParsedSentence | Unparsed
_MISSING: Any = object()


@dataclass(frozen=True)
class ParsingOptions:
    """The options of parsing. The manifest stores them for parsing new text in the same way.

    Attributes:
        parser: the argument of ``--parser``.
        constituents: one of :data:`fairseq_phrase.option_values.CONSTITUENTS`: the parser's own
            constituents, if it makes any; constituents made from its dependency trees; or none.
        tokenized: whether the text is already split into words at white space, with or without Moses'
            escapes. These words are kept; the parser gets them unescaped.
    """

    parser: str = "none"
    constituents: str = "parser"
    tokenized: bool = False


class ParsingPipeline:
    """A parser with the processing of its input and output.

    Attributes:
        fields: which of :data:`fairseq_phrase.syntax.fields.FIELDS` its parses contain.

    Raises:
        UserError: the parser is unknown or not installed, or constituents are to be made from dependency
            trees and the parser does not make any.
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
        self._features = [name for name in fields if FIELDS[name].is_feature]
        self._graphs = [name for name in fields if FIELDS[name].per == "edge"]

    def __reduce__(self) -> tuple[Any, ...]:
        """Load the parser in another process instead of copying it there; :attr:`fields` as made."""
        return ParsingPipeline, (self.options,)

    @property
    def is_slow(self) -> bool:
        """Whether parsing takes time, so that its results are kept if a run fails."""
        return isinstance(self.parser, LineParser) and not self.parser.is_instant

    @property
    def constituents(self) -> str:
        """The source of the constituents, one of :data:`fairseq_phrase.option_values.CONSTITUENTS`."""
        return self.options.constituents if "spans" in self.fields else "none"

    def read(self, path: Path, lines: Iterator[str]) -> Iterator[Parse]:
        """Read parses from a file next to the text (:meth:`FileParser.read`).

        Raises:
            UserError: the file cannot be read, or the parser returns more or fewer parses than lines.
        """
        assert isinstance(self.parser, FileParser)
        parser_lines, text_lines = itertools.tee(lines)
        if self.options.tokenized:
            parser_lines = (" ".join(_unescaped(line)) for line in parser_lines)
        parses = self.parser.read(path, parser_lines)
        for number, (sentence, line) in enumerate(
            zip_longest(parses, text_lines, fillvalue=_MISSING), start=1
        ):
            if sentence is _MISSING or line is _MISSING:
                more = "fewer" if sentence is _MISSING else "more"
                raise UserError(
                    f"{path}: {self.options.parser} returned {more} parses than the text has lines, "
                    f"which differs at line {number}"
                )
            yield self.finished(sentence, line)

    def parse(self, lines: Sequence[str], *, constituents: bool = True) -> list[Parse]:
        """Parse lines; lines on which the parser fails are returned as unparsed.

        The parser gets lines sorted by length, because parsers work on batches. A parser that sorts
        lines itself gets them unsorted.

        Args:
            constituents: False skips constituents made from dependency trees, which take time.

        Raises:
            UserError: the parser cannot be used for any line.
        """
        assert isinstance(self.parser, LineParser)
        order: Sequence[int] = range(len(lines))
        if not self.parser.sorts_by_length:
            order = sorted(order, key=lambda index: len(lines[index]))
        sentences = self._parse_robustly([lines[index] for index in order])
        parsed = {
            index: self.finished(sentence, lines[index], constituents)
            for index, sentence in zip(order, sentences, strict=True)
        }
        return [parsed[index] for index in range(len(lines))]

    def tokenize(self, line: str) -> ParsedSentence:
        """Split a line into the same words as :meth:`parse`."""
        assert isinstance(self.parser, LineParser)
        if self.options.tokenized:
            return split_at_white_space(line)
        try:
            parse = self._fitted(self.parser.tokenize([line])[0], line)
            return parse.sentence if isinstance(parse, Unparsed) else parse
        except (UserError, MemoryError):
            raise
        except (Exception, SystemExit):  # as in parse(), which returns the line as unparsed
            return split_at_white_space(line)

    def _parse_robustly(self, lines: Sequence[str]) -> list[Parse]:
        """Parse all lines at once. If that fails, parse each half, down to the failing line."""
        try:
            parsed = list(self._parse(lines))
            if len(parsed) != len(lines):
                raise RuntimeError(f"{len(parsed)} parses of {len(lines)} lines came back")
            return parsed
        except (UserError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            if len(lines) > 1:
                half = len(lines) // 2
                return self._parse_robustly(lines[:half]) + self._parse_robustly(lines[half:])
            reason = f"{self.options.parser} failed: {type(error).__name__}: {error}"
            return [Unparsed(reason, split_at_white_space(lines[0]))]

    def _parse(self, lines: Sequence[str]) -> Sequence[Parse]:
        assert isinstance(self.parser, LineParser)
        if not self.options.tokenized:
            return self.parser.parse(lines)
        return self.parser.parse_words([_unescaped(line) for line in lines])

    def _fitted(self, sentence: Parse, line: str) -> Parse:
        """Compare a parse with its line, and give it the line's words."""
        if not isinstance(sentence, ParsedSentence | Unparsed):
            kind = type(sentence).__name__
            return Unparsed(
                f"{self.options.parser} returned {kind} for this line: expected a ParsedSentence or an "
                "Unparsed",
                split_at_white_space(line),
            )
        if isinstance(sentence, Unparsed):
            words = self._fitted(sentence.sentence, line)
            return replace(
                sentence, sentence=words.sentence if isinstance(words, Unparsed) else words
            )
        try:
            if self.options.tokenized:
                return _with_words(sentence, split_at_white_space(line), _unescaped(line))
            return _spelled(sentence, line) if self.parser.words_spell_line else sentence
        except ValueError as error:
            advice = self.parser.word_advice if isinstance(self.parser, FileParser) else ""
            reason = f"the parse has other words than the text: {error}{advice}"
            return Unparsed(reason, split_at_white_space(line))

    def finished(self, sentence: Parse, line: str, constituents: bool = True) -> Parse:
        """Check a line's parse, and make or remove its constituents.

        Args:
            line: the line in the data's form; the words keep this form.
            constituents: as in :meth:`parse`.
        """
        if isinstance(sentence, ParsedSentence) and (flaw := self._flaw(sentence)):
            reason = f"{self.options.parser} gave an unusable parse: {flaw}"
            return Unparsed(reason, split_at_white_space(line))
        sentence = self._fitted(sentence, line)
        if isinstance(sentence, Unparsed):
            return sentence
        if self.options.constituents == "from-dependencies" and constituents:
            assert sentence.tree is not None
            tags = sentence.tags or [NO_TAG] * len(sentence.words)
            tree = ConstituencyTree.from_dependencies(sentence.tree, tags, sentence.deprels)
            return replace(sentence, constituents=tree)
        if self.options.constituents != "parser" and sentence.constituents is not None:
            return replace(sentence, constituents=None)
        return sentence

    def _flaw(self, sentence: ParsedSentence) -> str | None:
        """Return why a parse cannot be used; None if it can be used."""
        labels = {**sentence.features, "deprels": sentence.deprels, "tags": sentence.tags}
        for name, graph in sentence.edges.items():
            for edge in graph:
                if not isinstance(edge, Edge):
                    kind = type(edge).__name__
                    return f"an edge of {name} is a {kind}: expected Edge(head, dependent, label)"
            labels[f"labels of {name}"] = [edge.label for edge in graph]
        everything = list(itertools.chain(sentence.words, *labels.values()))
        if " ".join(everything).split() != everything:
            for name, values in {"words": sentence.words, **labels}.items():
                if " ".join(values).split() != values:
                    return f"one of its {name} is empty or holds white space: {values}"
        count = len(sentence.words)
        tree, constituents = sentence.tree, sentence.constituents
        counts = {
            "space_before": len(sentence.space_before),
            "heads": 0 if tree is None else len(tree.heads),
            **{name: len(labels.get(name, ())) for name in self._features},
            "deprels": len(sentence.deprels),
            "tags": len(sentence.tags),
            "spans": 0 if constituents is None else constituents.num_words,
        }
        for name, size in counts.items():
            if size != count and (name in self.parser.fields or name == "space_before"):
                return f"{count} words, but {name} for {size}"
        for name in self._graphs:
            if name not in sentence.edges:
                return f"it has no {name}"
            for head, dependent, _ in sentence.edges[name]:
                if not (0 <= head < count and 0 <= dependent < count):
                    return (
                        f"an edge of {name} from word {head + 1} to word {dependent + 1}, and the "
                        f"sentence has {count} words"
                    )
        return None


def _unescaped(line: str) -> list[str]:
    """Return the words of Moses-tokenized text without escapes, as the parser gets them."""
    return [unescape_moses(word) for word in line.split()]


def _with_words(
    sentence: ParsedSentence, line: ParsedSentence, line_words: list[str]
) -> ParsedSentence:
    """Replace the words given to a parser by the words of the text, one by one."""
    for number, (word, parsed_word) in enumerate(
        zip_longest(line_words, sentence.words, fillvalue=""), start=1
    ):
        if word != parsed_word and (not parsed_word or TextReader(word).take(parsed_word) != word):
            raise ValueError(
                f"expected word {number} to be '{word}', found '{parsed_word}' ({len(line_words)} words "
                f"in the text, {len(sentence.words)} in the parse)"
            )
    return replace(sentence, words=line.words, space_before=line.space_before, expansions=[])


def _spelled(sentence: ParsedSentence, line: str) -> ParsedSentence:
    """Write a sentence's words as in the line."""
    if "".join(sentence.words) == "".join(line.split()):
        return sentence
    forms = forms_in_text(sentence.words, line)
    words = [
        join_white_space(plain_spaces(form)) or word
        for form, word in zip(forms, sentence.words, strict=True)
    ]
    return replace(sentence, words=words)
