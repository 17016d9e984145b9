"""A container for the phrases of a padded batch, as nodes after its tokens; made once per batch.

The adjacent nodes (eq. 4) are a list, or follow from the layout of token n-grams.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fairseq_phrase.methods.common.tensors import cached_property, check_mask, may_read


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


class Pairs(Protocol):
    """The pairs of adjacent nodes, listed or computed, as :class:`PhraseBatch` returns them."""

    def edges(self, padding_mask: Tensor) -> PhraseEdges:
        """Return :attr:`PhraseBatch.edges`."""

    def adjacency(self, padding_mask: Tensor) -> Tensor:
        """Return :attr:`PhraseBatch.adjacency`."""

    def memberships(self, padding_mask: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Return :attr:`PhraseBatch.memberships`."""


@dataclass(frozen=True)
class ListedPairs:
    """Adjacent pairs, and the phrases' tokens, as lists."""

    listed: PhraseEdges
    contained: tuple[Tensor, Tensor]

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
        # Assigning True would copy it to the GPU and wait.
        adjacency.view(-1).index_fill_(0, query * num_nodes + key % num_nodes, True)
        # (batch * nodes, nodes) -> (batch, nodes, nodes)
        return adjacency.view(batch, num_nodes, num_nodes)

    def memberships(self, padding_mask: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Return the list."""
        return self.contained


def count(index: Tensor, length: int) -> Tensor:
    """Count how often each of ``length`` indices occurs; unlike bincount, do not wait for the GPU."""
    return torch.zeros(length, dtype=torch.int64, device=index.device).scatter_add(
        0, index, torch.ones_like(index)
    )


def num_part_positions(clip: int) -> int:
    """Return the number of relative positions of adjacent nodes, given the largest offset."""
    return 1 + 2 * (clip + 1)


def number_parts(
    query: tuple[Tensor, Tensor], key: tuple[Tensor, Tensor], positions: int
) -> Tensor:
    """Number the relative positions of adjacent nodes.

    A node has the number 0 to itself. A part that begins o tokens after the query has 1 + o. A containing
    node that begins o tokens before the query has 2 + clip + o. Offsets o are clipped.

    Args:
        query: the first token of each attending node, and its number of tokens.
            Shape of each: any, int64
        key: the same for the nodes attended to. The shapes broadcast.
        positions: their number, from :func:`num_part_positions`.

    Returns:
        The numbers; undefined where nodes are not adjacent. Shape: the broadcast shape, int64
    """
    (query_start, query_size), (key_start, key_size) = query, key
    clip, offset = positions // 2 - 1, key_start - query_start
    is_part = 1 + offset.clamp(0, clip)
    is_whole = 2 + clip + (-offset).clamp(0, clip)
    numbers = torch.where(key_size < query_size, is_part, is_whole)
    return numbers.where(key_size != query_size, 0)


#: The number of nodes above which attention within phrases is computed along the list of adjacent pairs:
#: 256 tokens with phrases of two, more than translated sentences have.
LONG = 512


class PhraseBatch:
    """The N nodes of a padded batch: its n token positions, then slots for phrases.

    A source (:mod:`fairseq_phrase.methods.phrases.phrase_sources`) makes this container, and all layers
    share it. Two nodes are adjacent iff the tokens of one are a subset of the other's (eq. 4). Every node
    is adjacent to itself, because an empty softmax would give NaN. Padded nodes are adjacent to
    themselves only.

    Args:
        padding_mask: True at padded nodes: padded tokens and slots without a phrase.
            Shape: (batch, nodes)
        num_tokens: number of token positions n; nodes 0..n-1 are the tokens.
        pairs: the adjacent nodes.

    Raises:
        ValueError: if the padding mask is not boolean and two-dimensional, or has fewer nodes than
            tokens.

    Examples:
        >>> from fairseq_phrase.methods.phrases.ngram_phrases import token_ngrams
        >>> padding = torch.tensor([[False, False, False]])
        >>> token_ngrams(~padding, padding, max_length=2).members()
        [[(0,), (1,), (2,), (0, 1), (1, 2)]]
    """

    def __init__(self, *, padding_mask: Tensor, num_tokens: int, pairs: Pairs) -> None:
        check_mask("padding_mask", padding_mask)
        if padding_mask.size(1) < num_tokens:
            raise ValueError(f"{num_tokens} tokens do not fit into {padding_mask.size(1)} nodes")
        self.padding_mask = padding_mask
        self.num_tokens = num_tokens
        self.pairs = pairs
        self._part_positions: dict[int, Tensor] = {}

    @property
    def batch_size(self) -> int:
        """Number of sentences B."""
        return self.padding_mask.size(0)

    @property
    def num_nodes(self) -> int:
        """Number of nodes N of the padded batch: tokens and phrase slots."""
        return self.padding_mask.size(1)

    @property
    def device(self) -> torch.device:
        """The device of the batch's tensors."""
        return self.padding_mask.device

    @cached_property
    def is_long(self) -> bool:
        """Whether attention within phrases should not hold all pairs of nodes."""
        return self.num_nodes > LONG

    # The following are computed from the pairs when a layer first needs them.

    @cached_property
    def edges(self) -> PhraseEdges:
        """The adjacent pairs of nodes (eq. 4), sorted by query."""
        return self.pairs.edges(self.padding_mask)

    @cached_property
    def adjacency(self) -> Tensor:
        """A of eq. 6: True where one node's tokens are a subset of the other's.

        Shape: (batch, nodes, nodes)
        """
        return self.pairs.adjacency(self.padding_mask)

    @cached_property
    def key_mask(self) -> Tensor | None:
        """The keys that phase 1 attends to; None for all. Shape: (batch, 1, 1, nodes).

        A sentence that is all padding attends to its padding. Its states are not read, but a NaN
        in them would reach the gradients.
        """
        # Checked only where the check does not wait for the device.
        if may_read(self.padding_mask) and not self.padding_mask.numpy().any():
            return None
        return (~self.padding_mask | self.padding_mask.all(1, keepdim=True))[:, None, None]

    @cached_property
    def tokens(self) -> PhraseBatch:
        """The tokens without phrases."""
        mask = self.padding_mask[:, : self.num_tokens]
        index = torch.arange(mask.numel(), device=mask.device)
        itself = ListedPairs(PhraseEdges(index, index), (index[:0], index[:0]))
        return PhraseBatch(padding_mask=mask, num_tokens=self.num_tokens, pairs=itself)

    @cached_property
    def memberships(self) -> tuple[Tensor, Tensor]:
        """The tokens of each phrase, as flat indices; a slot without a phrase may have any tokens.

        Index ``b * slots + s`` is slot ``s`` of sentence ``b``, ``b * tokens + t`` its token ``t``.
        Shape of each: (memberships,)
        """
        return self.pairs.memberships(self.padding_mask, self.num_tokens)

    @cached_property
    def extents(self) -> tuple[Tensor, Tensor]:
        """The first token of each node, and its number of tokens; undefined at slots without a phrase.

        Shape of each: (batch, nodes), int64
        """
        batch, num_tokens = self.batch_size, self.num_tokens
        slots = batch * (self.num_nodes - num_tokens)
        phrase, token = self.memberships
        first = torch.zeros(slots, dtype=torch.int64, device=self.device).scatter_reduce(
            0, phrase, token % max(num_tokens, 1), "amin", include_self=False
        )
        position = torch.arange(num_tokens, device=self.device).expand(batch, -1)
        sizes = count(phrase, slots)
        return (
            torch.cat([position, first.view(batch, -1)], 1),
            torch.cat([torch.ones_like(position), sizes.view(batch, -1)], 1),
        )

    def part_positions(self, positions: int) -> Tensor:
        """Number the relative positions of all nodes (:func:`number_parts`), once per batch.

        Returns:
            Shape: (batch, nodes, nodes), int64; undefined where nodes are not adjacent.
        """
        if positions not in self._part_positions:
            starts, sizes = self.extents
            queries = starts[:, :, None], sizes[:, :, None]
            keys = starts[:, None], sizes[:, None]
            self._part_positions[positions] = number_parts(queries, keys, positions)
        return self._part_positions[positions]

    def members(self) -> list[list[tuple[int, ...]]]:
        """List the tokens of each node of each sentence.

        Returns:
            For each sentence, N sorted tuples of token positions; empty at padded nodes.
        """
        is_node = (~self.padding_mask).tolist()
        tokens: list[list[list[int]]] = [
            [[i] if real and i < self.num_tokens else [] for i, real in enumerate(row)]
            for row in is_node
        ]
        num_phrases = self.num_nodes - self.num_tokens
        phrases, contained = self.memberships
        for phrase, token in zip(phrases.tolist(), contained.tolist(), strict=True):
            sentence, slot = divmod(phrase, num_phrases)
            if is_node[sentence][self.num_tokens + slot]:
                tokens[sentence][self.num_tokens + slot].append(token % self.num_tokens)
        return [[tuple(sorted(node)) for node in row] for row in tokens]
