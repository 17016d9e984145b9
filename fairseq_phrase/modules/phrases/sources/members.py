"""Phrases given as sets of tokens, which a source of another package may return."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_phrase.modules.phrases.adjacent_pairs import ListedPairs, PhraseEdges
from fairseq_phrase.modules.phrases.phrase_batch import PhraseBatch
from fairseq_phrase.modules.tensors import check_mask


def phrases_of_members(members: Tensor, padding_mask: Tensor) -> PhraseBatch:
    """Make phrases of arbitrary sets of tokens.

    All pairs of a sentence's nodes are compared. Phrases with the same tokens become one phrase.

    Args:
        members: True where a phrase contains a token; a row without any is padding.
            Shape: (batch, phrases, tokens), bool
        padding_mask: True at padded tokens. Shape: (batch, tokens)

    Raises:
        ValueError: if a phrase has one token or contains padding, or a shape does not fit.
    """
    check_mask("padding_mask", padding_mask)
    batch, num_tokens = padding_mask.shape
    if members.dtype != torch.bool or members.shape[::2] != (batch, num_tokens):
        raise ValueError(
            f"members must be boolean of shape ({batch}, phrases, {num_tokens}), "
            f"got {members.dtype} of shape {tuple(members.shape)}"
        )
    if bool((members.sum(2) == 1).any()):
        raise ValueError("a phrase has at least two tokens, got one of a single token")
    if bool((members & padding_mask[:, None]).any()):
        raise ValueError("a phrase contains padding")
    members = _distinct(members)
    tokens = torch.diag_embed(~padding_mask)
    # Shape: (batch, nodes, tokens); counts up to the length are exact in float32.
    contains = torch.cat([tokens, members], 1).float()
    sizes = contains.sum(2)
    # i is part of j iff they share all of i's tokens. Shape: (batch, nodes, nodes)
    shared = contains @ contains.transpose(1, 2)
    adjacency = (shared == sizes[:, :, None]) | (shared == sizes[:, None, :])
    is_node = sizes > 0
    adjacency &= is_node[:, :, None] & is_node[:, None, :]
    adjacency.diagonal(dim1=1, dim2=2).fill_(True)
    sentence, query, key = adjacency.nonzero(as_tuple=True)
    offset = sentence * is_node.size(1)
    edges = PhraseEdges(offset + query, offset + key)
    return PhraseBatch(padding_mask=~is_node, num_tokens=num_tokens, pairs=ListedPairs(edges))


def _distinct(members: Tensor) -> Tensor:
    """Keep each set once, in front of empty rows. Shape: (batch, fewer phrases, tokens)."""
    counts = members.float()
    sizes = counts.sum(2)
    shared = counts @ counts.transpose(1, 2)
    same = (shared == sizes[:, :, None]) & (shared == sizes[:, None, :])
    is_copy = same.tril(diagonal=-1).any(2)
    keep = (sizes > 0) & ~is_copy
    num_phrases = int(keep.sum(1).max()) if keep.numel() else 0
    first = keep.long().argsort(dim=1, descending=True, stable=True)[:, :num_phrases]
    kept = members & keep[:, :, None]
    return kept.gather(1, first[:, :, None].expand(-1, -1, members.size(2)))
