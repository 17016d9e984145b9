"""Bracketed trees, ``(S (NP (DT the) (NN dog)) (VP (VBZ runs)))``, as the Penn Treebank writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fairseq_phrase.syntax.constituency import ROOT_LABEL, ConstituencyTree
from fairseq_phrase.syntax.spellings import TREEBANK_ESCAPES

#: It may start every file of several that are joined.
BYTE_ORDER_MARK = "\N{BYTE ORDER MARK}"
#: The tag of a word without a preterminal.
NO_TAG = "X"
# White space outside ASCII is part of a word: a no-break space in "10 000".
# NEGRA's tag of brackets and dashes is "$(", and its word may be a bracket: "($( ()", as in "(-LRB- ()".
_BRACKET_OR_WORD = (
    r"(?P<leaf>(?:(?<=\(\$\([ \t])|(?<=\(-[LR]RB-[ \t]))[()](?=\)))"
    r"|(?<=\()\$\([^() \t\n\r\f\v]*(?=[ \t])|[()]|(?:%s[^() \t\n\r\f\v])+"
)
_TOKEN = re.compile(_BRACKET_OR_WORD % "")
# Of trees that cannot be read otherwise: "\(" is a word.
_TOKEN_OR_ESCAPED = re.compile(_BRACKET_OR_WORD % r"\\[()]|")
_MARKUP = re.compile(r"\s*<[^?()][^()]*>\s*")
# A tree of a historical corpus that has marks of its editors and no word.
_NO_WORDS = re.compile(r"\s*\(\s*(\((CODE|ID|METADATA) [^()]*\)\s*)+\)\s*")
_EMPTY_ELEMENT = "-NONE-"
# NEGRA's tags of punctuation may also have functions: "$,--".
_NEGRA_PUNCTUATION = frozenset({"$,", "$.", "$(", "$["})
#: A leaf that may be an empty element, in treebanks that do not tag it ``-NONE-``.
EMPTY_ELEMENT = re.compile(r"0|\*\S*")
# Brackets that contain one token, and brackets that contain several.
_ONE_TOKEN = re.compile(r"\(\s*[^()\s]+\s*\)")
_TOKENS = re.compile(r"\(\s*[^()\s]+\s+[^()]*[^()\s]\s*\)")
_ESCAPE = re.compile("|".join(map(re.escape, TREEBANK_ESCAPES)))


@dataclass(frozen=True)
class BracketedSentence:
    """The content of one line of brackets.

    Attributes:
        words: the leaves as they are written, with escapes.
        tags: their preterminals; :data:`NO_TAG` for a word without one.
        tree: the constituents, including unary chains. Several trees are joined under one extra root.
        offsets: the leaves' offsets in the text that was read.
    """

    words: list[str]
    tags: list[str]
    tree: ConstituencyTree
    offsets: list[int]


class BracketsError(ValueError):
    """Malformed brackets.

    Args:
        offset: the offset of the error, from 0.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"column {offset + 1}: {reason}")
        self.offset, self.reason = offset, reason


@dataclass
class _Node:
    """A bracket that is not closed yet.

    Attributes:
        start: its first word, from 0.
        label: empty until the label is read.
        leaves: the words directly below it, from 0.
        is_empty: whether nothing is below it, not even an empty element.
        parts: how many of its children have words.
        has_brackets: whether a bracket is directly below it.
    """

    offset: int
    start: int
    label: str = ""
    leaves: list[int] = field(default_factory=list)
    is_empty: bool = True
    parts: int = 0
    has_brackets: bool = False
    label_offset: int = 0


def parse_brackets(line: str) -> BracketedSentence:
    """Read the tree or trees on a line.

    Empty elements (``-NONE-``), and constituents that contain only empty elements, are left out. An
    outermost bracket without a label is removed. Function tags and indices are removed: ``NP-SBJ-1``
    becomes ``NP``. A node over a single word is its preterminal, so its label is the word's tag. If most
    innermost brackets have one token, each leaf has its own brackets: ``(NN (dog))``.

    Of historical corpora, marks of the editors, ``(CODE <P_1>)``, and a tree's identifier, ``(ID a,1)``,
    are left out. If the brackets do not match otherwise, ``\\(`` and ``\\)`` are words.

    Args:
        line: brackets and words; an empty line has no tree. It may contain line breaks.
    """
    try:
        return _parse(line, _TOKEN)
    except BracketsError:
        if r"\(" not in line and r"\)" not in line:
            raise
        return _parse(line, _TOKEN_OR_ESCAPED)


def _parse(line: str, token_pattern: re.Pattern[str]) -> BracketedSentence:
    single_tokens = len(_ONE_TOKEN.findall(line))
    reader = _Reader(bool(single_tokens) and single_tokens > len(_TOKENS.findall(line)))
    is_label = False
    for match in token_pattern.finditer(line):
        token, offset = match.group(), match.start()
        if match["leaf"]:
            reader.word(token, offset)
        elif token == "(":
            reader.open(offset)
        elif token == ")":
            reader.close(offset)
        elif is_label:
            reader.label(token, offset)
        else:
            reader.word(token, offset)
        is_label = token == "(" and not match["leaf"]
    return reader.finished()


