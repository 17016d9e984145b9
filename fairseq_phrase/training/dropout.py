"""Dropout on a CPU from 16-bit random numbers: a third of the time, other numbers, the same distribution.

torch draws a number in double precision for every state, which takes most of the time of its dropout.
"""

from __future__ import annotations

import torch
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

#: How many values a random number has.
_VALUES = 2**16


def take_fast_dropout(model: nn.Module) -> str | None:
    """Let fairseq's dropout draw 16-bit numbers on a CPU.

    Args:
        model: the classes of its dropouts change.

    Returns:
        Why it stays fairseq's own; None if it does not.
    """
    parameter = next(model.parameters(), None)
    if parameter is None or parameter.device.type != "cpu":
        return "the model is not on a CPU"
    dropouts = [module for module in model.modules() if type(module) is FairseqDropout]
    for dropout in dropouts:
        dropout.__class__ = FastDropout
    return None if dropouts else "the model has no dropout of fairseq's"


class FastDropout(FairseqDropout):
    """fairseq's dropout with probabilities that are multiples of 1/65,536."""

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """Drop states at random in training, and scale those that stay.

        Args:
            x: the states. Shape: any
            inplace: overwrite them.
        """
        # With a probability of 1 nothing stays that could be scaled.
        if not self.training or not 0 < self.p < 1 or x.device.type != "cpu":
            dropped: Tensor = super().forward(x, inplace)
            return dropped
        factors = _factors(x, min(round(self.p * _VALUES), _VALUES - 1))
        return x.mul_(factors) if inplace else x * factors


def _factors(states: Tensor, dropped_values: int) -> Tensor:
    """Draw the factor of each state: 0 or, so that the expectation is 1, a factor above 1.

    Args:
        states: Shape: any
        dropped_values: how many of the 65,536 values of a random number drop a state.

    Returns:
        In the type and shape of the states.
    """
    count = states.numel()
    # Four numbers come from one random number of 64 bits.
    bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    numbers = bits.view(torch.int16)[:count].view(states.shape)  # from -32,768
    factors = torch.empty(states.shape, dtype=states.dtype)
    # Written as numbers, since a product with booleans is slow.
    torch.ge(numbers, dropped_values - _VALUES // 2, out=factors)
    return factors.mul_(_VALUES / (_VALUES - dropped_values))
