"""Phrases that are constituents of a parse, or the chunks among them."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fairseq_phrase.modules.parse_batch import ParseBatch
from fairseq_phrase.modules.phrases.phrase_batch import PhraseBatch
from fairseq_phrase.modules.phrases.sources.registry import (
    PhraseOptions,
    SourceTokens,
    check_max_length,
    listed_phrases,
    phrase_source,
)
from fairseq_phrase.modules.trees.tree_batch import TreeBatch


@phrase_source("constituency", fields=["words", "spans"])
def constituency(tokens: SourceTokens, parse: ParseBatch, options: PhraseOptions) -> PhraseBatch:
    """Every constituent of up to k words, and every word of several subwords."""
    return constituent_phrases(
        parse["words"], parse["spans"], tokens.padding_mask, options.phrase_max_length
    )


def constituent_phrases(
    words: Tensor, spans: Tensor, padding_mask: Tensor, max_length: int
) -> PhraseBatch:
    """Make a phrase of every constituent of up to k words and at least two tokens.

    Of several constituents with the same tokens, only one becomes a phrase.

    Args:
        words: 0-based index of the word each token belongs to, -1 at tokens of no word.
            Shape: (batch, tokens)
        spans: first word and one past the last of each constituent, children before parents, words
            of several subwords included; -1 at padding. Further columns are ignored.
            Shape: (batch, constituents, 2 or more)
        padding_mask: True at padded tokens. Shape: (batch, tokens)
        max_length: most words in a phrase, k.

    Raises:
        ValueError: if ``max_length < 2``, or the constituents are not trees over the words.
    """
    check_max_length(max_length)
    # Shape: (batch, constituents, 2)
    tokens = TreeBatch.from_words(words, spans, padding_mask).leaf_spans.cpu().numpy()
    of_words = spans.cpu().numpy()
    chosen = (tokens[..., 1] - tokens[..., 0] > 1) & (
        of_words[..., 1] - of_words[..., 0] <= max_length
    )
    # A constituent with the same tokens as another directly follows it.
    chosen[:, 1:] &= (tokens[:, 1:] != tokens[:, :-1]).any(2)
    # Chosen constituents to the front of their row. Shape of both: (batch, phrases)
    is_phrase = np.arange(chosen.sum(1).max(initial=0)) < chosen.sum(1)[:, None]
    starts, ends = np.full((2, *is_phrase.shape), -1)
    starts[is_phrase], ends[is_phrase] = tokens[chosen].T
    (batch, num_tokens), num_phrases = words.shape, is_phrase.shape[1]
    num_nodes = num_tokens + num_phrases
    columns = np.arange(num_tokens)
    member = (starts[..., None] <= columns) & (columns < ends[..., None])
    nested = (starts[:, :, None] <= starts[:, None]) & (ends[:, None] <= ends[:, :, None])
    nested &= is_phrase[:, :, None] & is_phrase[:, None]
    # Both directions, and every node with itself, padded ones too.
    contains = np.zeros((batch, num_nodes, num_nodes), dtype=bool)
    contains[:, num_tokens:, :num_tokens] = member
    contains[:, :num_tokens, num_tokens:] = member.swapaxes(1, 2)
    contains[:, num_tokens:, num_tokens:] = nested | nested.swapaxes(1, 2)
    contains.reshape(batch, -1)[:, :: num_nodes + 1] = True
    query, key = np.divmod(np.flatnonzero(contains), max(num_nodes, 1))
    key += query // max(num_nodes, 1) * num_nodes
    phrase, token = np.divmod(np.flatnonzero(member), max(num_tokens, 1))
    token += phrase // max(num_phrases, 1) * num_tokens

    return listed_phrases(padding_mask, ~is_phrase, query, key, phrase, token)


@phrase_source("chunk", fields=["words", "spans"])
def chunk(tokens: SourceTokens, parse: ParseBatch, options: PhraseOptions) -> Tensor:
    """Every constituent of several words that contains no other one; chunks do not overlap.

    ``phrase_max_length`` does not apply: the chunker decides how long a phrase is.
    """
    return chunk_members(parse["words"], parse["spans"])


def chunk_members(words: Tensor, spans: Tensor) -> Tensor:
    """Find the tokens of each chunk.

    In a tree made of chunk labels (``scripts/labelled_text.py``), chunks are the constituents below the
    root. In a parsed tree, they are the constituents of height one.

    Args:
        words: 0-based index of the word each token belongs to, -1 at tokens of no word.
            Shape: (batch, tokens)
        spans: first word and one past the last of each constituent; -1 at padding. Further columns are
            ignored. Shape: (batch, constituents, 2 or more)

    Returns:
        True where a chunk contains a token; rows of other constituents contain none.
        Shape: (batch, constituents, tokens), bool
    """
    start, end = spans[..., 0], spans[..., 1]
    several = (start >= 0) & (end - start > 1)
    # inner[b, i, j]: constituent j has several words, all of them in i, but not all words of i
    inner = (start[:, :, None] <= start[:, None]) & (end[:, None] <= end[:, :, None])
    inner &= (end - start)[:, None] < (end - start)[:, :, None]
    inner &= several[:, None]
    is_chunk = several & ~inner.any(2)
    word = words[:, None]
    members = (start[..., None] <= word) & (word < end[..., None]) & (word >= 0)
    return members & is_chunk[..., None]
