"""Label-smoothed cross entropy as it is defined: one target token after the other."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear


def smoothed_cross_entropy(
    states: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, padding: int, ε: float
) -> tuple[Tensor, Tensor]:
    """Return the loss and the loss without smoothing; arguments are as in the package."""
    loss = nll_loss = torch.zeros((), dtype=states.dtype)
    for row, words in zip(states, target.tolist(), strict=True):
        for state, word in zip(row, words, strict=True):
            if word == padding:
                continue
            log_p = linear(state, weight, bias).log_softmax(-1)
            others = [log_p[other] for other in range(len(weight)) if other != word]
            nll_loss = nll_loss - log_p[word]
            loss = loss - (1 - ε) * log_p[word] - ε / len(others) * torch.stack(others).sum()
    return loss, nll_loss
