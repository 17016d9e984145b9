"""Half precision is too coarse to add up in."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["upcast"]


def upcast(values: Tensor) -> Tensor:
    """Go from half to single precision, in which sums are taken; double stays as it is."""
    return values if values.dtype == torch.float64 else values.float()
