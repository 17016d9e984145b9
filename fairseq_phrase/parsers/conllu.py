"""Dependency trees from CoNLL-U files beside the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from fairseq_phrase.errors import UserError, at
from fairseq_phrase.parsers.base import FileParser
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence, join_white_space
from fairseq_phrase.text import read_lines

_COLUMNS = 10
_RANGE = re.compile(r"([1-9][0-9]*)-([1-9][0-9]*)", re.ASCII)
_EMPTY_NODE = re.compile(r"[0-9]+\.[1-9][0-9]*", re.ASCII)
_HEAD = re.compile(r"0|[1-9][0-9]*", re.ASCII)
_Row = tuple[int, list[str]]  # a line's number and its columns


class ConlluFiles(FileParser):
    """``PREF.LANG.conllu`` beside the text ``PREF.LANG``: one CoNLL-U sentence for each line.

    The words are CoNLL-U's syntactic words (German ``zum`` is ``zu dem``), which are what its trees
    are over. A line without text has no CoNLL-U sentence.
    """

    suffix = "conllu"
    version = "CoNLL-U"
    fields: tuple[str, ...] = ("words", "heads", "deprels", "tags")

    def read(self, path: Path, lines: Iterator[str]) -> Iterator[ParsedSentence]:
        """Read one sentence for each line of the text.

        Args:
            path: the CoNLL-U file.
            lines: the text's lines.

        Raises:
            UserError: a sentence is malformed (columns, cycle, several roots, head out of range),
                does not spell its line, or there are more or fewer sentences than lines.
        """
        blocks = _blocks(path)
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                yield ParsedSentence([], [], DependencyTree([]))
                continue
            try:
                block = next(blocks)
            except StopIteration:
                raise UserError(
                    f"{path} has fewer sentences than its text has lines: none is left for "
                    f"line {number}"
                ) from None
            sentence, surface = _sentence(path, block)
            if surface != "".join(line.split()):
                raise UserError(
                    f"{at(path, block[0][0])}: this sentence is not line {number} of the text: "
                    f"expected '{line.strip()[:60]}', found '{surface[:60]}'"
                )
            yield sentence
        extra = next(blocks, None)
        if extra is not None:
            raise UserError(
                f"{at(path, extra[0][0])}: there are more sentences here than lines in the text"
            )


def _blocks(path: Path) -> Iterator[list[_Row]]:
    """Yield each sentence's lines as their numbers and columns, comments left out."""
    block: list[_Row] = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            if block:
                yield block
            block = []
        elif not line.startswith("#"):
            columns = line.split("\t")
            if len(columns) != _COLUMNS:
                raise UserError(
                    f"{at(path, number)}: expected {_COLUMNS} columns with tabs between them, "
                    f"found {len(columns)}"
                )
            block.append((number, columns))
    if block:
        yield block


def _sentence(path: Path, block: list[_Row]) -> tuple[ParsedSentence, str]:
    """Convert one sentence; also return its text without white space."""
    words: list[str] = []
    space_before, heads, deprels, tags, surface = [], [], [], [], []
    space = True
    # The surface token of several words (German zum is zu dem) that was last seen, and whether
    # white space follows it.
    first = last = 0
    space_after_last = True
    for number, columns in block:
        identifier, form, _, upos, _, _, head, deprel, _, misc = columns
        if (surface_token := _RANGE.fullmatch(identifier)) is not None:
            first, last = int(surface_token[1]), int(surface_token[2])
            if first != len(words) + 1 or last < first:
                raise UserError(f"{at(path, number)}: {identifier} is not where its words are")
            surface.append(form)
            space_after_last = _space_after(misc)
            continue
        if _EMPTY_NODE.fullmatch(identifier):
            continue  # it is of the enhanced graph alone
        word = len(words) + 1
        if identifier != str(word):
            raise UserError(f"{at(path, number)}: expected word {word} next, found '{identifier}'")
        if word > last:
            surface.append(form)
        words.append(join_white_space(form) or "_")
        # Between the words of one surface token there is no space, but they are words of their own.
        space_before.append(space or first < word <= last)
        space = space_after_last if word == last else _space_after(misc)
        heads.append((number, head))
        deprels.append(join_white_space(deprel) or "dep")
        tags.append(join_white_space(upos) or "X")
    if last > len(words):
        raise UserError(
            f"{at(path, block[-1][0])}: word {len(words) + 1} of {first}-{last} is missing"
        )
    tree = _tree(path, block[0][0], heads)
    text = "".join("".join(form.split()) for form in surface)
    return ParsedSentence(words, space_before, tree, deprels, tags), text


def _space_after(misc: str) -> bool:
    return "SpaceAfter=No" not in misc.split("|")


def _tree(path: Path, start: int, heads: list[tuple[int, str]]) -> DependencyTree:
    """Build the tree of a sentence.

    Args:
        path: the file.
        start: the sentence's first line.
        heads: the line and the head column of each word.

    Raises:
        UserError: they are no tree with one root.
    """
    indices, root = [], 0
    for word, (number, head) in enumerate(heads, start=1):
        if not _HEAD.fullmatch(head):
            raise UserError(f"{at(path, number)}: word {word} has no head but '{head}'")
        if int(head) > len(heads):
            raise UserError(
                f"{at(path, number)}: word {word} has head {head}, and the sentence has "
                f"{len(heads)} words"
            )
        if int(head) == word:
            raise UserError(f"{at(path, number)}: word {word} is its own head; a root has head 0")
        if head == "0" and root:
            raise UserError(
                f"{at(path, number)}: this sentence has more than one root, words {root} and {word}"
            )
        root = word if head == "0" else root
        indices.append((int(head) or word) - 1)
    try:
        return DependencyTree(indices)
    except ValueError as error:
        raise UserError(f"{at(path, start)}: {error}") from None
