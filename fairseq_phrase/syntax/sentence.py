"""Parsed sentences: words and trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.dependency import DependencyTree


@dataclass(frozen=True)
class ParsedSentence:
    """The words of one line and, if the line was parsed, their trees.

    Attributes:
        words: the words' texts. No word is empty or contains white space. White space within a word is
            written as ``▁`` (U+2581), which SentencePiece cannot distinguish from a space either.
        space_before: whether white space (or the line's start) precedes each word.
        tree: the dependency tree over the words, or None.
        deprels: the relation of each word to its head; empty without a dependency tree.
        tags: the part of speech of each word; empty without tags.
        constituents: the constituency tree over the words, or None.
        features: other labels of each word, by field name.
    """

    words: list[str]
    space_before: list[bool]
    tree: DependencyTree | None = None
    deprels: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    constituents: ConstituencyTree | None = None
    features: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def joined(cls, parts: Sequence[ParsedSentence]) -> ParsedSentence:
        """Join the sentences of a line, which have trees of the same kinds, in order."""
        if len(parts) == 1:
            return parts[0]
        heads: list[int] = []
        for part in parts:
            if part.tree is not None:
                heads += (part.tree.heads + len(heads)).tolist()
        trees = [part.constituents for part in parts if part.constituents is not None]
        return cls(
            [word for part in parts for word in part.words],
            [space for part in parts for space in part.space_before],
            DependencyTree(heads) if parts[0].tree is not None else None,
            [label for part in parts for label in part.deprels],
            [tag for part in parts for tag in part.tags],
            ConstituencyTree.joined(trees) if trees else None,
            {
                name: [label for part in parts for label in part.features[name]]
                for name in parts[0].features
            },
        )

    def restricted_to(self, keep: np.ndarray) -> ParsedSentence:
        """Remove words; their dependents become dependents of the nearest kept ancestor.

        Args:
            keep: True for each word to keep. Shape: ``(words,)``, bool.
        """
        indices = np.flatnonzero(keep)
        return ParsedSentence(
            [self.words[i] for i in indices],
            [self.space_before[i] for i in indices],
            None if self.tree is None else self.tree.restricted_to(keep),
            [self.deprels[i] for i in indices] if self.deprels else [],
            [self.tags[i] for i in indices] if self.tags else [],
            None if self.constituents is None else self.constituents.restricted_to(keep),
            {name: [labels[i] for i in indices] for name, labels in self.features.items()},
        )


def join_white_space(text: str) -> str:
    """Write a token's inner white space as ``▁`` and remove it at the ends.

    Args:
        text: a token's text. Tokenizers may return tokens that contain or are white space.

    Returns:
        The text without white space; empty if it was only white space.
    """
    return "▁".join(text.split())
