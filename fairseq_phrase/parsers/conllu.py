"""Dependency trees from CoNLL-U files beside the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fairseq_phrase.errors import UserError, at
from fairseq_phrase.parsers.base import FileParser, Unparsed, cut_at_white_space
from fairseq_phrase.syntax.alignment import TextReader
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence, join_white_space
from fairseq_phrase.text import read_lines

_COLUMNS = 10
# Nine digits are more than any sentence has words; int() refuses thousands of them.
_RANGE = re.compile(r"([1-9][0-9]{0,8})-([1-9][0-9]{0,8})", re.ASCII)
_EMPTY_NODE = re.compile(r"[0-9]+\.[1-9][0-9]*", re.ASCII)
_HEAD = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
_Row = tuple[int, list[str]]  # a line's number and its columns


class ConlluFiles(FileParser):
    """``PREF.LANG.conllu`` beside the text ``PREF.LANG``: one CoNLL-U sentence for each line.

    The words are CoNLL-U's syntactic words (German ``zum`` is ``zu dem``), over which its trees are
    defined; or the surface tokens, as in the text. A surface token of several words replaces the highest
    of them in the tree (the first, if several are highest). It has that word's head, relation and tag,
    and the dependents of all its words.

    A line without text has no CoNLL-U sentence.

    Args:
        words: ``words`` (syntactic words) or ``surface``.

    Raises:
        UserError: ``words`` is something else.
    """

    suffix = "conllu"
    fields: tuple[str, ...] = ("words", "heads", "deprels", "tags")

    def __init__(self, words: str = "words"):
        if words not in ("words", "surface"):
            raise UserError(f"--parser conllu:{words}: expected conllu:words or conllu:surface")
        self._surface = words == "surface"
        self.version = "CoNLL-U, surface tokens" if self._surface else "CoNLL-U"

    def read(self, path: Path, lines: Iterator[str]) -> Iterator[ParsedSentence | Unparsed]:
        """Read one sentence for each line of the text.

        Args:
            path: the CoNLL-U file.
            lines: the text's lines.

        Yields:
            Each line's parse; :class:`Unparsed` if the sentence is malformed (columns, cycle, several
            roots, head out of range) or does not spell its line.

        Raises:
            UserError: there are more or fewer sentences than lines.
        """
        blocks = _blocks(path)
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                yield ParsedSentence([], [], DependencyTree([]))
                continue
            block = next(blocks, None)
            if block is None:
                raise UserError(
                    f"{path} has fewer sentences than its text has lines: none is left for "
                    f"line {number}"
                )
            try:
                sentence = _Sentence.of_rows(block)
                sentence.check_spelling(line, number)
                yield sentence.over_tokens() if self._surface else sentence.over_words()
            except _MalformedError as error:
                yield Unparsed(f"{at(path, error.line)}: {error}", cut_at_white_space(line))
        extra = next(blocks, None)
        if extra is not None:
            raise UserError(
                f"{at(path, extra[0][0])}: there are more sentences here than lines in the text"
            )


class _MalformedError(Exception):
    """What is wrong with a sentence.

    Args:
        line: the line of the file where it is.
        message: what was expected there and what was found.
    """

    def __init__(self, line: int, message: str):
        super().__init__(message)
        self.line = line


def _blocks(path: Path) -> Iterator[list[_Row]]:
    """Yield each sentence's lines, without comments: their numbers and columns."""
    block: list[_Row] = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            if block:
                yield block
            block = []
        elif not line.startswith("#"):
            block.append((number, line.split("\t")))
    if block:
        yield block


@dataclass
class _Token:
    """A surface token: a word, or several of them (German ``zum`` is ``zu dem``).

    Attributes:
        form: its text.
        first: its first word, from 1.
        last: its last word.
        space_after: whether white space follows it.
        line: its line in the file.
    """

    form: str
    first: int
    last: int
    space_after: bool
    line: int


