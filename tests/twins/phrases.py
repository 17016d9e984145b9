"""What the phrases of one sentence are, by definition: the reference for the batched builders.

These functions take one sentence and are written to be read. The encoder builds the same
phrases for a whole padded batch on the device (:mod:`fairseq_phrase.methods.phrases.phrase_batch`), and
the tests hold the two against each other.

A *unit* is whatever phrases are made of: a token or a whole word. All indices are 0-based.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "chains_to_root",
    "dependency_phrases",
    "ngram_phrases",
    "phrase_tokens",
    "word_ngram_phrases",
]


def check_max_length(max_length: int) -> None:
    """Raise ``ValueError`` unless a phrase may have at least two units."""
    if max_length < 2:
        raise ValueError(
            f"phrases have at least 2 units, so the maximum phrase length must be 2 or more, "
            f"got {max_length}"
        )


def ngram_phrases(length: int, max_length: int) -> NDArray[np.int64]:
    """List every span of 2 to ``max_length`` adjacent units (eq. 1).

    Args:
        length: number of units in the sentence.
        max_length: most units in a phrase, k; larger than the sentence means all spans.

    Returns:
        Half-open spans ``[start, end)`` over units, the shorter ones first.
        Shape: (phrases, 2)

    Raises:
        ValueError: if ``max_length < 2`` or ``length < 0``.
    """
    check_max_length(max_length)
    if length < 0:
        raise ValueError(f"a sentence cannot have {length} units")
    spans = [
        (start, start + size)
        for size in range(2, min(max_length, length) + 1)
        for start in range(length - size + 1)
    ]
    return np.array(spans, dtype=np.int64).reshape(-1, 2)


def word_ngram_phrases(num_words: int, max_length: int) -> list[tuple[int, ...]]:
    """List the n-gram phrases over whole words: every single word, then every span of 2..k words.

    A single word becomes a phrase only where it has several subwords, which
    :func:`phrase_tokens` decides: it drops phrases of fewer than two tokens.

    Args:
        num_words: number of words in the sentence.
        max_length: most words in a phrase, k.

    Returns:
        Phrases as tuples of adjacent word indices.

    Raises:
        ValueError: if ``max_length < 2`` or ``num_words < 0``.
    """
    spans = ngram_phrases(num_words, max_length)
    return [(word,) for word in range(num_words)] + [
        tuple(range(start, end)) for start, end in spans.tolist()
    ]


def dependency_phrases(heads: ArrayLike, max_length: int) -> list[tuple[int, ...]]:
    """List the phrases of a dependency tree (eq. 8): its edges and, for k >= 3, its longer chains.

    A phrase of two words is one edge, head and dependent; one of three words is a chain
    head -> dependent -> dependent, and so on. Phrases need not be contiguous. They do not contain
    each other by accident: in a tree, a phrase is part of another only as a part of its chain.

    Args:
        heads: index of each word's head; the root is its own head.
            Shape: (words,)
        max_length: most words in a phrase, k.

    Returns:
        Phrases as sorted tuples of word indices, the shorter ones first.

    Raises:
        ValueError: if ``max_length < 2``, or if ``heads`` is no tree: an index outside the
            sentence, no root, or a cycle.
    """
    check_max_length(max_length)
    paths = chains_to_root(heads)
    return [
        tuple(sorted(path[:size]))
        for size in range(2, min(max_length, len(paths)) + 1)
        for path in paths
        if len(path) >= size
    ]


def chains_to_root(heads: ArrayLike) -> list[tuple[int, ...]]:
    """Follow the heads from each word up to its root.

    Args:
        heads: index of each word's head; a root is its own head.
            Shape: (words,)

    Returns:
        For each word the path ``(word, head, head of head, ..., root)``.

    Raises:
        ValueError: if a head lies outside the sentence or the heads run in a circle.
    """
    array = np.asarray(heads)
    if array.size == 0:
        return []
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f"heads must be one row of integers, got shape {array.shape} of {array.dtype}"
        )
    head_of: list[int] = array.tolist()
    for word, head in enumerate(head_of):
        if not 0 <= head < len(head_of):
            raise ValueError(
                f"word {word} has head {head}, but the sentence has {len(head_of)} words "
                f"(heads are 0-based and a root is its own head)"
            )
    paths = []
    for word in range(len(head_of)):
        path = [word]
        while head_of[path[-1]] != path[-1]:
            path.append(head_of[path[-1]])
            if len(path) > len(head_of):
                raise ValueError(f"the heads {head_of} run in a circle: word {word} has no root")
        paths.append(tuple(path))
    return paths


def phrase_tokens(phrases: Iterable[Sequence[int]], words: ArrayLike) -> list[tuple[int, ...]]:
    """Map phrases over words to the sets of tokens they cover.

    Two phrases with the same tokens are one, and a phrase of fewer than two tokens is none: it
    would be a second node for a token.

    Args:
        phrases: word indices of each phrase.
        words: index of the word each token belongs to, -1 for tokens of no word (end of sentence).
            Shape: (tokens,)

    Returns:
        Sorted tuples of token positions, in the order of ``phrases``, without repetition.

    Raises:
        ValueError: if a phrase names a word that has no token.
    """
    tokens_of: dict[int, list[int]] = {}
    for position, word in enumerate(np.asarray(words).tolist()):
        if word >= 0:
            tokens_of.setdefault(word, []).append(position)
    unique: dict[tuple[int, ...], None] = {}
    for phrase in phrases:
        missing = [word for word in phrase if word not in tokens_of]
        if missing:
            raise ValueError(
                f"phrase {tuple(phrase)} contains word {missing[0]}, which no token has"
            )
        tokens = tuple(sorted({token for word in phrase for token in tokens_of[word]}))
        if len(tokens) >= 2:
            unique[tokens] = None
    return list(unique)
