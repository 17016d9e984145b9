"""Adjacent pairs of nodes (eq. 4), listed for token n-grams and for explicit sets of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "NgramLevel",
    "PhraseEdges",
    "count",
    "member_edges",
    "ngram_edges",
    "select_edges",
    "within_span",
]


class PhraseEdges(NamedTuple):
    """The pairs of adjacent nodes of a batch (eq. 4), sorted by query.

    Node ``i`` of sentence ``b`` has the flat index ``b * num_nodes + i``. Both directions of a
    pair and the pair of each node with itself, padded nodes too, are listed.

    Attributes:
        query: flat index of the node that attends.
            Shape: (edges,)
        key: flat index of the node attended to.
            Shape: (edges,)
    """

    query: Tensor
    key: Tensor


class NgramLevel(NamedTuple):
    """Where the token n-grams of one size stand: size, first node, number of nodes.

    Node ``offset + i`` is the phrase that begins at token ``i``; tokens themselves are size 1.
    """

    size: int
    offset: int
    length: int


def ngram_edges(levels: Sequence[NgramLevel], padding_mask: Tensor) -> PhraseEdges:
    """List the adjacent pairs of a batch of token n-grams.

    Args:
        levels: where the n-grams of each size stand.
        padding_mask: True at padded nodes.
            Shape: (batch, nodes)
    """
    is_node = ~padding_mask
    index = torch.arange(padding_mask.numel(), device=padding_mask.device)
    index = index.view(padding_mask.shape)
    pairs = [(index, index, torch.ones_like(is_node))]
    for larger in levels[1:]:
        whole = slice(larger.offset, larger.offset + larger.length)
        for smaller in levels[: larger.size - 1]:
            for shift in range(larger.size - smaller.size + 1):
                first = smaller.offset + shift
                part = slice(first, first + larger.length)
                # A phrase's parts exist if it does.
                exists = is_node[:, whole]
                pairs.append((index[:, whole], index[:, part], exists))
                pairs.append((index[:, part], index[:, whole], exists))
    return select_edges(pairs)


def member_edges(
    members: Sequence[Iterable[Sequence[int]]], padding_mask: Tensor
) -> tuple[Tensor, PhraseEdges]:
    """Compare explicit sets of tokens, all pairs of a sentence.

    Args:
        members: for each sentence its phrases, each a collection of token positions.
        padding_mask: True at padded tokens.
            Shape: (batch, tokens)

    Returns:
        The padding mask of the nodes, of shape (batch, nodes), and their adjacent pairs.

    Raises:
        ValueError: if a phrase has fewer than two tokens or contains padding, or the number of
            sentences differs.
    """
    batch, num_tokens = padding_mask.shape
    if len(members) != batch:
        raise ValueError(f"phrases of {len(members)} sentences for a batch of {batch}")
    is_token = (~padding_mask).tolist()
    unique = [
        list(dict.fromkeys(_token_set(phrase, is_token[row]) for phrase in phrases))
        for row, phrases in enumerate(members)
    ]
    num_nodes = num_tokens + max((len(phrases) for phrases in unique), default=0)
    contains = torch.zeros(batch, num_nodes, num_tokens)
    contains[:, :num_tokens] = torch.diag_embed((~padding_mask).float().cpu())
    for row, phrases in enumerate(unique):
        for slot, phrase in enumerate(phrases):
            contains[row, num_tokens + slot, list(phrase)] = 1
    sizes = contains.sum(-1)
    # i is part of j iff they share all of i's tokens.
    shared = contains @ contains.transpose(1, 2)
    adjacency = (shared == sizes[:, :, None]) | (shared == sizes[:, None, :])
    is_node = sizes > 0
    adjacency &= is_node[:, :, None] & is_node[:, None, :]
    adjacency |= torch.eye(num_nodes, dtype=torch.bool)
    sentence, query, key = adjacency.nonzero(as_tuple=True)
    edges = PhraseEdges(sentence * num_nodes + query, sentence * num_nodes + key)
    device = padding_mask.device
    return ~is_node.to(device), PhraseEdges(*(index.to(device) for index in edges))


def select_edges(pairs: Sequence[tuple[Tensor, Tensor, Tensor]]) -> PhraseEdges:
    """Keep the existing ones of candidate pairs (query, key, exists) and sort them by query."""
    query, key, exists = (
        torch.cat([part.reshape(-1) for part in parts]) for parts in zip(*pairs, strict=True)
    )
    query, key = query[exists], key[exists]
    order = query.argsort(stable=True)
    return PhraseEdges(query[order], key[order])


def within_span(starts: Tensor, sizes: Tensor, other_starts: Tensor, other_sizes: Tensor) -> Tensor:
    """Tell for all pairs of spans whether one contains the other. Shape: (spans, other spans)."""
    start, other_start = starts[:, None], other_starts[None, :]
    end, other_end = start + sizes[:, None], other_start + other_sizes[None, :]
    inside = (start >= other_start) & (end <= other_end)
    around = (start <= other_start) & (end >= other_end)
    return inside | around


def count(index: Tensor, length: int) -> Tensor:
    """Count how often each of ``length`` indices occurs, without bincount's wait for a GPU."""
    return torch.zeros(length, dtype=torch.int64, device=index.device).scatter_add(
        0, index, torch.ones_like(index)
    )


def _token_set(phrase: Sequence[int], is_token: list[bool]) -> tuple[int, ...]:
    tokens = tuple(sorted(set(phrase)))
    if len(tokens) < 2:
        raise ValueError(f"a phrase has at least two tokens, got {tuple(phrase)}")
    if tokens[0] < 0 or tokens[-1] >= len(is_token) or not all(is_token[i] for i in tokens):
        raise ValueError(f"phrase {tuple(phrase)} contains padding or lies outside the sentence")
    return tokens
