"""Precision of sums: half precision is too coarse for them."""

from __future__ import annotations

import torch
from torch import Tensor


def upcast(values: Tensor) -> Tensor:
    """Convert half to single precision, in which sums are computed; keep double precision."""
    return values if values.dtype == torch.float64 else values.float()
