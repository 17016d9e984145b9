"""The one notion of "equal" of these tests."""

from __future__ import annotations

import torch
from torch import Tensor


def assert_same(actual: Tensor, expected: Tensor) -> None:
    """Fail unless two float64 results differ by rounding alone; the message says where."""
    assert actual.dtype == expected.dtype == torch.float64
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


def error(actual: Tensor, expected: Tensor) -> float:
    """Return the root mean square of a low-precision result's distance from the exact one."""
    return (actual.double() - expected.double()).square().mean().sqrt().item()
