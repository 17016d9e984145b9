"""Dependency and constituency trees over the tokens of a padded batch, for Tree-LSTMs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fairseq_phrase.modules.recurrent.tree_levels import TreeLevels
from fairseq_phrase.modules.tensors import check_mask, check_tensor
from fairseq_phrase.modules.trees.tree_batch import TreeBatch
from fairseq_phrase.syntax.tree_arrays import binarized, constituent_parents, sibling_numbers


@dataclass(frozen=True)
class BatchTrees:
    """The trees of a padded batch: who is computed from whom.

    Attributes:
        levels: the schedule of all nodes; a node's index is ``sentence * nodes + node``.
        padding_mask: True at padded nodes: tokens, then constituents if the trees have any.
            Shape: (batch, nodes), bool
        roots: the node at the top of each sentence, from 0; 0 in a sentence that is all padding.
            Shape: (batch,), int64
    """

    levels: TreeLevels
    padding_mask: Tensor
    roots: Tensor


def dependency_trees(words: Tensor, heads: Tensor, padding_mask: Tensor) -> BatchTrees:
    """Make the dependency trees of a batch's tokens.

    The first token of a word is the word's node. The word's other tokens are its children, like the words
    that depend on it. A token of no word (the end of sentence) is a tree.

    Args:
        words: 0-based index of the word each token belongs to, -1 at tokens of no word and at padding.
            Shape: (batch, tokens), int64
        heads: 0-based index of each word's head; a root is its own head; -1 at padding. Of several roots,
            the later ones become dependents of the first. Shape: (batch, words), int64
        padding_mask: True at padded tokens, on either side. Shape: (batch, tokens), bool

    Raises:
        ValueError: a tensor has another type or shape, or the heads are not trees over the tokens' words.
    """
    check_tensor("words", words, torch.int64, *padding_mask.shape)
    check_tensor("heads", heads, torch.int64, words.size(0), "words")
    check_mask("padding_mask", padding_mask)
    of_token, head = words.cpu().numpy(), heads.cpu().numpy()
    batch, num_tokens = of_token.shape
    counts = (head >= 0).sum(1)
    if (head >= counts[:, None]).any() or (of_token >= counts[:, None]).any():
        raise ValueError(
            "no dependency trees: a head or a token's word lies outside its sentence (indices are "
            "0-based)"
        )
    starts = of_token != np.pad(of_token, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    sentence, token = np.nonzero((of_token >= 0) & starts)
    first = np.full(head.shape, -1)
    first[sentence, of_token[sentence, token]] = token
    is_root = head == np.arange(head.shape[1])
    root = is_root.argmax(1) if head.shape[1] else np.zeros(batch, dtype=np.int64)
    above = np.where(is_root, root[:, None], head)
    # The parent of a word's first token is its head's first token; that of the others is the first.
    parents = np.full(of_token.shape, -1)
    sentence, token = np.nonzero(of_token >= 0)
    word = of_token[sentence, token]
    is_first = first[sentence, word] == token
    parents[sentence, token] = first[sentence, np.where(is_first, above[sentence, word], word)]
    parents[parents == np.arange(num_tokens)] = -1
    padding = padding_mask.cpu().numpy()
    tops = (~padding).argmax(1)
    if head.shape[1]:
        tops = np.where(counts > 0, first[np.arange(batch), root], tops)
    offsets = num_tokens * np.arange(batch)[:, None]
    levels = TreeLevels.from_parents(
        np.where(parents >= 0, parents + offsets, -1).ravel(),
        ~padding.ravel(),
        device=padding_mask.device,
    )
    return BatchTrees(levels, padding_mask, _on(padding_mask, tops))


def constituency_trees(
    words: Tensor, spans: Tensor, padding_mask: Tensor, *, binary: bool
) -> BatchTrees:
    """Make the constituency trees of a batch's tokens.

    Tokens are the leaves. A token outside all constituents (the end of sentence) is a tree.
    The top of a sentence is its last constituent in post-order; without constituents, its first token.

    Args:
        words: 0-based index of the word each token belongs to, -1 at tokens of no word and at padding.
            Shape: (batch, tokens), int64
        spans: first word and one past the last of each constituent, and further columns; children before
            parents; -1 at padding. Shape: (batch, constituents, 2 or more), int64
        padding_mask: True at padded tokens, on either side. Shape: (batch, tokens), bool
        binary: binarize to the right (:func:`fairseq_phrase.syntax.tree_arrays.binarized`). The new nodes
            are only in the schedule.

    Raises:
        ValueError: a tensor has another type or shape, or the spans are not trees.
    """
    tree = TreeBatch.from_words(words, spans, padding_mask)
    tokens, batch = tree.num_leaves, tree.batch_size
    padding = tree.node_padding_mask.cpu().numpy()
    leaves = np.arange(tokens)
    leaf_spans = np.broadcast_to(np.stack([leaves, leaves + 1], 1), (batch, tokens, 2))
    all_spans = np.concatenate([leaf_spans, tree.leaf_spans.cpu().numpy()], 1)
    sentence, node = np.nonzero(~padding)
    start, end = all_spans[sentence, node].T
    # In post-order the parent of a node, token or constituent, is the next one that starts no later, and
    # children come from left to right.
    order = np.lexsort((-start, end, sentence))
    above = constituent_parents(start[order], sentence[order])
    above, sides = binarized(above) if binary else (above, sibling_numbers(above))
    added = len(above) - len(order)
    flat = np.concatenate(
        [(sentence * padding.shape[1] + node)[order], padding.size + np.arange(added)]
    )
    parents, numbers = np.full((2, padding.size + added), -1)
    parents[flat] = np.where(above >= 0, flat[above], -1)
    numbers[flat] = sides
    levels = TreeLevels.from_parents(
        parents,
        np.concatenate([~padding.ravel(), np.ones(added, dtype=bool)]),
        sides=numbers,
        device=padding_mask.device,
    )
    last = np.where(padding, -1, np.arange(padding.shape[1])).max(1, initial=-1)
    tops = np.where(last < tokens, (~padding).argmax(1), last)
    return BatchTrees(levels, tree.node_padding_mask, _on(padding_mask, tops))


def _on(like: Tensor, indices: np.ndarray) -> Tensor:
    return torch.from_numpy(indices.astype(np.int64)).to(like.device)
