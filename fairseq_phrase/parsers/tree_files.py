"""Files of trees next to a text: each line is matched with its trees; other formats are refused."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from fairseq_phrase.errors import UserError, location
from fairseq_phrase.parsers.interfaces import FileParser, flat, split_at_white_space
from fairseq_phrase.syntax.alignment import TextReader
from fairseq_phrase.syntax.brackets import parse_brackets
from fairseq_phrase.syntax.sentence import ParsedSentence, Unparsed
from fairseq_phrase.text import read_lines

#: Limit, in lines and trees together, of the search for the next line that fits a tree.
_AHEAD = 40
_SHOWN = 60
Item = TypeVar("Item")


class MisfitError(Exception):
    """A tree that is malformed or does not fit its line."""

    def __init__(self, line: int, message: str, column: int | None = None) -> None:
        super().__init__(message)
        self.line, self.column = line, column


class Tree(Protocol):
    """The tree of a sentence in a file.

    Attributes:
        line: its first line in the file.
    """

    line: int

    def spelled(self, reader: TextReader) -> ParsedSentence:
        """Take the tree's words from the text, and return the tree with the text's words.

        Raises:
            MisfitError: the tree is malformed, or the text has other words there.
        """
        ...


class TreeFiles(FileParser):
    """Files of trees in the order of the text's lines.

    A line has one tree, or several whose words spell it one after the other. Several trees are joined. A
    line without text has no tree; a line of invisible characters may have one. After a line whose trees
    do not spell it, reading continues at the next line that trees spell.
    """

    @abstractmethod
    def trees(self, path: Path) -> Iterator[Tree]:
        """Yield the trees of a file; a malformed one raises its error when it is spelled."""

    def read(self, path: Path, lines: Iterator[str]) -> Iterator[ParsedSentence | Unparsed]:
        """Read the parses of a file, one for each line of its text.

        Yields:
            Each line's parse; :class:`Unparsed` if its tree is missing or malformed, or does not spell
            the line.

        Raises:
            UserError: the file cannot be read, or trees are left after the last line.
        """
        return _Reading(self, path, lines).parses()


class _Ahead(Generic[Item]):
    """An iterator whose next items can be read ahead."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items = items
        self._seen: deque[Item] = deque()

    def peek(self, index: int) -> Item | None:
        """Return the item after ``index`` others; None after the last one."""
        while len(self._seen) <= index:
            try:
                self._seen.append(next(self._items))
            except StopIteration:
                return None
        return self._seen[index]

    def drop(self, count: int) -> None:
        """Skip items."""
        for _ in range(count):
            if self.peek(0) is not None:
                self._seen.popleft()


class _Reading:
    """One pass over a text and the file of its trees."""

    def __init__(self, parser: TreeFiles, path: Path, lines: Iterator[str]) -> None:
        self._parser, self._path = parser, path
        self._lines = _Ahead(lines)
        self._trees = _Ahead(parser.trees(path))
        self._counts = ""

    def parses(self) -> Iterator[ParsedSentence | Unparsed]:
        """Yield the parse of each line."""
        number = 1
        while (line := self._lines.peek(0)) is not None:
            if not line.strip():
                yield flat(split_at_white_space(line), self._parser.fields)
            else:
                try:
                    parts = self._attempt(line, 0)
                    self._trees.drop(len(parts))
                    yield ParsedSentence.joined(parts)
                except MisfitError as error:
                    words = split_at_white_space(line)
                    if TextReader(line).rest:
                        yield Unparsed(self._reason(number, line, error), words)
                    else:  # only characters that are not seen, such as U+200B
                        yield flat(words, self._parser.fields)
            self._lines.drop(1)
            number += 1
        if (tree := self._trees.peek(0)) is not None:
            raise UserError(
                f"{location(self._path, tree.line)}: there are more trees here than lines in the text"
            )

    def _attempt(self, line: str, first: int) -> list[ParsedSentence]:
        """Spell a line with the trees from a given index on."""
        reader = TextReader(line)
        parts: list[ParsedSentence] = []
        while not parts or reader.rest:
            tree, before = self._trees.peek(first + len(parts)), reader.end
            try:
                if tree is None:
                    raise MisfitError(0, "no tree is left for this line")
                part = tree.spelled(reader)
                if not part.words:
                    raise MisfitError(
                        tree.line, f"a tree without words, for '{line.strip()[:_SHOWN]}'"
                    )
            except MisfitError:
                last = self._trees.peek(first + len(parts) - 1) if parts else None
                if last is None or reader.end > before:
                    raise
                count = len(parts[-1].words)
                raise MisfitError(
                    last.line,
                    f"this tree ends after its {count} words, and the text goes on: "
                    f"'{reader.rest.rstrip()[:_SHOWN]}'",
                ) from None
            parts.append(part)
        return parts

    def _reason(self, number: int, line: str, error: MisfitError) -> str:
        """Skip a line and its trees; return the reason."""
        tree = self._trees.peek(0)
        given_up, ahead = self._next_fit()
        later = [index for index in range(1, given_up) if self._fits(0, index)]
        self._trees.drop(given_up)
        if tree is None or (given_up == 0 and ahead):
            where = location(self._path, None if tree is None else tree.line)
            owner = "" if tree is None else f", and this tree is of line {number + ahead}"
            return (
                f"{where}: a tree is missing {'at the end' if tree is None else 'before this one'}: line "
                f"{number} of the text has none{owner}{self._counted()}"
            )
        if later:
            return (
                f"{location(self._path, tree.line)}: {later[0]} trees from here on are of no line of the "
                f"text{self._counted()}"
            )
        column = "" if error.column is None else f", column {error.column}"
        return f"{location(self._path, error.line)}{column}: {error}"

    def _next_fit(self) -> tuple[int, int]:
        """Find the next line that trees spell.

        Returns:
            The number of trees before it that belong to the current line, and the distance in lines to
            the line that fits. If no line nearby fits, 1 and 0.
        """
        for total in range(1, _AHEAD + 1):
            for ahead in range(1, total + 1):
                trees = total - ahead
                if self._fits(ahead, trees):
                    between = [self._lines.peek(index) or "" for index in range(1, ahead)]
                    others = sum(1 for line in between if line.strip())
                    return max(min(1, trees), trees - others), ahead
        return 1, 0

    def _fits(self, ahead: int, index: int) -> bool:
        """Whether trees from an index on spell a later line. The ends of text and file also fit."""
        line = self._lines.peek(ahead)
        if line is None or self._trees.peek(index) is None:
            return line is None and self._trees.peek(index) is None
        try:
            return bool(line.strip() and self._attempt(line, index))
        except MisfitError:
            return False

    def _counted(self) -> str:
        """Return the numbers of trees in the file and of lines with text, as text."""
        if not self._counts:
            trees = sum(1 for _ in self._parser.trees(self._path))
            text = str(self._path).removesuffix(".gz").removesuffix(f".{self._parser.suffix}")
            there = [path for path in (Path(text), Path(f"{text}.gz")) if path.is_file()]
            self._counts = f" ({trees} trees in the file)"
            if there:
                lines = sum(1 for line in read_lines(there[0]) if line.strip())
                self._counts = f" ({trees} trees for {lines} lines with text)"
        return self._counts


