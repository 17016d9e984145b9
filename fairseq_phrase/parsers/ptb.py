"""Constituency trees from bracketed files next to the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from fairseq_phrase.parsers.other_formats import refuse_other_trees
from fairseq_phrase.parsers.tree_files import (
    MisfitError,
    Tree,
    TreeFiles,
    difference,
)
from fairseq_phrase.syntax.alignment import TextReader
from fairseq_phrase.syntax.brackets import (
    EMPTY_ELEMENT,
    BracketedSentence,
    BracketsError,
    parse_brackets,
    tree_blocks,
)
from fairseq_phrase.syntax.sentence import ParsedSentence, join_white_space
from fairseq_phrase.text import read_lines

# Brackets that are probably part of a word: "like(d)", "()".
_IN_WORD = re.compile(r"[^\s()]\(|\(\)")


class BracketFiles(TreeFiles):
    """``PREF.LANG.ptb`` next to the text ``PREF.LANG``: one line of brackets for each line of text.

    A line may also have several trees, on one or several lines of the file. They are joined under one
    extra root. A tree may continue on indented lines. The words are the trees' leaves, spelled as in the
    text. The file may have empty elements (``*-1``, ``0``) that the text lacks, and lines of markup.
    """

    suffix = "ptb"
    version = "bracketed trees"
    fields: tuple[str, ...] = ("words", "tags", "spans")

    def trees(self, path: Path) -> Iterator[Tree]:
        """Yield the trees of a file; trees on one line are joined."""
        for number, text in tree_blocks(read_lines(path)):
            refuse_other_trees(path, number, text)
            yield Brackets(number, text)


@dataclass
class Brackets:
    """A tree, or several trees on one line."""

    line: int
    text: str

    @cached_property
    def _content(self) -> BracketedSentence | MisfitError:
        try:
            return parse_brackets(self.text)
        except BracketsError as error:
            line, column = self._position(error.offset)
            advice = "; brackets as words are -LRB- and -RRB-" if _IN_WORD.search(self.text) else ""
            return MisfitError(line, error.reason + advice, column)

    def _position(self, offset: int) -> tuple[int, int]:
        before = self.text[:offset]
        return self.line + before.count("\n"), offset - before.rfind("\n")

    def spelled(self, reader: TextReader) -> ParsedSentence:
        """Find the leaves in the text."""
        content = self._content
        if isinstance(content, MisfitError):
            raise content.with_traceback(None)
        words, space_before, keep = [], [], []
        for number, (leaf, offset) in enumerate(
            zip(content.words, content.offsets, strict=True), start=1
        ):
            form = reader.take(leaf)
            if form is None and not EMPTY_ELEMENT.fullmatch(leaf):
                line, column = self._position(offset)
                raise MisfitError(line, partial(difference, reader, number, leaf), column)
            keep.append(form is not None)
            words.append(join_white_space(form or leaf) or leaf)
            space_before.append(reader.space_before)
        sentence = ParsedSentence(words, space_before, tags=content.tags, constituents=content.tree)
        return sentence if all(keep) else sentence.restricted_to(np.array(keep, dtype=bool))
