"""Phrases that are constituents of a parse."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_phrase.modules.parse_batch import ParseBatch
from fairseq_phrase.modules.phrases.adjacent_pairs import ListedPairs, PhraseEdges
from fairseq_phrase.modules.phrases.phrase_batch import PhraseBatch
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
