"""Checks of tensors that modules are given."""

from __future__ import annotations

import torch
from torch import Tensor


def check_tensor(name: str, tensor: Tensor, dtype: torch.dtype, *shape: int | str) -> None:
    """Check a tensor's type and shape.

    Args:
        name: what messages call it.
        tensor: the tensor.
        dtype: its type.
        shape: its dimensions: a size, or a name where any size will do; ``batch, length`` by default.

    Raises:
        ValueError: it has another type, another number of dimensions, or another size.
    """
    expected = shape or ("batch", "length")
    fits = tensor.dim() == len(expected) and all(
        isinstance(size, str) or size == found
        for size, found in zip(expected, tensor.shape, strict=True)
    )
    if tensor.dtype != dtype or not fits:
        raise ValueError(
            f"{name} must be a {dtype} tensor of shape ({', '.join(map(str, expected))}), "
            f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )


def check_mask(name: str, tensor: Tensor, *shape: int | str) -> None:
    """Check that a tensor is a boolean mask of a batch (:func:`check_tensor`)."""
    check_tensor(name, tensor, torch.bool, *shape)
