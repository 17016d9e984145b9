"""Files of trees next to a text: each line is matched with its trees; other formats are refused."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from fairseq_phrase.errors import UserError, location
from fairseq_phrase.parsers.interfaces import FileParser, flat, split_at_white_space
from fairseq_phrase.syntax.alignment import TextReader
from fairseq_phrase.syntax.sentence import ParsedSentence, Unparsed
from fairseq_phrase.text import read_lines

#: Limit, in lines and trees together, of the search for the next line that fits a tree.
NEAR = 40
#: Limits of the search for the end of a batch of lost trees, or lost lines. Trees take more memory.
FAR_LINES, _FAR_TREES = 100_000, 5_000
#: How many malformed trees or lines may be at the end of such a batch.
_FEW = 2
#: The number of lines by which a fit is confirmed.
_AFTER = 5
#: How many pairs of a line and a tree the searches remember.
_REMEMBERED = 10_000
_SHOWN = 60
Item = TypeVar("Item")
_Test = Callable[[int, int], bool]


class MisfitError(Exception):
    """A tree that is malformed or does not fit its line.

    Args:
        message: the message, or a function that makes it. Most errors of a search are never shown.
    """

    def __init__(
        self, line: int, message: str | Callable[[], str], column: int | None = None
    ) -> None:
        super().__init__(message)
        self._message, self.line, self.column = message, line, column

    def __str__(self) -> str:
        return self._message if isinstance(self._message, str) else self._message()


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

    def read(self, path: Path, lines: Iterable[str]) -> Iterator[ParsedSentence | Unparsed]:
        """Read the parses of a file, one for each line of its text.

        Yields:
            Each line's parse; :class:`Unparsed` if its tree is missing or malformed, or does not spell
            the line.

        Raises:
            UserError: the file cannot be read, or trees are left after the last line.
        """
        return Reading(self, path, lines).parses()


class _Ahead(Generic[Item]):
    """An iterator whose next items can be read ahead.

    Attributes:
        dropped: how many items were skipped.
    """

    def __init__(self, items: Iterable[Item]) -> None:
        self._items = iter(items)
        self._seen: deque[Item] = deque()
        self.dropped = 0

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
                self.dropped += 1


class Reading:
    """One pass over a text and the file of its trees."""

    def __init__(self, parser: TreeFiles, path: Path, lines: Iterable[str]) -> None:
        self._parser, self._path = parser, path
        self._lines = _Ahead(lines)
        self._trees = _Ahead(parser.trees(path))
        self._counts = ""
        # The lines up to the last one of a gap have no trees, for one reason.
        self._gap_end, self._gap_reason = 0, ""
        # Neighbouring misfits search the same lines and trees.
        self._fitting: dict[tuple[int, int], int] = {}
        # Far searches without a result become rarer.
        self._misfits = self._fruitless = self._next_far_search = 0

    def parses(self) -> Iterator[ParsedSentence | Unparsed]:
        """Yield the parse of each line."""
        number = 1
        while (line := self._lines.peek(0)) is not None:
            yield self._parse(number, line)
            self._lines.drop(1)
            number += 1
        if (tree := self._trees.peek(0)) is not None:
            raise UserError(
                f"{location(self._path, tree.line)}: there are more trees here than lines in the text"
            )

    def _parse(self, number: int, line: str) -> ParsedSentence | Unparsed:
        """Read the trees of the next line."""
        words, misfit = split_at_white_space(line), None
        if line.strip() and number > self._gap_end:
            try:
                parts = self._attempt(line, 0)
                self._trees.drop(len(parts))
                return ParsedSentence.joined(parts)
            except MisfitError as error:
                misfit = error
        if not _is_visible(line):
            return flat(words, self._parser.fields)
        return Unparsed(self._gap_reason if misfit is None else self._reason(number, misfit), words)

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

    def _reason(self, number: int, misfit: MisfitError) -> str:
        """Skip the trees of the next line; return the reason."""
        tree = self._trees.peek(0)
        if tree is None:
            return self._gap(number, self._lines_left())
        given_up, ahead = self._next_fit()
        if given_up == 0:
            return self._gap(number, ahead)
        extra = next((index for index in range(1, given_up) if self._fits(0, index)), None)
        self._trees.drop(given_up)
        if extra is not None:
            return (
                f"{location(self._path, tree.line)}: {extra} trees from here on are of no line of the "
                f"text{self._counted()}"
            )
        column = "" if misfit.column is None else f", column {misfit.column}"
        return f"{location(self._path, misfit.line)}{column}: {misfit}"

    def _gap(self, number: int, length: int | None) -> str:
        """Note that the next lines have no trees; return the reason.

        Args:
            length: how many lines, also without text; None for very many at the end.
        """
        tree = self._trees.peek(0)
        where = "at the end" if tree is None else "before this one"
        owner = "" if tree is None else f", and this tree is of line {number + (length or 0)}"
        lines = [self._lines.peek(index) or "" for index in range(length or 0)]
        missing = [number + index for index, line in enumerate(lines) if _is_visible(line)]
        if length is None:
            trees = f"trees are missing {where}: lines {number} and later of the text have none"
        elif len(missing) == 1:
            trees = f"a tree is missing {where}: line {number} of the text has none"
        else:
            trees = (
                f"{len(missing)} trees are missing {where}: lines {number} to {missing[-1]} of the text "
                "have none"
            )
        self._gap_end = sys.maxsize if length is None else number + length - 1
        place = location(self._path, None if tree is None else tree.line)
        self._gap_reason = f"{place}: {trees}{owner}{self._counted()}"
        return self._gap_reason

    def _lines_left(self) -> int | None:
        """Return how many lines are left; None if very many."""
        return next((n for n in range(FAR_LINES) if self._lines.peek(n) is None), None)

    def _next_fit(self) -> tuple[int, int]:
        """Find the next line that trees spell.

        Returns:
            The number of trees before it that belong to the current line, and the distance in lines to
            the line that fits. If no line fits, 1 and 0.
        """
        most = self._near(self.agrees) or self._far()
        if most is None:
            ahead, trees = self._near(self._fits) or (0, 1)
        else:
            ahead, trees = self._first(self._fits, *most, sum(most)) or most
        between = [self._lines.peek(index) or "" for index in range(1, ahead)]
        filled = sum(1 for line in between if line.strip())
        return max(min(1, trees), trees - filled), ahead

    def _near(self, fits: _Test) -> tuple[int, int] | None:
        return self._first(fits, NEAR + 1, NEAR, NEAR + 1)

    def _first(self, fits: _Test, lines: int, trees: int, limit: int) -> tuple[int, int] | None:
        """Return the distances to the nearest line and tree that fit, all below limits.

        Args:
            limit: of both distances together.
        """
        for total in range(1, limit):
            for ahead in range(max(1, total - trees + 1), min(total + 1, lines)):
                if fits(ahead, total - ahead):
                    return ahead, total - ahead
        return None

    def _far(self) -> tuple[int, int] | None:
        """Find the end of a batch of lost trees, or of lost lines; return the distances."""
        self._misfits += 1
        if self._misfits < self._next_far_search:
            return None
        for distance in range(NEAR - _FEW, FAR_LINES):
            for few in range(_FEW + 1):
                for ahead, trees in ((distance, few), (few + 1, distance)):
                    if trees <= _FAR_TREES and self.agrees(ahead, trees):
                        self._fruitless = 0
                        return ahead, trees
            no_trees = distance >= _FAR_TREES or self._trees.peek(distance) is None
            if no_trees and self._lines.peek(distance) is None:
                break
        self._fruitless += 1
        self._next_far_search = self._misfits + 2**self._fruitless
        return None

    def _fits(self, ahead: int, index: int) -> bool:
        """Whether trees from an index on spell a later line. The ends of text and file also fit."""
        line = self._lines.peek(ahead)
        if line is None or self._trees.peek(index) is None:
            return line is None and self._trees.peek(index) is None
        return self._count(ahead, index) > 0

    def agrees(self, ahead: int, index: int) -> bool:
        """Whether trees fit a later line, and most of the lines after it. A short line fits by chance."""
        if not self._fits(ahead, index):
            return False
        fitting = lines = 0
        while lines < _AFTER and (line := self._lines.peek(ahead)) is not None:
            if line.strip():
                count = self._count(ahead, index)
                index += max(1, count)
                lines += 1
                if count > 0:
                    fitting += 1
            ahead += 1
        if lines < _AFTER and self._fits(ahead, index):  # also the end of the file
            fitting += 1
        return 2 * fitting >= lines

    def _count(self, ahead: int, index: int) -> int:
        """Return how many trees from an index on spell a later line; 0 if they do not spell it."""
        pair = self._lines.dropped + ahead, self._trees.dropped + index
        if pair not in self._fitting:
            if len(self._fitting) > _REMEMBERED:
                self._fitting.clear()
            line = self._lines.peek(ahead) or ""
            try:
                self._fitting[pair] = len(self._attempt(line, index)) if line.strip() else 0
            except MisfitError:
                self._fitting[pair] = 0
        return self._fitting[pair]

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


def _is_visible(line: str) -> bool:
    return bool(TextReader(line).rest)


def form_in_text(reader: TextReader, number: int, word: str, line: int) -> str:
    """Return the text's form of a tree's word.

    Args:
        number: the word's number, from 1.
        line: its line in the file.

    Raises:
        MisfitError: the text has another word there.
    """
    form = reader.take(word)
    if form is None:
        raise MisfitError(line, partial(difference, reader, number, word))
    return form


def difference(reader: TextReader, number: int, word: str) -> str:
    """Describe the first word of a tree that the text lacks.

    Args:
        number: the word's number, from 1.
    """
    next_text = reader.rest.rstrip()[:_SHOWN]
    there = repr(next_text) if next_text else "no more words"
    return f"word {number} is '{word[:_SHOWN]}', and the text has {there} there"
