"""Phrases that are constituents of a parse: nodes and adjacent pairs, built without loops."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_phrase.modules.phrases.edges import PhraseEdges
from fairseq_phrase.modules.trees.tree_batch import TreeBatch

__all__ = ["constituent_phrases"]


def constituent_phrases(
    words: Tensor, spans: Tensor, padding_mask: Tensor, max_length: int
) -> tuple[Tensor, PhraseEdges]:
    """Make a phrase of every constituent of up to k words and at least two tokens.

    Of constituents with the same tokens one is kept.

    Args:
        words: the word of each token, -1 at tokens of no word.
            Shape: (batch, tokens)
        spans: first word and one past the last of each constituent, children before parents; -1 at
            padding; further columns are not looked at.
            Shape: (batch, constituents, 2 or more)
        padding_mask: True at padded tokens.
            Shape: (batch, tokens)
        max_length: most words in a phrase, k.

    Returns:
        The padding mask of the nodes, of shape (batch, nodes), and their adjacent pairs.

    Raises:
        ValueError: the words or constituents are not those of sentences and trees.
    """
    leaf_spans = TreeBatch.from_words(words, spans, padding_mask).leaf_spans
    chosen = (leaf_spans[..., 1] - leaf_spans[..., 0] > 1) & (
        spans[..., 1] - spans[..., 0] <= max_length
    )
    # A constituent with the tokens of another stands right behind it.
    chosen[:, 1:] &= (leaf_spans[:, 1:] != leaf_spans[:, :-1]).any(2)
    num_phrases = int(chosen.sum(1).max()) if chosen.numel() else 0
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
    return tree.node_padding_mask, PhraseEdges(offset + query, offset + key)
