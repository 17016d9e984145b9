"""What the ways of computing attention within phrases share: the hadamard leak."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_phrase.modules.phrases.phrase_batch import PhraseBatch
from fairseq_phrase.modules.precision import upcast


def outside_phrases(value: Tensor, phrases: PhraseBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Return what a hadamard row needs to know about the nodes outside its phrases.

    Returns:
        The number of unpadded nodes that are not adjacent, of shape (batch, nodes); whether
        the node's neighbours are among the unpadded nodes, as 0 or 1, of shape (batch, nodes); the
        sum of all unpadded values, of shape (batch, heads, 1, head width).
    """
    is_node = ~phrases.padding_mask
    # The only neighbour of a padded node is itself, which is not an unpadded node.
    inside = phrases.degrees * is_node
    outside = is_node.sum(1, keepdim=True) - inside
    total = upcast(value).masked_fill(phrases.padding_mask[:, None, :, None], 0).sum(2, True)
    return outside, is_node.to(total.dtype), total


def shift_scores(maximum: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Include the zero scores of the pairs outside in the rows' largest score.

    A row without pairs outside has no zero score. If one were included, all exponentials of a row of
    very negative scores would vanish.

    Returns:
        The number to subtract from a row's scores; and the exponential of a zero score after the
        subtraction, 0 in rows without pairs outside.
    """
    has_zero = outside > 0
    at_least_zero = maximum.clamp(min=0)
    unit = (-at_least_zero).exp() * has_zero
    return torch.where(has_zero, at_least_zero, maximum), unit
