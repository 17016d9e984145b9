"""The nodes of token n-grams in blocks of positions that see little beyond themselves.

A block holds the nodes of all sizes that begin at its positions. What they may attend to begins
less than k positions away, so attention within phrases is a batch of small dense products.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from fairseq_phrase.modules.phrases.edges import within_span
from fairseq_phrase.modules.phrases.phrase_batch import PhraseBatch

__all__ = ["block_adjacency", "merge_queries", "split_keys", "split_queries"]


def split_queries(phrases: PhraseBatch, states: Tensor, block: int) -> Tensor:
    """Cut the nodes of token n-grams into blocks by the position at which they begin.

    Args:
        phrases: a batch of token n-grams.
        states: anything per node.
            Shape: (batch, nodes, ...)
        block: positions in a block.

    Returns:
        Shape: (batch, blocks, levels * block, ...), zeros where no node is
    """
    batch = states.size(0)
    num_blocks = _num_blocks(phrases, block)
    pieces = []
    for _, offset, length in phrases.levels:
        level = _pad_nodes(states[:, offset : offset + length], 0, num_blocks * block)
        pieces.append(level.view(batch, num_blocks, block, *states.shape[2:]))
    return torch.cat(pieces, dim=2)


def split_keys(phrases: PhraseBatch, states: Tensor, block: int) -> Tensor:
    """Give each block of :func:`split_queries` all nodes adjacent to one of its own.

    Those of size l begin at most l-1 positions before the block and at most k-l positions
    after it, so that each level adds k-1 nodes to the block's.

    Args:
        phrases: a batch of token n-grams.
        states: anything per node.
            Shape: (batch, nodes, ...)
        block: positions in a block, at least k-1.

    Returns:
        Shape: (batch, blocks, levels * (block + k - 1), ...), zeros where no node is
    """
    batch = states.size(0)
    num_blocks = _num_blocks(phrases, block)
    halo = len(phrases.levels) - 1
    pieces = []
    for size, offset, length in phrases.levels:
        level = states[:, offset : offset + length]
        level = _pad_nodes(level, size - 1, (num_blocks + 1) * block)
        level = level.view(batch, num_blocks + 1, block, *states.shape[2:])
        pieces += [level[:, :-1], level[:, 1:, :halo]]
    return torch.cat(pieces, dim=2)


def merge_queries(phrases: PhraseBatch, blocks: Tensor, block: int) -> Tensor:
    """Undo :func:`split_queries`.

    Args:
        phrases: a batch of token n-grams.
        blocks: Shape: (batch, blocks, levels * block, ...)
        block: positions in a block.

    Returns:
        Shape: (batch, nodes, ...)
    """
    batch, num_blocks = blocks.shape[:2]
    levels = blocks.unflatten(2, (len(phrases.levels), block))
    pieces = [
        levels[:, :, index].reshape(batch, num_blocks * block, *blocks.shape[3:])[:, :length]
        for index, (_, _, length) in enumerate(phrases.levels)
    ]
    return torch.cat(pieces, dim=1)


def block_adjacency(phrases: PhraseBatch, block: int) -> Tensor:
    """Return A of eq. 6 between each block's queries and keys.

    Returns:
        Shape: (batch, blocks, levels * block, levels * (block + k - 1))
    """
    return phrases.cached(("block adjacency", block), lambda: _build_blocks(phrases, block))


def _build_blocks(phrases: PhraseBatch, block: int) -> Tensor:
    window = block + len(phrases.levels) - 1
    sizes = torch.tensor([level.size for level in phrases.levels])
    query_sizes, key_sizes = sizes.repeat_interleave(block), sizes.repeat_interleave(window)
    query_starts = torch.arange(block).repeat(len(sizes))
    key_starts = torch.arange(window).repeat(len(sizes)) - (key_sizes - 1)
    same_start = query_starts[:, None] == key_starts[None, :]
    itself = same_start & (query_sizes[:, None] == key_sizes[None, :])
    pattern = within_span(query_starts, query_sizes, key_starts, key_sizes)
    is_query = split_queries(phrases, ~phrases.padding_mask, block)[:, :, :, None]
    is_key = split_keys(phrases, ~phrases.padding_mask, block)[:, :, None, :]
    return (pattern.to(phrases.device) & is_query & is_key) | itself.to(phrases.device)


def _num_blocks(phrases: PhraseBatch, block: int) -> int:
    if not phrases.levels:
        raise ValueError("only a batch of token n-grams can be cut into blocks")
    if block < len(phrases.levels) - 1:
        raise ValueError(
            f"a block of {block} positions is too small for phrases of {len(phrases.levels)}"
        )
    return -(-phrases.num_tokens // block)


def _pad_nodes(states: Tensor, before: int, length: int) -> Tensor:
    """Pad dimension 1 with zeros to a length."""
    after = length - before - states.size(1)
    return pad(states, (0, 0) * (states.dim() - 2) + (before, after))
