"""A container for the phrases of a padded batch, as nodes after its tokens; made once per batch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_phrase.methods.common.tensors import (
    cached_property,
    check_mask,
    may_read,
    single_product,
)


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


def adjacent_pairs(contains: Tensor) -> PhraseEdges:
    """List the adjacent pairs of nodes: two that share all tokens of one, or a padded node with itself.

    Args:
        contains: from :attr:`PhraseBatch.contains`. Shape: (batch, nodes, tokens)
    """
    batch, num_nodes, num_tokens = contains.shape
    # Each node of each token, sorted by token; flat indices of tokens and nodes.
    sentence, token, node = contains.mT.nonzero(as_tuple=True)
    token, node = sentence * num_tokens + token, sentence * num_nodes + node
    # Each of them with all nodes of the same token.
    runs = token.bincount(minlength=batch * num_tokens)
    repeats = runs[token]
    first = (runs.cumsum(0) - runs)[token] - (repeats.cumsum(0) - repeats)
    with_node = node[
        first.repeat_interleave(repeats) + torch.arange(int(repeats.sum()), device=node.device)
    ]
    nodes = batch * num_nodes
    pairs, shared = (node.repeat_interleave(repeats) * nodes + with_node).unique(return_counts=True)
    sizes = contains.sum(2).flatten()
    is_adjacent = (shared == sizes[pairs // nodes]) | (shared == sizes[pairs % nodes])
    padded = (sizes == 0).nonzero().flatten()
    pairs = torch.cat([pairs[is_adjacent], padded * nodes + padded]).sort().values
    return PhraseEdges(pairs // nodes, pairs % nodes)


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
        token_padding: True at padded tokens. Shape: (batch, tokens)
        is_member: True where a phrase contains a token; a slot without tokens is padding. Each phrase of
            a sentence has other tokens. Shape: (batch, phrases, tokens), bool

    Attributes:
        padding_mask: True at padded nodes: padded tokens and slots without a phrase.
            Shape: (batch, nodes)
        num_tokens: number of token positions n; nodes 0..n-1 are the tokens.

    Raises:
        ValueError: if a mask is not boolean, or their shapes do not agree.

    Examples:
        >>> from fairseq_phrase.methods.phrases.builtin_sources import token_ngrams
        >>> padding = torch.tensor([[False, False, False]])
        >>> token_ngrams(~padding, padding, max_length=2).members()
        [[(0,), (1,), (2,), (0, 1), (1, 2)]]
    """

    def __init__(self, token_padding: Tensor, is_member: Tensor) -> None:
        check_mask("padding_mask", token_padding)
        batch, self.num_tokens = token_padding.shape
        check_mask("is_member", is_member, batch, "phrases", self.num_tokens)
        self.is_member = is_member
        self.padding_mask = torch.cat([token_padding, ~is_member.any(2)], 1)
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

    @property
    def token_padding(self) -> Tensor:
        """True at padded tokens. Shape: (batch, tokens)."""
        return self.padding_mask[:, : self.num_tokens]

    @cached_property
    def is_long(self) -> bool:
        """Whether attention within phrases should not hold all pairs of nodes.

        A GPU does, and its fused kernel for ``subset`` does not hold scores: at 1,024 tokens it was
        faster (H200).
        """
        return self.num_nodes > LONG and not self.padding_mask.is_cuda

    # The following are computed when a layer first needs them.

    @cached_property
    def contains(self) -> Tensor:
        """T(i) of eq. 4: whether a node contains a token. Shape: (batch, nodes, tokens), bool."""
        return torch.cat([torch.diag_embed(~self.token_padding), self.is_member], 1)

    @cached_property
    def adjacency(self) -> Tensor:
        """A of eq. 6: True where one node's tokens are a subset of the other's.

        Shape: (batch, nodes, nodes)
        """
        # i is part of j iff they share all of i's tokens.
        shared = single_product(self.contains, self.contains.mT)
        is_part = shared == self.contains.sum(2, keepdim=True).to(shared.dtype)
        is_node = ~self.padding_mask
        pairs = is_node[:, :, None] & is_node[:, None]
        itself = torch.eye(self.num_nodes, dtype=torch.bool, device=self.device)
        return (is_part | is_part.mT) & pairs | itself

    @cached_property
    def edges(self) -> PhraseEdges:
        """The adjacent pairs of nodes (eq. 4), sorted by query."""
        return adjacent_pairs(self.contains)

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
        return PhraseBatch(self.token_padding, self.is_member[:, :0])

    @cached_property
    def extents(self) -> tuple[Tensor, Tensor]:
        """The first token of each node, and its number of tokens; undefined at padding.

        Shape of each: (batch, nodes), int64
        """
        return self.contains.long().argmax(2), self.contains.sum(2)

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
        rows, columns = range(self.batch_size), range(self.num_nodes)
        nodes: list[list[list[int]]] = [[[] for _ in columns] for _ in rows]
        for sentence, node, token in self.contains.nonzero().tolist():
            nodes[sentence][node].append(token)
        return [[tuple(tokens) for tokens in row] for row in nodes]
