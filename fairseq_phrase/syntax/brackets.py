"""Bracketed trees, ``(S (NP (DT the) (NN dog)) (VP (VBZ runs)))``, as the Penn Treebank writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fairseq_phrase.syntax.constituency import ROOT_LABEL, ConstituencyTree

#: The tag of a word without a preterminal.
NO_TAG = "X"
# White space outside ASCII is part of a word: a no-break space in "10 000".
_TOKEN = re.compile(r"[()]|[^() \t\n\r\f\v]+")
_EMPTY_ELEMENT = "-NONE-"
_ESCAPES = {
    "-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}",
    r"\/": "/", r"\*": "*",
}  # fmt: skip
_ESCAPE = re.compile("|".join(map(re.escape, _ESCAPES)))


@dataclass(frozen=True)
class BracketedSentence:
    """The content of one line of brackets.

    Attributes:
        words: the leaves as they are written, with escapes.
        tags: their preterminals; :data:`NO_TAG` for a word without one.
        tree: the constituents, including unary chains. Several trees are joined under one extra root.
    """

    words: list[str]
    tags: list[str]
    tree: ConstituencyTree


@dataclass
class _Node:
    """A bracket that is not closed yet.

    Attributes:
        column: its column in the line, from 1.
        start: its first word, from 0.
        label: its label; empty until the label is read.
        leaves: the words directly below it, from 0.
        is_empty: whether nothing is below it, not even an empty element.
        parts: how many of its children have words.
    """

    column: int
    start: int
    label: str = ""
    leaves: list[int] = field(default_factory=list)
    is_empty: bool = True
    parts: int = 0


def parse_brackets(line: str, *, keep_functions: bool = False) -> BracketedSentence:
    """Read the tree or trees on a line.

    Empty elements (``-NONE-``), and constituents that contain only empty elements, are left out. An
    outermost bracket without a label is removed. Function tags and indices are removed: ``NP-SBJ-1``
    becomes ``NP``. A node over a single word is its preterminal, so its label is the word's tag.

    Args:
        line: brackets and words; an empty line has no tree.
        keep_functions: keep function tags and indices in the labels.

    Raises:
        ValueError: the brackets are not balanced, a tree is empty, a word is outside all brackets, an
            inner node has no label, or a label contains white space. The message has the column.
    """
    reader = _Reader(keep_functions)
    is_label = False
    for match in _TOKEN.finditer(line):
        token, column = match.group(), match.start() + 1
        if token == "(":
            reader.open(column)
        elif token == ")":
            reader.close(column)
        elif is_label:
            reader.label(token, column)
        else:
            reader.word(token, column)
        is_label = token == "("
    return reader.finished()


class _Reader:
    """Build a sentence from brackets and words, which come one after the other."""

    def __init__(self, keep_functions: bool):
        self._keep_functions = keep_functions
        self._words: list[str] = []
        self._tags: list[str] = []
        self._spans: list[tuple[int, int]] = []
        self._labels: list[str] = []
        # The open brackets; the first one represents the line.
        self._nodes = [_Node(0, 0)]

    def open(self, column: int) -> None:
        self._nodes.append(_Node(column, len(self._words)))

    def label(self, label: str, column: int) -> None:
        if label.split() != [label]:
            raise ValueError(f"column {column}: the label '{label}' contains white space")
        self._nodes[-1].label = label

    def word(self, word: str, column: int) -> None:
        if len(self._nodes) == 1:
            raise ValueError(f"column {column}: '{word}' is outside all brackets")
        node = self._nodes[-1]
        node.leaves.append(len(self._words))
        node.is_empty = False
        node.parts += 1
        self._words.append(word)
        self._tags.append(NO_TAG)

    def close(self, column: int) -> None:
        if len(self._nodes) == 1:
            raise ValueError(f"column {column}: a closing bracket without an opening one")
        node = self._nodes.pop()
        parent = self._nodes[-1]
        if node.is_empty:
            raise ValueError(f"column {node.column}: an empty tree, expected words in it")
        parent.is_empty = False
        if not node.label:
            if len(self._nodes) > 1:
                raise ValueError(f"column {node.column}: an inner node without a label")
            parent.parts += node.parts
            return
        if node.label == _EMPTY_ELEMENT and node.parts == len(node.leaves):
            del self._words[node.start :], self._tags[node.start :]
        if len(self._words) == node.start:
            return
        parent.parts += 1
        label = node.label if self._keep_functions else _without_functions(node.label)
        if node.parts == len(node.leaves) == 1:
            self._tags[node.leaves[0]] = label
        else:
            self._spans.append((node.start, len(self._words)))
            self._labels.append(label)

    def finished(self) -> BracketedSentence:
        if len(self._nodes) > 1:
            raise ValueError(f"column {self._nodes[-1].column}: this bracket is never closed")
        count = len(self._words)
        if self._nodes[0].parts > 1:
            self._spans.append((0, count))
            self._labels.append(ROOT_LABEL)
        tree = ConstituencyTree(self._spans, self._labels, count)
        return BracketedSentence(self._words, self._tags, tree)


def _without_functions(label: str) -> str:
    """Cut ``NP-SBJ-1``, ``NP=2`` and ``ADVP|PRT`` to their first part; keep labels like ``-LRB-``."""
    return label if label.startswith("-") else re.split(r"[-=|]", label, maxsplit=1)[0] or label


def one_line_each(lines: Iterable[str]) -> Iterator[str]:
    """Join trees that extend over several lines, as in the Penn Treebank's ``.mrg`` files.

    Args:
        lines: lines of brackets. A tree starts with a bracket at the start of a line; lines that
            start with white space continue the tree.

    Yields:
        Each tree on one line.
    """
    tree: list[str] = []
    for line in lines:
        if line.startswith("(") and tree:
            yield " ".join(tree)
            tree = []
        tree += line.split()
    if tree:
        yield " ".join(tree)


def unescaped(word: str) -> str:
    r"""Return the text of a leaf: ``-LRB-`` becomes ``(``, ``\/`` becomes ``/``, ``\*`` becomes ``*``."""
    return _ESCAPE.sub(lambda escape: _ESCAPES[escape[0]], word)
