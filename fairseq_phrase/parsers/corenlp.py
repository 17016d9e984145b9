"""Trees from files of Stanford CoreNLP next to the text."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_phrase.errors import UserError, location
from fairseq_phrase.parsers.tree_files import MisfitError, Tree, TreeFiles, form_in_text
from fairseq_phrase.syntax.alignment import TextReader
from fairseq_phrase.syntax.brackets import parse_brackets
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence, join_white_space
from fairseq_phrase.text import read_lines

BLOCK = 4096  # lines
_SEPARATOR = re.compile(r"[\s,]*")
_LIST = re.compile(r'\s*\{(.*?)"sentences"\s*:\s*\[', re.DOTALL)
_FIELDS = {"dependencies": ("heads", "deprels"), "constituents": ("spans",)}


class CoreNlpFiles(TreeFiles):
    """CoreNLP's JSON next to the text: ``PREF.LANG.json``. The dependencies are its basic ones.

    Args:
        trees: ``dependencies`` or ``constituents`` to read only these.

    Raises:
        UserError: the trees are neither.
    """

    suffix = "json"
    version = "CoreNLP"

    def __init__(self, trees: str | None = None) -> None:
        if trees is not None and trees not in _FIELDS:
            raise UserError(f"--parser corenlp:{trees}: expected dependencies or constituents")
        self._trees = list(_FIELDS) if trees is None else [trees]
        self.fields: tuple[str, ...] = ("words", "tags")
        self.fields += tuple(field for name in self._trees for field in _FIELDS[name])

    def trees(self, path: Path) -> Iterator[Tree]:
        """Yield the sentences of a file."""
        for sentence in _from_json(path):
            sentence.trees = self._trees
            yield sentence


@dataclass
class _Sentence:
    """A sentence of CoreNLP.

    Attributes:
        brackets: its constituents; empty if CoreNLP made none.
        edges: the head (0 for a root), dependent and relation of each edge; words from 1.
        trees: which trees are read.
    """

    line: int
    words: list[str]
    tags: list[str]
    brackets: str
    edges: list[tuple[int, int, str]]
    trees: Collection[str] = ()

    def spelled(self, reader: TextReader) -> ParsedSentence:
        """Return the sentence with the text's forms of its words."""
        words, space_before = [], []
        for number, word in enumerate(self.words, start=1):
            words.append(join_white_space(form_in_text(reader, number, word, self.line)) or "_")
            space_before.append(reader.space_before)
        heads = deprels = tree = None
        if "dependencies" in self.trees:
            heads, deprels = self._dependencies()
        if "constituents" in self.trees:
            tree = self._constituents()
        tags = [join_white_space(tag) or "X" for tag in self.tags]
        return ParsedSentence(
            words, space_before, tree=heads, deprels=deprels or [], tags=tags, constituents=tree
        )

    def _dependencies(self) -> tuple[DependencyTree, list[str]]:
        count = len(self.words)
        heads, deprels = [-1] * count, [""] * count
        for head, dependent, relation in self.edges:
            if not (0 <= head <= count and 1 <= dependent <= count and head != dependent):
                raise MisfitError(
                    self.line,
                    f"an edge from word {head} to word {dependent}, and the sentence has {count} words",
                )
            heads[dependent - 1] = (head or dependent) - 1
            deprels[dependent - 1] = join_white_space(relation) or "dep"
        if -1 in heads:
            raise MisfitError(
                self.line,
                f"word {heads.index(-1) + 1} has no head: run CoreNLP with -annotators "
                "tokenize,pos,depparse, or give --parser corenlp:constituents",
            )
        try:
            return DependencyTree(heads), deprels
        except ValueError as error:
            raise MisfitError(self.line, str(error)) from None

    def _constituents(self) -> ConstituencyTree:
        try:
            content = parse_brackets(self.brackets)
        except ValueError as error:
            raise MisfitError(self.line, f"the constituents: {error}") from None
        if len(content.words) != len(self.words):
            raise MisfitError(
                self.line,
                f"{len(self.words)} words, and constituents of {len(content.words)}: run CoreNLP with "
                "-annotators tokenize,pos,parse, or give --parser corenlp:dependencies",
            )
        return content.tree


def _from_json(path: Path) -> Iterator[_Sentence]:
    for line, item in _json_objects(path):
        try:
            tokens = sorted(item["tokens"], key=lambda token: token["index"])
            edges = [
                (edge["governor"], edge["dependent"], edge["dep"])
                for edge in item.get("basicDependencies", ())
            ]
            yield _Sentence(
                line,
                [token.get("originalText") or token["word"] for token in tokens],
                [token.get("pos") or "" for token in tokens],
                item.get("parse") or "",
                edges,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{location(path, line)}: not a sentence of CoreNLP's JSON ({error!r})"
            ) from None


def _json_objects(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the sentences of a JSON document and their lines, without reading the whole document."""
    decoder, lines = json.JSONDecoder(), read_lines(path)
    text, start, line, size, begun = "", 0, 1, BLOCK, False
    while True:
        # Keep what is not read yet: the beginning of a sentence that goes on in the next block.
        block = list(itertools.islice(lines, size))
        text, start = text[start:] + "".join(f"{part}\n" for part in block), 0
        if not begun and (opening := _LIST.match(text)) is not None:
            begun, start = True, opening.end()
            line += text.count("\n", 0, start)
        while begun:
            first = _SEPARATOR.match(text, start).end()  # type: ignore[union-attr]
            if text.startswith("]", first):
                return
            try:
                value, end = decoder.raw_decode(text, first)
            except json.JSONDecodeError:
                break
            yield line + text.count("\n", start, first), value
            line, start = line + text.count("\n", start, end), end
        if not block:
            raise UserError(
                f"{location(path, line)}: CoreNLP's JSON list of sentences ends here, or none is there"
            )
        size *= 2 if start == 0 else 1
