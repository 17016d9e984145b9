"""Checks of tensors, masks, and precision of sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor


def check_tensor(name: str, tensor: Tensor, dtype: torch.dtype, *shape: int | str) -> None:
    """Check a tensor's type and shape.

    Args:
        shape: the expected dimensions: a size, or a name for any size; ``batch, length`` by default.

    Raises:
        ValueError: its type, number of dimensions or a size differs.
    """
    expected = shape or ("batch", "length")
    fits = tensor.dim() == len(expected) and all(
        isinstance(size, str) or size == actual
        for size, actual in zip(expected, tensor.shape, strict=True)
    )
    if tensor.dtype != dtype or not fits:
        raise ValueError(
            f"{name} must be a {dtype} tensor of shape ({', '.join(map(str, expected))}), "
            f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )


def check_mask(name: str, tensor: Tensor, *shape: int | str) -> None:
    """Check that a tensor is a boolean mask of a batch (:func:`check_tensor`)."""
    check_tensor(name, tensor, torch.bool, *shape)


def may_read(tensor: Tensor) -> bool:
    """Return whether reading values avoids waiting for a GPU and graph breaks of torch.compile."""
    return not tensor.is_cuda and not torch.compiler.is_compiling()


Value = TypeVar("Value")


class cached_property(Generic[Value]):  # noqa: N801 - like functools.cached_property
    """A property that is computed once.

    Before Python 3.12 ``functools.cached_property`` uses a lock, which torch.compile cannot trace.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Value:
        value = self.compute(instance)
        setattr(instance, self.compute.__name__, value)
        return value


def infinite(masked: Tensor, dtype: torch.dtype) -> Tensor:
    """Return -inf where a mask is True, and 0 elsewhere; adding it is faster than filling, on a CPU."""
    return torch.zeros_like(masked, dtype=dtype).masked_fill_(masked, -math.inf)


def masked_keys(padding_mask: Tensor) -> Tensor:
    """Return the mask of keys without weight.

    A sentence that is all padding attends to itself, to avoid NaN in the gradients.

    Args:
        padding_mask: True at padding. Shape: (batch, tokens)
    """
    return padding_mask & ~padding_mask.all(1, keepdim=True)


def upcast(values: Tensor) -> Tensor:
    """Convert half to single precision, in which sums are computed; keep double precision."""
    return values if values.dtype == torch.float64 else values.float()


def single_product(left: Tensor, right: Tensor) -> Tensor:
    """Multiply matrices in single precision, also under autocast; keep double. Shape: as ``@``'s."""
    device, dtype = right.device.type, upcast(right).dtype
    if device != "meta" and torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            return left.to(dtype) @ right.to(dtype)
    return left.to(dtype) @ right.to(dtype)


def exact_product(left: Tensor, right: Tensor) -> Tensor:
    """Multiply boolean matrices as numbers. Counts below 2**24 are exact. Shape: as ``@``'s."""
    return single_product(left, right).long()


def applied(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    """Apply a function that defines its gradient; torch's ``apply`` is not typed."""
    return cast(Tensor, function.apply(*inputs))
