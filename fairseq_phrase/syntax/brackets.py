"""Bracketed trees, ``(S (NP (DT the) (NN dog)) (VP (VBZ runs)))``, as the Penn Treebank writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fairseq_phrase.syntax.constituency import ROOT_LABEL, ConstituencyTree

#: The tag of a word that has none of its own.
NO_TAG = "X"
_TOKEN = re.compile(r"[()]|[^()\s]+")
_EMPTY_ELEMENT = "-NONE-"
_ESCAPES = {
    "-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}",
}  # fmt: skip
_ESCAPED = {character: escape for escape, character in _ESCAPES.items()}


@dataclass(frozen=True)
class BracketedSentence:
    """What one line of brackets says.

    Attributes:
        words: the leaves, as they are written, escapes and all.
        tags: their preterminals; :data:`NO_TAG` where a word has none.
        tree: the constituents, unary chains and all; several trees hang under one extra root.
    """

    words: list[str]
    tags: list[str]
    tree: ConstituencyTree


@dataclass
class _Node:
    label: str
    start: int  # its first word
    column: int  # where its bracket stands in the line, from 1
    children: int = 0
    leaves: list[str] = field(default_factory=list)  # words directly below
    places: list[int] = field(default_factory=list)  # and which they are in the sentence


def parse_brackets(line: str, *, keep_functions: bool = False) -> BracketedSentence:
    """Read the tree or trees on a line.

    Empty elements (``-NONE-``) and constituents of nothing else are left out, an outermost bracket
    without a label is taken off, and function tags and indices go (``NP-SBJ-1`` is ``NP``). A node
    over a single word is its preterminal, so its label is the word's tag.

    Args:
        line: brackets and words.
        keep_functions: keep function tags and indices in the labels.

    Raises:
        ValueError: the brackets are not balanced, a tree is empty, a word stands outside all, or an
            inner node has no label.
    """
    words: list[str] = []
    tags: list[str] = []
    spans: list[tuple[int, int]] = []
    labels: list[str] = []
    open_nodes: list[_Node] = []
    trees = 0
    tokens = list(_tokens(line))
    for index, (token, column) in enumerate(tokens):
        if token == "(":
            if open_nodes:
                open_nodes[-1].children += 1
            else:
                trees += 1
            open_nodes.append(_Node("", len(words), column))
        elif token == ")":
            if not open_nodes:
                raise ValueError(f"column {column}: a closing bracket without an opening one")
            node = open_nodes.pop()
            if not node.children and not node.leaves:
                raise ValueError(f"column {node.column}: an empty tree, expected words in it")
            if not node.label:
                if open_nodes:
                    raise ValueError(f"column {node.column}: an inner node without a label")
                continue
            label = node.label if keep_functions else _without_functions(node.label)
            if len(node.leaves) == 1 and not node.children:
                if node.label == _EMPTY_ELEMENT:
                    words.pop()
                    tags.pop()
                else:
                    tags[node.places[0]] = label
            elif len(words) > node.start:
                spans.append((node.start, len(words)))
                labels.append(label)
        elif not open_nodes:
            raise ValueError(f"column {column}: '{token}' stands outside all brackets")
        elif tokens[index - 1][0] == "(":
            open_nodes[-1].label = token
        else:
            open_nodes[-1].leaves.append(token)
            open_nodes[-1].places.append(len(words))
            words.append(token)
            tags.append(NO_TAG)
    if open_nodes:
        raise ValueError(f"column {open_nodes[-1].column}: this bracket is never closed")
    if trees > 1 and words:
        spans.append((0, len(words)))
        labels.append(ROOT_LABEL)
    return BracketedSentence(words, tags, ConstituencyTree(spans, labels, len(words)))


def _tokens(line: str) -> Iterator[tuple[str, int]]:
    """Yield brackets and what stands between them, each with its column from 1."""
    for match in _TOKEN.finditer(line):
        yield match.group(), match.start() + 1


def _without_functions(label: str) -> str:
    """``NP-SBJ-1`` and ``NP=2`` to ``NP``; ``-LRB-`` and its like stay."""
    return label if label.startswith("-") else re.split(r"[-=|]", label, maxsplit=1)[0] or label


def unescaped(word: str) -> str:
    r"""Return the text of a leaf: ``-LRB-`` is ``(``, and PTB's ``\/`` and ``\*`` are plain."""
    return _ESCAPES.get(word, word.replace("\\/", "/").replace("\\*", "*"))


def escaped(word: str) -> str:
    """Return a word as a leaf: brackets within it become ``-LRB-`` and ``-RRB-``."""
    if word in _ESCAPED:
        return _ESCAPED[word]
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


def format_brackets(words: Sequence[str], tags: Sequence[str], tree: ConstituencyTree) -> str:
    """Write a sentence's tree or trees on one line; :func:`parse_brackets` reads it back.

    Args:
        words: the words; their brackets are escaped.
        tags: their tags.
        tree: the constituents over them.

    Raises:
        ValueError: there are more or fewer words or tags than the tree has.
    """
    if not len(words) == len(tags) == tree.num_words:
        raise ValueError(f"{len(words)} words and {len(tags)} tags for {tree.num_words} leaves")
    before = [""] * len(words)
    after = [""] * len(words)
    for (start, end), label in zip(tree.spans.tolist(), tree.labels, strict=True):
        before[start] = f"({escaped(label)} {before[start]}"  # parents come later, so outside
        after[end - 1] += ")"
    leaves = (
        f"{opening}({escaped(tag)} {escaped(word)}){closing}"
        for opening, tag, word, closing in zip(before, tags, words, after, strict=True)
    )
    return " ".join(leaves)