@dataclass
class _Sentence:
    """The content of a sentence's rows.

    Attributes:
        line: where it starts in the file.
        tokens: its surface tokens.
        lines: the line of each word.
        forms: the words.
        heads: their heads as written in the file.
        deprels: their relations.
        tags: their parts of speech.
    """

    line: int
    tokens: list[_Token] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    forms: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    deprels: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)

    @classmethod
    def of_rows(cls, rows: list[_Row]) -> _Sentence:
        """Read the rows of a sentence.

        Raises:
            _MalformedError: a row has too few or too many columns, or its number is out of order.
        """
        sentence = cls(rows[0][0])
        for line, columns in rows:
            if len(columns) != _COLUMNS:
                raise _MalformedError(
                    line,
                    f"expected {_COLUMNS} columns with tabs between them, found {len(columns)}",
                )
            sentence._add(line, columns)
        last = sentence.tokens[-1].last if sentence.tokens else 0
        if last > len(sentence.forms):
            raise _MalformedError(
                rows[-1][0],
                f"word {len(sentence.forms) + 1} of {sentence.tokens[-1].first}-{last} is missing",
            )
        return sentence

    def _add(self, line: int, columns: list[str]) -> None:
        identifier, form, _, upos, _, _, head, deprel, _, misc = columns
        if _EMPTY_NODE.fullmatch(identifier):
            return  # an empty node, which only the enhanced graph has
        word = len(self.forms) + 1
        covered = self.tokens[-1].last if self.tokens else 0  # number of words that have a token
        space_after = "SpaceAfter=No" not in misc.split("|")
        if (several := _RANGE.fullmatch(identifier)) is not None:
            first, last = int(several[1]), int(several[2])
            if first != word or word <= covered or last < first:
                raise _MalformedError(line, f"{identifier} is not where its words are")
            self.tokens.append(_Token(form, first, last, space_after, line))
            return
        if identifier != str(word):
            raise _MalformedError(line, f"expected word {word} next, found '{identifier}'")
        if word > covered:
            self.tokens.append(_Token(form, word, word, space_after, line))
        self.lines.append(line)
        self.forms.append(join_white_space(form) or "_")
        self.heads.append(head)
        self.deprels.append(join_white_space(deprel) or "dep")
        self.tags.append(join_white_space(upos) or "X")

    def check_spelling(self, line: str, number: int) -> None:
        """Compare the surface tokens with a line of text; white space is ignored.

        Args:
            line: the line.
            number: its number, from 1.

        Raises:
            _MalformedError: they spell something else.
        """
        reader = TextReader("".join(line.split()))
        for token in self.tokens:
            form = "".join(token.form.split())
            if reader.take(form) is None:
                raise _MalformedError(
                    token.line,
                    f"word {token.first} is not what line {number} of the text has there: "
                    f"expected '{reader.rest[:60]}', found '{form[:60]}'",
                )
        if reader.rest:
            raise _MalformedError(
                self.line,
                f"this sentence ends before line {number} of the text does: expected "
                f"'{reader.rest[:60]}' after its {len(self.forms)} words",
            )

    def over_words(self) -> ParsedSentence:
        """Return the sentence with its syntactic words.

        Raises:
            _MalformedError: the heads are not a tree with one root.
        """
        # The words of one surface token have no space between them, but they are separate words.
        space_before = [
            word > token.first or space
            for token, space in zip(self.tokens, self._space_before_tokens(), strict=True)
            for word in range(token.first, token.last + 1)
        ]
        return ParsedSentence(self.forms, space_before, self._tree(), self.deprels, self.tags)

    def over_tokens(self) -> ParsedSentence:
        """Return the sentence with its surface tokens as words.

        Raises:
            _MalformedError: the heads are not a tree with one root.
        """
        tree = self._tree()
        depths = tree.depths.tolist()
        highest = [min(range(t.first - 1, t.last), key=depths.__getitem__) for t in self.tokens]
        # The head of a token's highest word is higher, so it belongs to another token. So there is no
        # cycle.
        token_of = np.repeat(
            np.arange(len(self.tokens)), [t.last - t.first + 1 for t in self.tokens]
        )
        return ParsedSentence(
            [join_white_space(token.form) or "_" for token in self.tokens],
            self._space_before_tokens(),
            DependencyTree(token_of[tree.heads[highest]] if highest else []),
            [self.deprels[word] for word in highest],
            [self.tags[word] for word in highest],
        )

    def _space_before_tokens(self) -> list[bool]:
        return [True, *(token.space_after for token in self.tokens)][: len(self.tokens)]

    def _tree(self) -> DependencyTree:
        indices, root = [], 0
        for word, (line, head) in enumerate(zip(self.lines, self.heads, strict=True), start=1):
            if not _HEAD.fullmatch(head):
                raise _MalformedError(line, f"word {word} has no head but '{head[:60]}'")
            if int(head) > len(self.heads):
                raise _MalformedError(
                    line,
                    f"word {word} has head {head}, and the sentence has {len(self.heads)} words",
                )
            if int(head) == word:
                raise _MalformedError(line, f"word {word} is its own head; a root has head 0")
            if head == "0" and root:
                raise _MalformedError(
                    line, f"this sentence has more than one root, words {root} and {word}"
                )
            root = word if head == "0" else root
            indices.append((int(head) or word) - 1)
        try:
            return DependencyTree(indices)
        except ValueError as error:
            raise _MalformedError(self.lines[0], str(error)) from None