def difference(reader: TextReader, number: int, word: str) -> str:
    """Describe the first word of a tree that the text lacks.

    Args:
        number: the word's number, from 1.
    """
    found = reader.rest.rstrip()[:_SHOWN]
    there = repr(found) if found else "no more words"
    return f"word {number} is '{word[:_SHOWN]}', and the text has {there} there"


_TREETOOLS = (
    "treetools-cli transform {path} OUT --src-format {name} --dest-format brackets --trans root_attach "
    "negra_mark_heads boyd_split raising (pip install treetools) makes brackets without crossing branches"
)
_STANDARD = ["ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC"]
_COLUMNS = re.compile(r"#\s*global\.columns\s*=\s*(.*)")
_DISCBRACKET_LEAF = re.compile(r"([0-9]+)=\S*")


def refuse_other_columns(path: Path, number: int, line: str) -> None:
    """Check that a line of a CoNLL-U file is not in a similar format.

    Args:
        number: the line's number, from 1.

    Raises:
        UserError: the line is in another format; the message names the format and a converter.
    """
    if line.startswith("("):
        _refuse(path, number, "brackets", "name the file PREF.LANG.ptb and give --parser ptb")
    if line.startswith("#"):
        named = _COLUMNS.fullmatch(line.strip())
        if named is not None and named[1].split() != _STANDARD:
            command = f"udapy read.Conllup write.Conllu <{path} >OUT (pip install udapi)"
            _refuse(path, number, "CoNLL-U Plus", f"{command} makes CoNLL-U")
        return
    columns = line.split("\t")
    if len(columns) >= 14 and columns[0].isdecimal() and columns[8].isdecimal():
        attributes = "ord,form,lemma,_,upos,_,_,_,head,_,deprel"
        command = f"udapy read.Conll attributes={attributes} write.Conllu <{path} >OUT"
        _refuse(path, number, "CoNLL-2009", f"{command} (pip install udapi) makes CoNLL-U")


def refuse_other_trees(path: Path, number: int, line: str) -> None:
    """Check that a line outside all trees of a bracketed file is not in another format.

    Args:
        number: the line's number, from 1.

    Raises:
        UserError: the line is in another format; the message names the format and a converter.
    """
    if line.startswith(("#FORMAT ", "#BOT ", "#BOS ")):
        _refuse(path, number, "NEGRA export", _TREETOOLS.format(path=path, name="export"))
    if line.startswith("<?xml"):
        _refuse(path, number, "XML (TIGER-XML?)", _TREETOOLS.format(path=path, name="tigerxml"))
    if re.match(r"1(-[0-9]+)?(\t[^\t]*){6}", line):
        _refuse(path, number, "CoNLL-U", "name the file PREF.LANG.conllu and give --parser conllu")


def refuse_discbracket(path: Path, number: int, tree: str) -> None:
    """Check that a tree is not in the discbracket format, whose leaves are numbered words.

    Args:
        number: the number of its first line, from 1.

    Raises:
        UserError: the tree's leaves are ``0=word``, ``1=word`` and so on, in any order.
    """
    if "0=" not in tree or "1=" not in tree:
        return
    try:
        leaves = parse_brackets(tree).words
    except ValueError:
        return
    numbered = [found for found in map(_DISCBRACKET_LEAF.fullmatch, leaves) if found]
    if sorted(int(found[1]) for found in numbered) == list(range(len(leaves))):
        command = "discodop treetransforms --inputfmt=discbracket --outputfmt=bracket --splitdisc"
        where = "https://github.com/andreasvc/disco-dop"
        _refuse(path, number, "discbracket", f"{command} {path} OUT ({where}) makes brackets")


def _refuse(path: Path, number: int, name: str, advice: str) -> None:
    raise UserError(f"{location(path, number)}: this is {name}, which is not read here: {advice}")