class _Reader:
    """Build a sentence from brackets and words, which come one after the other."""

    def __init__(self, own_brackets: bool) -> None:
        self._own_brackets = own_brackets
        self._words: list[str] = []
        self._tags: list[str] = []
        self._offsets: list[int] = []
        self._spans: list[tuple[int, int]] = []
        self._labels: list[str] = []
        # The open brackets; the first one represents the line.
        self._nodes = [_Node(0, 0)]

    def open(self, offset: int) -> None:
        self._nodes[-1].has_brackets = True
        self._nodes.append(_Node(offset, len(self._words)))

    def label(self, label: str, offset: int) -> None:
        if label.split() != [label]:
            raise BracketsError(offset, f"the label '{label}' contains white space")
        self._nodes[-1].label, self._nodes[-1].label_offset = label, offset

    def word(self, word: str, offset: int, start: int | None = None) -> None:
        """Add a word before the words from index ``start`` on; by default at the end."""
        if len(self._nodes) == 1:
            raise BracketsError(offset, f"'{word}' is outside all brackets")
        node = self._nodes[-1]
        start = len(self._words) if start is None else start
        node.leaves.append(len(self._words))
        node.is_empty = False
        node.parts += 1
        self._words.insert(start, word)
        self._tags.append(NO_TAG)
        self._offsets.insert(start, offset)

    def close(self, offset: int) -> None:
        if len(self._nodes) == 1:
            raise BracketsError(offset, "a closing bracket without an opening one")
        node = self._nodes.pop()
        parent = self._nodes[-1]
        if self._is_leaf(node):
            parent.leaves += node.leaves
            parent.parts += node.parts
            self.word(node.label, node.label_offset, node.start)
            return
        if node.is_empty:
            after = f" or after {node.label}" if node.label else ""
            raise BracketsError(node.offset, f"an empty tree, expected words in it{after}")
        parent.is_empty = False
        if not node.label:
            if len(self._nodes) > 1:
                raise BracketsError(node.offset, "an inner node without a label")
            parent.parts += node.parts
            return
        if node.leaves and node.parts == len(node.leaves) and self._is_left_out(node):
            del self._words[node.start :], self._tags[node.start :], self._offsets[node.start :]
        if len(self._words) == node.start:
            return
        parent.parts += 1
        label = _without_functions(node.label)
        if node.parts == len(node.leaves) == 1:
            self._tags[node.leaves[0]] = label
        else:
            self._spans.append((node.start, len(self._words)))
            self._labels.append(label)

    def _is_leaf(self, node: _Node) -> bool:
        """Whether a bracket is a leaf's own: ``(dog)``, ``(New York)`` or an empty element ``(*)``."""
        if len(self._nodes) == 1 or node.has_brackets or node.label in ("", _EMPTY_ELEMENT):
            return False
        return self._own_brackets or (node.is_empty and bool(EMPTY_ELEMENT.fullmatch(node.label)))

    def _is_left_out(self, node: _Node) -> bool:
        """Whether a bracket over words is an empty element, or a mark or identifier of an editor."""
        if node.label == "CODE":
            return self._words[node.start][0] in "<{"
        is_below_top = len(self._nodes) == 2 and not self._nodes[1].label and node.start > 0
        return node.label == _EMPTY_ELEMENT or (node.label == "ID" and is_below_top)

    def finished(self) -> BracketedSentence:
        if len(self._nodes) > 1:
            raise BracketsError(self._nodes[-1].offset, "this bracket is never closed")
        count = len(self._words)
        if self._nodes[0].parts > 1:
            self._spans.append((0, count))
            self._labels.append(ROOT_LABEL)
        tree = ConstituencyTree(self._spans, self._labels, count)
        return BracketedSentence(self._words, self._tags, tree, self._offsets)


def _without_functions(label: str) -> str:
    """Keep the first part of a label.

    Functions and indices (``NP-SBJ-1``, ``NP=2``), other labels (``ADVP|PRT``) and SPMRL's features
    (``NC##lem=chat|g=m##``) are removed. Labels whose first part has no letter, such as ``-LRB-`` and
    the operators of code (``<=``, ``!=``), are kept unchanged.
    """
    label = label.partition("##")[0] or label
    first = re.split(r"[-=|]", label, maxsplit=1)[0]
    return first if first in _NEGRA_PUNCTUATION or any(map(str.isalpha, first)) else label


def tree_blocks(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Join the lines of trees that extend over several.

    Until its brackets are closed, a tree continues on blank lines and on lines that start with white
    space or a closing bracket. Lines of markup between trees (``<S ID=1>`` of the Chinese Treebank) and
    trees without words (``( (CODE <P_1>) (ID a,1))``) are left out.

    Yields:
        The number of the first line, from 1, and the tree or other content of the line.
    """
    block: list[str] = []
    first = depth = 0
    for number, line in enumerate(lines, start=1):
        line = line.removeprefix(BYTE_ORDER_MARK)
        # Trees of the Penn Treebank may have blank lines.
        continues = (
            block and depth > 0 and (not line.strip() or line[0].isspace() or line[0] == ")")
        )
        if not continues:
            yield from _tree(first, block)
            block, first, depth = [], number, 0
            if _MARKUP.fullmatch(line):
                continue
        if line.strip() or continues:
            block.append(line)
            brackets = line.replace(r"\(", "").replace(r"\)", "")
            depth += brackets.count("(") - brackets.count(")")
    yield from _tree(first, block)


def _tree(first: int, lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield a tree's first line and text, unless it has no words."""
    text = "\n".join(lines)
    if lines and not _NO_WORDS.fullmatch(text):
        yield first, text


def unescaped(word: str) -> str:
    r"""Return the text of a leaf: ``-LRB-`` becomes ``(``, ``\/`` becomes ``/``, ``\*`` becomes ``*``."""
    return _ESCAPE.sub(lambda escape: TREEBANK_ESCAPES[escape[0]], word)
