"""fairseq's Adam as its equations, for one parameter after the other."""

from __future__ import annotations

import torch
from torch import Tensor


def adam_update(
    parameter: Tensor,
    gradients: list[Tensor],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> Tensor:
    """Return a parameter after one update for each gradient.

    The decay of the weights does not enter the averages (AdamW). ε is added to the root of the second
    average before its bias is corrected.
    """
    value = parameter.clone()
    first, second = torch.zeros_like(value), torch.zeros_like(value)
    for step, gradient in enumerate(gradients, start=1):
        first = betas[0] * first + (1 - betas[0]) * gradient
        second = betas[1] * second + (1 - betas[1]) * gradient**2
        rate = lr * (1 - betas[1] ** step) ** 0.5 / (1 - betas[0] ** step)
        value = value - lr * weight_decay * value
        value = value - rate * first / (second.sqrt() + eps)
    return value
