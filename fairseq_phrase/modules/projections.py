"""The projections of multi-head self-attention, as fairseq initializes them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import nn

__all__ = ["initialize_projections"]


def initialize_projections(inputs: Iterable[nn.Linear], output: nn.Linear) -> None:
    """Initialize projections as fairseq does for queries, keys and values of one width.

    Args:
        inputs: those of queries, keys and values, in the order in which random numbers are drawn.
        output: the one that joins the heads.
    """
    for projection in inputs:
        nn.init.xavier_uniform_(projection.weight, gain=1 / math.sqrt(2))
    nn.init.xavier_uniform_(output.weight)
    if output.bias is not None:
        nn.init.zeros_(output.bias)
