"""Phrases with marked heads, from which both trees of a sentence are derived.

A grammar builds one structure: a constituent whose children have relations, exactly one of them
``head``. The brackets are this structure; the dependency tree follows from its heads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

HEAD = "head"

# Universal parts of speech of the STTS (German) and Penn Treebank (English) tags in use.
UNIVERSAL_TAGS = {
    "ART DT PDAT PIAT PPOSAT": "DET",
    "NN NNS": "NOUN",
    "NE NNP": "PROPN",
    "ADJA ADJD JJ": "ADJ",
    "ADV RB PWAV WRB": "ADV",
    "APPR APPRART IN PTKVZ RP": "ADP",
    "VVFIN VVINF VVPP VVIZU VB VBZ VBP VBD VBN VBG": "VERB",
    "VAFIN VAINF VAPP VMFIN MD": "AUX",
    "KOUS": "SCONJ",
    "KON CC": "CCONJ",
    "PRELS PPER PRP PRP$ WDT WP": "PRON",
    "PTKNEG PTKZU TO POS": "PART",
    "CARD CD": "NUM",
    "$, $. , .": "PUNCT",
}
_UPOS = {xpos: upos for group, upos in UNIVERSAL_TAGS.items() for xpos in group.split()}


@dataclass(eq=False)
class Leaf:
    """One word of a sentence.

    Attributes:
        xpos: its tag in the tag set of the language, the preterminal of the brackets.
        upos: its universal part of speech; derived from ``xpos`` if empty.
        space_after: whether a space follows it in the text.
        clings_to: the word to which it attaches without a space (can + not).
    """

    word: str
    xpos: str
    lemma: str = ""
    upos: str = ""
    space_after: bool = True
    clings_to: str = ""

    def __post_init__(self) -> None:
        self.lemma = self.lemma or self.word
        self.upos = self.upos or _UPOS[self.xpos]


class Child(NamedTuple):
    """A part of a phrase.

    Attributes:
        relation: its dependency relation, or ``head``.
        of: the word on which it depends, if that is not the head of the phrase that contains it.
    """

    relation: str
    node: Node
    of: Leaf | None = None


@dataclass(eq=False)
class Phrase:
    """A constituent: a label and children, exactly one of which is the head."""

    label: str
    children: list[Child]

    @property
    def head(self) -> Node:
        """The head child."""
        return next(child.node for child in self.children if child.relation == HEAD)


Node = Leaf | Phrase


def phrase(label: str, *children: Child | tuple[str, Node]) -> Phrase:
    """Build a constituent.

    Raises:
        ValueError: the children do not include exactly one head.
    """
    parts = [Child(*child) for child in children]
    relations = [part.relation for part in parts]
    if relations.count(HEAD) != 1:
        raise ValueError(f"a {label} needs exactly one child related as 'head', got {relations}")
    return Phrase(label, parts)


# The relation of a word in determiner position, by its tag; "det" for other tags.
DETERMINER_RELATIONS = {
    "PPOSAT": "det:poss", "PRP$": "nmod:poss", "CARD": "nummod", "CD": "nummod", "JJ": "amod",
}  # fmt: skip


def lexical_head(node: Node) -> Leaf:
    """Follow the heads down to a word."""
    while isinstance(node, Phrase):
        node = node.head
    return node


@dataclass(frozen=True)
class Sentence:
    """One side of a sentence pair, with both trees. All lists have one entry per word.

    Attributes:
        space_after: whether a space follows each word in ``text`` (False for the last word).
        heads: 0-based index of each word's head; the root is its own head.
        deprels: Universal Dependencies relation of each word to its head, ``root`` at the root.
        tags: universal parts of speech.
        xpos: tags in the tag set of the language (STTS, Penn Treebank).
        brackets: the constituency tree, ``(ROOT (S …))``, with ``words`` as its leaves.
    """

    words: tuple[str, ...]
    space_after: tuple[bool, ...]
    heads: tuple[int, ...]
    deprels: tuple[str, ...]
    tags: tuple[str, ...]
    xpos: tuple[str, ...]
    lemmas: tuple[str, ...]
    brackets: str = field(repr=False)

    @property
    def text(self) -> str:
        """The sentence as plain text."""
        pairs = zip(self.words, self.space_after, strict=True)
        return "".join(f"{word} " if space else word for word, space in pairs)


def read_off(root: Phrase) -> Sentence:
    """Turn a finished structure into a sentence: remove commas, capitalize, derive both trees."""
    leaves: list[Leaf] = []
    governors: dict[Leaf, tuple[Leaf, str]] = {}
    _collect(root, leaves, governors)
    leaves = _without_idle_commas(leaves)
    leaves[0].word = leaves[0].word[0].upper() + leaves[0].word[1:]
    for before, after in pairwise(leaves):
        if after.upos == "PUNCT" or after.xpos == "POS" or before.word == after.clings_to:
            before.space_after = False
    leaves[-1].space_after = False
    index = {leaf: position for position, leaf in enumerate(leaves)}
    # The root is the only word without a governor.
    edges = [governors.get(leaf, (leaf, "root")) for leaf in leaves]
    return Sentence(
        words=tuple(leaf.word for leaf in leaves),
        space_after=tuple(leaf.space_after for leaf in leaves),
        heads=tuple(index[governor] for governor, _ in edges),
        deprels=tuple(relation for _, relation in edges),
        tags=tuple(leaf.upos for leaf in leaves),
        xpos=tuple(leaf.xpos for leaf in leaves),
        lemmas=tuple(leaf.lemma for leaf in leaves),
        brackets=_bracketed(root, set(leaves)),
    )


def _collect(node: Phrase, leaves: list[Leaf], governors: dict[Leaf, tuple[Leaf, str]]) -> None:
    """Collect the words from left to right, and each word's governor and relation."""
    for relation, child, of in node.children:
        if relation != HEAD:
            governors[lexical_head(child)] = (of or lexical_head(node), relation)
        if isinstance(child, Phrase):
            _collect(child, leaves, governors)
        else:
            leaves.append(child)


def _without_idle_commas(leaves: list[Leaf]) -> list[Leaf]:
    """Remove commas at the start or before other punctuation.

    Every clause has commas around it, independent of its context.
    """
    remaining: list[Leaf] = []
    for leaf in reversed(leaves):
        if leaf.word == "," and remaining and remaining[-1].upos == "PUNCT":
            continue
        remaining.append(leaf)
    remaining.reverse()
    return remaining[1:] if remaining[0].word == "," else remaining


def _bracketed(node: Node, leaves: set[Leaf]) -> str:
    if isinstance(node, Leaf):
        return f"({node.xpos} {node.word})"
    inside = [
        _bracketed(child.node, leaves)
        for child in node.children
        if isinstance(child.node, Phrase) or child.node in leaves
    ]
    return f"({node.label} {' '.join(inside)})"
