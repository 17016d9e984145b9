"""Parsed sentences: words, trees and graphs; and sentences whose words are split into subwords."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import NamedTuple

import numpy as np

from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.dependency import DependencyTree


class Edge(NamedTuple):
    """A labelled edge of a graph over words, which may have several heads.

    Attributes:
        head: word index, from 0.
        dependent: word index; for a root, the same as ``head``.
    """

    head: int
    dependent: int
    label: str


class Expansion(NamedTuple):
    """A surface token's words if they do not spell it: ``zum``, ``zu dem``."""

    token: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class ParsedSentence:
    """The words of one line and, if the line was parsed, their trees.

    Attributes:
        words: the words' texts. No word is empty or contains white space. White space within a word is
            written as ``▁`` (U+2581), which SentencePiece cannot distinguish from a space either.
        space_before: whether white space (or the line's start) precedes each word.
        deprels: the relation of each word to its head; empty without a dependency tree.
        tags: the part of speech of each word; empty without tags.
        features: other labels of each word, by field name.
        edges: graphs over the words, by field name.
        lost_edges: how many edges were removed with their words, for messages.
        expansions: the words that the text does not spell, for messages.
    """

    words: list[str]
    space_before: list[bool]
    _: KW_ONLY
    tree: DependencyTree | None = None
    deprels: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    constituents: ConstituencyTree | None = None
    features: dict[str, list[str]] = field(default_factory=dict)
    edges: dict[str, list[Edge]] = field(default_factory=dict)
    lost_edges: int = 0
    expansions: list[Expansion] = field(default_factory=list)

    @classmethod
    def joined(cls, parts: Sequence[ParsedSentence]) -> ParsedSentence:
        """Join the sentences of a line in order. They have trees of the same kinds."""
        if len(parts) == 1:
            return parts[0]
        heads: list[int] = []
        edges: dict[str, list[Edge]] = {name: [] for name in parts[0].edges}
        start = 0
        for part in parts:
            if part.tree is not None:
                heads += (part.tree.heads + start).tolist()
            for name, graph in part.edges.items():
                edges[name] += [Edge(e.head + start, e.dependent + start, e.label) for e in graph]
            start += len(part.words)
        trees = [part.constituents for part in parts if part.constituents is not None]
        return cls(
            [word for part in parts for word in part.words],
            [space for part in parts for space in part.space_before],
            tree=DependencyTree(heads) if parts[0].tree is not None else None,
            deprels=[label for part in parts for label in part.deprels],
            tags=[tag for part in parts for tag in part.tags],
            constituents=ConstituencyTree.joined(trees) if trees else None,
            features={
                name: [label for part in parts for label in part.features[name]]
                for name in parts[0].features
            },
            edges=edges,
            lost_edges=sum(part.lost_edges for part in parts),
            expansions=[expansion for part in parts for expansion in part.expansions],
        )

    def restricted_to(self, keep: np.ndarray) -> ParsedSentence:
        """Remove words; their dependents become dependents of the nearest kept ancestor.

        Graph edges at a removed word are removed and counted in ``lost_edges``.

        Args:
            keep: True for each word to keep. Shape: ``(words,)``, bool.
        """
        indices = np.flatnonzero(keep)
        new = np.cumsum(keep) - 1
        edges = {
            name: [
                Edge(int(new[e.head]), int(new[e.dependent]), e.label)
                for e in graph
                if keep[e.head] and keep[e.dependent]
            ]
            for name, graph in self.edges.items()
        }
        lost = sum(len(graph) - len(edges[name]) for name, graph in self.edges.items())
        return ParsedSentence(
            [self.words[i] for i in indices],
            [self.space_before[i] for i in indices],
            tree=None if self.tree is None else self.tree.restricted_to(keep),
            deprels=[self.deprels[i] for i in indices] if self.deprels else [],
            tags=[self.tags[i] for i in indices] if self.tags else [],
            constituents=None
            if self.constituents is None
            else self.constituents.restricted_to(keep),
            features={name: [labels[i] for i in indices] for name, labels in self.features.items()},
            edges=edges,
            lost_edges=self.lost_edges + lost,
            expansions=self.expansions,
        )


@dataclass(frozen=True)
class Unparsed:
    """A line without a usable parse; ``--on-error`` decides how it is treated.

    Attributes:
        reason: a description of the error, with the line of the parse file if there is one, and the
            expected and the found text.
        sentence: the line's words, if they are known, without trees.
    """

    reason: str
    sentence: ParsedSentence


@dataclass(frozen=True)
class EncodedSentence:
    """A source line as the input of a model.

    Attributes:
        words: the word of each subword; -1 for a protected token. Shape: ``(subwords,)``, word indices
            from 0.
        heads: the head of each word; the root is its own head; None without a parse.
            Shape: ``(words,)``, word indices from 0.
        spans: the words of each constituent, children before parents; None without constituents.
            Shape: ``(constituents, 2)``, half-open, word indices from 0.
        deprels, tags, features, edges, lost_edges: as in
            :class:`ParsedSentence`.
    """

    subwords: list[str]
    words: np.ndarray
    heads: np.ndarray | None
    deprels: list[str]
    tags: list[str]
    spans: np.ndarray | None
    span_labels: list[str]
    features: dict[str, list[str]] = field(default_factory=dict)
    edges: dict[str, list[Edge]] = field(default_factory=dict)
    lost_edges: int = 0

    @property
    def num_words(self) -> int:
        """The number of words; each has at least one subword."""
        return int(self.words.max(initial=-1)) + 1

    def with_tokens(self, tokens: Sequence[tuple[int, str]]) -> EncodedSentence:
        """Add tokens that are not part of the trees.

        Before and after all words, they belong to no word. Between words, they belong to the preceding
        word, because the words of a sentence are contiguous.

        Args:
            tokens: for each token, in ascending order, the index of the next subword, and the token.
        """
        if not tokens:
            return self
        count, subwords = len(self.subwords), list(self.subwords)
        for index, token in reversed(tokens):
            subwords.insert(index, token)
        indices = [index for index, _ in tokens]
        owners = [self.words[index - 1] if 0 < index < count else -1 for index in indices]
        return replace(self, subwords=subwords, words=np.insert(self.words, indices, owners))


def join_white_space(text: str) -> str:
    """Write a token's inner white space as ``▁`` and remove it at the ends. The result may be empty.

    Args:
        text: a token's text. Tokenizers may return tokens that contain or are white space.
    """
    return "▁".join(text.split())
