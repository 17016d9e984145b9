"""Constituency trees from bracketed files beside the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from fairseq_phrase.errors import UserError, at
from fairseq_phrase.parsers.base import FileParser, Unparsed, cut_at_white_space
from fairseq_phrase.syntax.alignment import TextReader
from fairseq_phrase.syntax.brackets import parse_brackets, unescaped
from fairseq_phrase.syntax.sentence import ParsedSentence, join_white_space
from fairseq_phrase.text import read_lines

#: Marks as the Penn Treebank's tokenizers write them, and what a text may have instead.
_MARKS = {
    "``": ('"', "“", "„", "«"), "''": ('"', "”", "“", "»"), "`": ("'", "‘", "‚"), "'": ("’", "‘"),
    "--": ("–", "—"), "...": ("…",),
}  # fmt: skip


class BracketFiles(FileParser):
    """``PREF.LANG.ptb`` beside the text ``PREF.LANG``: one line of brackets for each line of text.

    A line may have several trees, which are then joined under one extra root. The words are the trees'
    leaves, spelled as in the text: the file may have ``-LRB-`` for ``(``, and the treebank's quotation
    marks, dashes and ellipses for those of the text. A line without text has a line without brackets.
    """

    suffix = "ptb"
    version = "bracketed trees"
    fields: tuple[str, ...] = ("words", "tags", "spans")

    def read(self, path: Path, lines: Iterator[str]) -> Iterator[ParsedSentence | Unparsed]:
        """Read one line of brackets for each line of the text.

        Args:
            path: the file of brackets.
            lines: the text's lines.

        Yields:
            Each line's parse; :class:`Unparsed` if its brackets are malformed or its leaves do not
            spell the text.

        Raises:
            UserError: there are more or fewer lines of brackets than of text.
        """
        pairs = zip_longest(read_lines(path), lines)
        for number, (brackets, line) in enumerate(pairs, start=1):
            if line is None:
                raise UserError(f"{at(path, number)}: there are more trees here than lines of text")
            if brackets is None:
                raise UserError(
                    f"{path} has fewer trees than its text has lines: none is left for line {number}"
                )
            try:
                yield _parsed(brackets, line)
            except ValueError as error:
                yield Unparsed(f"{at(path, number)}: {error}", cut_at_white_space(line))


def _parsed(brackets: str, line: str) -> ParsedSentence:
    tree = parse_brackets(brackets)
    if line.strip() and not tree.words:
        raise ValueError(f"no tree for '{line.strip()[:60]}'")
    words, space_before = _spelled(tree.words, line)
    return ParsedSentence(words, space_before, tags=tree.tags, constituents=tree.tree)


def _spelled(leaves: Sequence[str], line: str) -> tuple[list[str], list[bool]]:
    """Find the leaves in the text.

    Returns:
        The words as the text spells them, and whether white space precedes each.

    Raises:
        ValueError: they do not spell the text.
    """
    reader = TextReader(line)
    words, space_before = [], []
    for number, leaf in enumerate(leaves, start=1):
        spelling = reader.take(leaf, unescaped(leaf), *_MARKS.get(leaf, ()))
        if spelling is None:
            found = "".join(reader.rest[:60].split(maxsplit=1)[:1])
            raise ValueError(
                f"word {number} is '{leaf[:60]}', and the text has "
                f"{repr(found) if found else 'no more words'} there"
            )
        words.append(join_white_space(spelling))
        space_before.append(reader.space_before)
    if rest := reader.rest.rstrip():
        raise ValueError(f"the text goes on after the last of {len(leaves)} words: '{rest[:60]}'")
    return words, space_before
