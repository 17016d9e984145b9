"""Masks in the form that attention adds to its scores."""

from __future__ import annotations

import math
from typing import overload

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["additive"]

# Holds a mask's forms only as long as the mask itself.
_made = WeakTensorKeyDictionary()


@overload
def additive(mask: Tensor, dtype: torch.dtype) -> Tensor: ...


@overload
def additive(mask: None, dtype: torch.dtype) -> None: ...


def additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Turn a boolean mask into a summand of the scores: 0 where it is True, -inf elsewhere.

    ``scaled_dot_product_attention`` would convert the mask in every call. This function converts it
    once, and all layers of a batch share the result.

    Args:
        mask: True where attention is allowed; None for everywhere.
        dtype: of the scores.

    Returns:
        Shape: as the mask
    """
    if mask is None:
        return None
    made = _made.setdefault(mask, {})
    if dtype not in made:
        made[dtype] = torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -math.inf)
    return made[dtype]
