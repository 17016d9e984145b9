"""A sentence whose words are cut into subwords, as a model takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fairseq_phrase.syntax.alignment import words_of_subwords
from fairseq_phrase.syntax.brackets import NO_TAG
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence


@dataclass(frozen=True)
class EncodedSentence:
    """A source line as the model takes it.

    Attributes:
        pieces: its subwords.
        words: the word of each subword. Shape: ``(subwords,)``, word indices from 0.
        heads: the head of each word, the root its own; None without a parse. Shape: ``(words,)``,
            word indices from 0.
        deprels: the relation of each word to its head.
        tags: the part of speech of each word.
        spans: the words of each constituent, children before parents; None without constituents.
            Shape: ``(constituents, 2)``, half-open, word indices from 0.
        span_labels: the constituents' labels.
        features: further labels of each word, by the name of their field.
    """

    pieces: list[str]
    words: np.ndarray
    heads: np.ndarray | None
    deprels: list[str]
    tags: list[str]
    spans: np.ndarray | None
    span_labels: list[str]
    features: dict[str, list[str]] = field(default_factory=dict)

    @property
    def num_words(self) -> int:
        """The number of words, each of which has a subword."""
        return int(self.words[-1]) + 1 if len(self.words) else 0


def encode_words(sentence: ParsedSentence, cut: Sequence[Sequence[str]]) -> EncodedSentence:
    """Encode a sentence whose words are cut into subwords.

    Unary chains of constituents are collapsed, and a word of several subwords becomes a constituent
    of its own, labelled with its part of speech, below those that are over it alone
    (``docs/tree_attention.md``, "Trees"). Words of which the subword model leaves nothing (a
    zero-width space alone) leave the trees, so that every word has a subword.

    Args:
        sentence: the sentence.
        cut: the subwords of each word.
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
    )


def _with_split_words(
    tree: ConstituencyTree, cut: Sequence[Sequence[str]], tags: Sequence[str]
) -> ConstituencyTree:
    """Add a constituent over each word of several subwords."""
    split = [word for word, pieces in enumerate(cut) if len(pieces) > 1]
    spans = np.array(split, dtype=np.int64)[:, None] + np.array([0, 1])
    return tree.with_lower(spans, [tags[word] if tags else NO_TAG for word in split])
