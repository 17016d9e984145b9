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
            log_p_of_others = [log_p[number] for number in range(len(weight)) if number != word]
            nll_loss = nll_loss - log_p[word]
            loss = (
                loss
                - (1 - ε) * log_p[word]
                - ε / len(log_p_of_others) * torch.stack(log_p_of_others).sum()
            )
    return loss, nll_loss
