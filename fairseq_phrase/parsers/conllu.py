"""Dependency trees from CoNLL-U files beside the text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairseq_phrase.errors import UserError, at
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence, join_white_space
from fairseq_phrase.text import read_lines

_COLUMNS = 10


class ConlluFiles:
    """``PREF.LANG.conllu`` beside the text ``PREF.LANG``: one CoNLL-U sentence for each line.

    The words are CoNLL-U's syntactic words (German ``zum`` is ``zu dem``), which are what its trees
    are over. A line without text has no CoNLL-U sentence.
    """

    suffix = "conllu"
    version = "CoNLL-U"
    fields = ("words", "heads", "deprels", "tags")

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
                start, block = next(blocks)
            except StopIteration:
                raise UserError(
                    f"{path} has fewer sentences than its text has lines: none is left for "
                    f"line {number}"
                ) from None
            sentence, surface = _sentence(path, start, block)
            if surface != "".join(line.split()):
                raise UserError(
                    f"{at(path, start)}: this sentence is not line {number} of the text: "
                    f"expected '{line.strip()[:60]}', found '{surface[:60]}'"
                )
            yield sentence
        extra = next(blocks, None)
        if extra is not None:
            raise UserError(
                f"{at(path, extra[0])}: there are more sentences here than lines in the text"
            )


def _blocks(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line's number and the lines of each sentence, comments left out."""
    start, block = 0, []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            if block:
                yield start, block
            block = []
        elif not line.startswith("#"):
            if not block:
                start = number
            columns = line.count("\t") + 1
            if columns != _COLUMNS:
                raise UserError(
                    f"{at(path, number)}: expected {_COLUMNS} columns with tabs between them, "
                    f"found {columns}"
                )
            block.append(line)
    if block:
        yield start, block


def _sentence(path: Path, start: int, block: list[str]) -> tuple[ParsedSentence, str]:
    """Convert one sentence; also return its text without white space."""
    import conllu

    try:
        tokens = conllu.parse("\n".join(block) + "\n\n")[0]
    except conllu.exceptions.ParseException as error:
        raise UserError(f"{at(path, start)}: {error}") from None
    words, space_before, heads, deprels, tags, surface = [], [], [], [], [], []
    space, covered_until = True, 0
    for token in tokens:
        identifier = token["id"]
        if isinstance(identifier, tuple):
            if identifier[1] == "-":  # a surface token of several words, 3-4
                surface.append(token["form"])
                covered_until = identifier[2]
            continue  # an empty node, 3.1, is of the enhanced graph alone
        if identifier != len(words) + 1:
            raise UserError(
                f"{at(path, start)}: expected word {len(words) + 1} next, found {identifier}"
            )
        if identifier > covered_until:
            surface.append(token["form"])
        words.append(join_white_space(token["form"]) or "_")
        # Between the words of one surface token there is no space, but they are words of their own.
        space_before.append(space or identifier <= covered_until)
        space = _space_after(token)
        heads.append(_head(path, start, token))
        deprels.append(join_white_space(token["deprel"] or "") or "dep")
        tags.append(join_white_space(token["upos"] or "") or "X")
    if sum(head == index for index, head in enumerate(heads)) > 1:
        raise UserError(f"{at(path, start)}: this sentence has more than one root")
    try:
        tree = DependencyTree(heads)
    except ValueError as error:
        raise UserError(f"{at(path, start)}: {error}") from None
    text = "".join("".join(form.split()) for form in surface)
    return ParsedSentence(words, space_before, tree, deprels, tags), text


def _space_after(token: Any) -> bool:
    return (token["misc"] or {}).get("SpaceAfter") != "No"


def _head(path: Path, start: int, token: Any) -> int:
    """Return a word's head as an index from 0, its own where it is the root."""
    if not isinstance(token["head"], int):
        raise UserError(f"{at(path, start)}: word {token['id']} has no head")
    if token["head"] == token["id"]:
        raise UserError(
            f"{at(path, start)}: word {token['id']} is its own head; a root has head 0"
        )
    return (token["head"] or token["id"]) - 1
