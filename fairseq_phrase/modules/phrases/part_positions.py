"""Positions of parts in their phrases: the relative positions of attention within phrases.

*Decision* (no paper has it): two adjacent nodes are a whole and its part. Their relative position
says which of the two is the whole, and how many tokens after the whole's first token the part begins.
So a token in a phrase of two tokens knows whether it is the first, and the phrase knows which of its
two tokens it attends to.
"""

from __future__ import annotations

import torch
from torch import Tensor


def num_part_positions(clip: int) -> int:
    """Return how many different numbers :func:`number_parts` can return."""
    return 1 + 2 * (clip + 1)


def number_parts(query: tuple[Tensor, Tensor], key: tuple[Tensor, Tensor], clip: int) -> Tensor:
    """Number the relative positions of adjacent nodes.

    A node has the number 0 to itself. A part that begins o tokens after the query has 1 + o. A whole
    that begins o tokens before the query has 2 + clip + o.

    Args:
        query: the first token of each attending node, and how many it has.
            Shape of each: any, int64
        key: the same for the nodes attended to. The shapes broadcast.
        clip: largest o; larger ones count as this one.

    Returns:
        The numbers; undefined where nodes are not adjacent. Shape: the broadcast shape, int64
    """
    (query_start, query_size), (key_start, key_size) = query, key
    offset = key_start - query_start
    is_part = 1 + offset.clamp(0, clip)
    is_whole = 2 + clip + (-offset).clamp(0, clip)
    positions = torch.where(key_size < query_size, is_part, is_whole)
    return positions.where(key_size != query_size, 0)
