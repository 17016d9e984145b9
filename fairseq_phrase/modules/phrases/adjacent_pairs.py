"""Which nodes of a batch are adjacent (eq. 4): as a list, or by the layout of token n-grams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class PhraseEdges(NamedTuple):
    """The pairs of adjacent nodes of a batch (eq. 4), sorted by query.

    Node ``i`` of sentence ``b`` has the flat index ``b * num_nodes + i``. The list has both
    directions of each pair, and the pair of each node with itself, also for padded nodes.

    Attributes:
        query: flat index of the node that attends. Shape: (edges,)
        key: flat index of the node attended to. Shape: (edges,)
    """

    query: Tensor
    key: Tensor


class AdjacentPairs(Protocol):
    """Which nodes are adjacent. Every method takes the batch's padding mask, (batch, nodes)."""

    def edges(self, padding_mask: Tensor) -> PhraseEdges:
        """List the pairs, sorted by query."""
        ...

    def adjacency(self, padding_mask: Tensor) -> Tensor:
        """Return A of eq. 6. Shape: (batch, nodes, nodes), bool."""
        ...

    def memberships(self, padding_mask: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """List the tokens of each phrase; a slot without a phrase may have any tokens.

        Args:
            padding_mask: of the nodes.
            num_tokens: number of token positions; the other nodes are slots for phrases.

        Returns:
            Flat indices: ``b * slots + s`` is slot ``s`` of sentence ``b``, ``b * tokens + t`` its
            token ``t``. Shape of each: (memberships,)
        """
        ...

    def max_edges(self, padding_mask: Tensor) -> int:
        """Return the number of pairs, or an upper bound that is cheap to compute."""
        ...


@dataclass(frozen=True)
class ListedPairs:
    """Adjacent pairs as an explicit list.

    Attributes:
        listed: all of them.
    """

    listed: PhraseEdges

    def edges(self, padding_mask: Tensor) -> PhraseEdges:
        """Return the list."""
        return self.listed

    def adjacency(self, padding_mask: Tensor) -> Tensor:
        """Scatter the list into a matrix."""
        batch, num_nodes = padding_mask.shape
        query, key = self.listed
        adjacency = torch.zeros(
            batch * num_nodes, num_nodes, dtype=torch.bool, device=padding_mask.device
        )
        adjacency[query, key % num_nodes] = True
        # (batch * nodes, nodes) -> (batch, nodes, nodes)
        return adjacency.view(batch, num_nodes, num_nodes)

    def memberships(self, padding_mask: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Take the pairs of a phrase and a token out of the list."""
        num_nodes = padding_mask.size(1)
        query, key = self.listed
        is_pair = (query % num_nodes >= num_tokens) & (key % num_nodes < num_tokens)
        query, key = query[is_pair], key[is_pair]
        slot = query % num_nodes - num_tokens
        phrase = query // num_nodes * (num_nodes - num_tokens) + slot
        return phrase, key // num_nodes * num_tokens + key % num_nodes

    def max_edges(self, padding_mask: Tensor) -> int:
        """Return the list's length."""
        return self.listed.query.numel()


class NgramLevel(NamedTuple):
    """The nodes of the token n-grams of one size.

    Node ``offset + i`` is the phrase that begins at token ``i``; tokens themselves are size 1.

    Attributes:
        size: tokens in each.
        offset: the first node.
        length: number of nodes.
    """

    size: int
    offset: int
    length: int


@dataclass(frozen=True)
class NgramPairs:
    """Pairs of token n-grams, computed from the layout of the nodes.

    Attributes:
        levels: the nodes of each size, from size 1.
    """

    levels: tuple[NgramLevel, ...]

    def edges(self, padding_mask: Tensor) -> PhraseEdges:
        """List the pairs: each n-gram with each of its parts."""
        is_node = ~padding_mask
        index = torch.arange(padding_mask.numel(), device=padding_mask.device)
        index = index.view(padding_mask.shape)
        pairs = [(index, index, torch.ones_like(is_node))]
        for larger in self.levels[1:]:
            whole = slice(larger.offset, larger.offset + larger.length)
            for smaller in self.levels[: larger.size - 1]:
                for shift in range(larger.size - smaller.size + 1):
                    first = smaller.offset + shift
                    part = slice(first, first + larger.length)
                    # A phrase's parts exist if it does.
                    exists = is_node[:, whole]
                    pairs.append((index[:, whole], index[:, part], exists))
                    pairs.append((index[:, part], index[:, whole], exists))
        return select_edges(pairs)

    def adjacency(self, padding_mask: Tensor) -> Tensor:
        """Compare all pairs of spans once, for all sentences."""
        is_node = ~padding_mask
        sizes = torch.cat([torch.full((level.length,), level.size) for level in self.levels])
        starts = torch.cat([torch.arange(level.length) for level in self.levels])
        # Shape: (nodes, nodes)
        pattern = _within_span(starts, sizes).to(padding_mask.device)
        itself = torch.eye(len(sizes), dtype=torch.bool, device=padding_mask.device)
        return (pattern & is_node[:, :, None] & is_node[:, None, :]) | itself

    def memberships(self, padding_mask: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """List the tokens of all slots, as if nothing were padding: their number is known then."""
        batch, device = padding_mask.size(0), padding_mask.device
        slots, tokens = [], []
        for size, offset, length in self.levels[1:]:
            # Shape: (length, size)
            first = torch.arange(length, device=device)[:, None].expand(-1, size)
            slots.append((first + (offset - num_tokens)).flatten())
            tokens.append((first + torch.arange(size, device=device)).flatten())
        sentence = torch.arange(batch, device=device)[:, None]
        none = sentence.new_empty(0)
        slot, token = torch.cat([none, *slots]), torch.cat([none, *tokens])
        num_slots = padding_mask.size(1) - num_tokens
        return (sentence * num_slots + slot).flatten(), (sentence * num_tokens + token).flatten()

    def max_edges(self, padding_mask: Tensor) -> int:
        """Count the pairs as if nothing were padding."""
        pairs = padding_mask.size(1)
        for size, _, length in self.levels:
            # An n-gram has size - p + 1 parts of size p. Count both directions.
            pairs += 2 * length * sum(size - part + 1 for part in range(1, size))
        return padding_mask.size(0) * pairs


def select_edges(pairs: Sequence[tuple[Tensor, Tensor, Tensor]]) -> PhraseEdges:
    """Keep those candidate pairs (query, key, exists) that exist, sorted by query."""
    query, key, exists = (
        torch.cat([part.reshape(-1) for part in parts]) for parts in zip(*pairs, strict=True)
    )
    query, key = query[exists], key[exists]
    order = query.argsort(stable=True)
    return PhraseEdges(query[order], key[order])


def count(index: Tensor, length: int) -> Tensor:
    """Count how often each of ``length`` indices occurs; unlike bincount, do not wait for the GPU."""
    return torch.zeros(length, dtype=torch.int64, device=index.device).scatter_add(
        0, index, torch.ones_like(index)
    )


def _within_span(starts: Tensor, sizes: Tensor) -> Tensor:
    """Return for all pairs of spans whether one contains the other. Shape: (spans, spans)."""
    ends = starts + sizes
    inside = (starts[:, None] >= starts) & (ends[:, None] <= ends)
    return inside | inside.T
