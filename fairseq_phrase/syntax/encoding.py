"""Sentences whose words are cut into subwords: the input of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fairseq_phrase.syntax.brackets import NO_TAG
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.sentence import Edge, ParsedSentence


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
            :class:`~fairseq_phrase.syntax.sentence.ParsedSentence`.
    """

    pieces: list[str]
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

        Before and after all words, they belong to no word. Between words, they belong to the word before
        them, as a sentence's words are together.

        Args:
            tokens: the index of the subword before which each stands, ascending, and the token.
        """
        if not tokens:
            return self
        count, pieces = len(self.pieces), list(self.pieces)
        for index, token in reversed(tokens):
            pieces.insert(index, token)
        indices = [index for index, _ in tokens]
        owners = [self.words[index - 1] if 0 < index < count else -1 for index in indices]
        return replace(self, pieces=pieces, words=np.insert(self.words, indices, owners))


def encode_words(sentence: ParsedSentence, cut: Sequence[Sequence[str]]) -> EncodedSentence:
    """Encode a sentence whose words are cut into subwords.

    Unary chains of constituents are collapsed. A word of several subwords becomes a constituent with its
    part of speech as the label; it is below other constituents over the same word
    (``docs/models/tree_attention.md``, "Trees"). A word without subwords (for example, a zero-width
    space) is removed from the trees, with its edges in graphs, so that every word has a subword.
    """
    if not all(cut):
        sentence = sentence.restricted_to(np.array([bool(pieces) for pieces in cut], dtype=bool))
        cut = [pieces for pieces in cut if pieces]
    constituents = None
    if sentence.constituents is not None:
        constituents = _with_split_words(sentence.constituents.collapsed(), cut, sentence.tags)
    return EncodedSentence(
        [piece for pieces in cut for piece in pieces],
        words_of_subwords([len(pieces) for pieces in cut]),
        None if sentence.tree is None else sentence.tree.heads,
        sentence.deprels,
        sentence.tags,
        None if constituents is None else constituents.spans,
        [] if constituents is None else constituents.labels,
        sentence.features,
        sentence.edges,
        sentence.lost_edges,
    )


def _with_split_words(
    tree: ConstituencyTree, cut: Sequence[Sequence[str]], tags: Sequence[str]
) -> ConstituencyTree:
    """Add a constituent over each word of several subwords."""
    split = [word for word, pieces in enumerate(cut) if len(pieces) > 1]
    spans = np.array(split, dtype=np.int64)[:, None] + np.array([0, 1])
    return tree.with_lower(spans, [tags[word] if tags else NO_TAG for word in split])


def words_of_subwords(subwords_per_word: Sequence[int] | np.ndarray) -> np.ndarray:
    """Number each subword with its word, from 0. Shape: ``(subwords,)``, int64.

    Args:
        subwords_per_word: how many subwords each word has. Shape: ``(words,)``, all at least 1.

    Raises:
        ValueError: a word has no subword.
    """
    counts = np.asarray(subwords_per_word, dtype=np.int64)
    if (counts < 1).any():
        raise ValueError(f"word {int((counts < 1).argmax())} has no subword (words count from 0)")
    return np.repeat(np.arange(len(counts)), counts)
