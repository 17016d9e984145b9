"""Where the parts of phrases are in them: the relative positions of attention within phrases.

*Decision* (no paper has it): two adjacent nodes are a whole and its part. What tells one pair from
another is which of them is the whole, and how many tokens after the whole's first token the part
begins. So in a phrase of two tokens each token knows whether it is its first, and the phrase which of
the two it looks at.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["num_part_positions", "number_parts"]


def num_part_positions(clip: int) -> int:
    """Count the numbers that :func:`number_parts` may give."""
    return 1 + 2 * (clip + 1)


def number_parts(query: tuple[Tensor, Tensor], key: tuple[Tensor, Tensor], clip: int) -> Tensor:
    """Number the relative positions of adjacent nodes.

    A node to itself is 0; its part that begins o tokens after it 1 + o; the whole after whose first
    token it begins by o, 2 + clip + o.

    Args:
        query: the first token of each attending node, and how many it has.
            Shape of each: any, int64
        key: likewise of the nodes attended to. Their shapes broadcast.
        clip: largest o; those beyond are clipped.

    Returns:
        Of no meaning where nodes are not adjacent. Shape: that of both, int64
    """
    (query_start, query_size), (key_start, key_size) = query, key
    offset = key_start - query_start
    is_part = 1 + offset.clamp(0, clip)
    is_whole = 2 + clip + (-offset).clamp(0, clip)
    positions = torch.where(key_size < query_size, is_part, is_whole)
    return positions.where(key_size != query_size, 0)
