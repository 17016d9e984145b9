"""Checks of tensors, additive masks, precision of sums, and choices of the faster kernel."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


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


def carrier(number: int) -> Tensor:
    """Return a tensor that carries a number where only tensors are allowed: a batch, a decoder's state.

    It is empty: the number is its second size, which the host knows without waiting for a GPU.
    Shape: (0, number)
    """
    return torch.empty(0, number)


def carried(tensor: Tensor) -> int:
    """Return the number of a :func:`carrier`."""
    return tensor.size(1)


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


# Values computed from a tensor live only as long as the tensor.
_made = WeakTensorKeyDictionary()


def cached_per_tensor(tensor: Tensor, key: Any, make: Callable[[], Value]) -> Value:
    """Compute a value from a tensor once, for all layers of a batch.

    Args:
        key: identifies the value.
    """
    # The compiler removes repeated computations itself.
    if torch.compiler.is_compiling():
        return make()
    # The version counts changes in place. Tensors of inference mode lack a version.
    key = key, 0 if tensor.is_inference() else tensor._version
    values = _made.setdefault(tensor, {})
    if key not in values:
        values[key] = make()
    return cast(Value, values[key])


def padding_of(tokens: Tensor, padding_index: int) -> Tensor:
    """Return the mask of padding; computed once per tensor. Shape: (batch, tokens), bool.

    Args:
        tokens: Shape: (batch, tokens)
    """
    return cached_per_tensor(tokens, padding_index, lambda: tokens.eq(padding_index))


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a boolean mask into a summand of the scores: 0 where it is True, -inf elsewhere.

    ``scaled_dot_product_attention`` would convert the mask in every call. This function converts it
    once, and all layers of a batch share the result.

    Args:
        mask: True where attention is allowed.
        dtype: of the scores.

    Returns:
        Shape: as the mask
    """
    return cached_per_tensor(mask, dtype, lambda: infinite(~mask, dtype))


def infinite(masked: Tensor, dtype: torch.dtype) -> Tensor:
    """Return -inf where a mask is True, and 0 elsewhere; adding it is faster than filling, on a CPU."""

    def make() -> Tensor:
        return torch.zeros_like(masked, dtype=dtype).masked_fill_(masked, -math.inf)

    return cached_per_tensor(masked, ("infinite", dtype), make)


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


def exact_product(left: Tensor, right: Tensor) -> Tensor:
    """Multiply boolean matrices as numbers, in single precision also under autocast. Shape: as ``@``'s.

    Counts below 2**24 are exact.
    """
    device = left.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            return (left.float() @ right.float()).long()
    return (left.float() @ right.float()).long()


#: Sentence length above which attention weights are not stored. With them, an encoder of relation biases
#: or structural positions has 1.9 or 2.2 times the memory of fairseq's at 256 tokens, without 1.1 or 1.3.
LONG = 192


def is_long(heads: Tensor) -> bool:
    """Return whether attention recomputes its weights in the backward pass instead of storing them.

    It does so for one sentence after the other, only on a CPU: on a GPU it would launch too many kernels.

    Args:
        heads: Shape: (batch, heads, queries, any size)
    """
    return heads.size(2) > LONG and not heads.is_cuda


def one_of(batch: Tensor | None, index: int) -> Any:
    """Take a sentence of a batch, which may have one row for all sentences. Shape: (1, ...)."""
    return batch if batch is None or len(batch) == 1 else batch[index : index + 1]


def applied(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    """Apply a function that defines its gradient; torch's ``apply`` is not typed."""
    return cast(Tensor, function.apply(*inputs))


CROSSOVERS = Path(__file__).with_name("crossovers.json")
Setting = TypeVar("Setting")


def crossover(name: str) -> dict[str, float]:
    """Read the numbers of a crossover, by type of device: ``cpu``, ``cuda``."""
    return cast(dict[str, float], json.loads(CROSSOVERS.read_text(encoding="utf-8"))[name])


def for_device(choices: dict[str, Setting], device: torch.device) -> Setting:
    """Look up the setting for a device; devices without measurements use CUDA's."""
    return choices.get(device.type, choices["cuda"])
