"""Phrases that are constituents of a parse, or the chunks among them."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_phrase.modules.parse_batch import ParseBatch
from fairseq_phrase.modules.phrases.phrase_batch import ListedPairs, PhraseBatch, PhraseEdges
from fairseq_phrase.modules.phrases.sources.registry import (
    PhraseOptions,
    SourceTokens,
    check_max_length,
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
    leaf_spans = TreeBatch.from_words(words, spans, padding_mask).leaf_spans
    chosen = (leaf_spans[..., 1] - leaf_spans[..., 0] > 1) & (
        spans[..., 1] - spans[..., 0] <= max_length
    )
    # A constituent with the same tokens as another directly follows it.
    chosen[:, 1:] &= (leaf_spans[:, 1:] != leaf_spans[:, :-1]).any(2)
    num_phrases = int(chosen.sum(1).max()) if chosen.numel() else 0
    # Chosen constituents to the front of their row; shape: (batch, phrases)
    first = chosen.long().argsort(dim=1, descending=True, stable=True)[:, :num_phrases]
    leaf_spans = leaf_spans.masked_fill(~chosen.unsqueeze(2), -1)
    leaf_spans = leaf_spans.gather(1, first.unsqueeze(2).expand(-1, -1, 2))
    tree = TreeBatch(leaf_spans=leaf_spans, padding_mask=padding_mask)
    contains = torch.zeros(
        tree.batch_size, tree.num_nodes, tree.num_nodes, dtype=torch.bool, device=tree.device
    )
    contains[:, tree.num_leaves :] = torch.cat([tree.membership, tree.subtrees], 2)
    # Both directions, and every node with itself, padded ones too.
    contains.diagonal(dim1=1, dim2=2).fill_(True)
    sentence, query, key = (contains | contains.transpose(1, 2)).nonzero(as_tuple=True)
    offset = sentence * tree.num_nodes
    edges = PhraseEdges(offset + query, offset + key)
    return PhraseBatch(
        padding_mask=tree.node_padding_mask, num_tokens=words.size(1), pairs=ListedPairs(edges)
    )


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
