"""The projections of multi-head self-attention: applied as one, initialized as fairseq's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

__all__ = ["initialize_projections", "project", "project_heads"]


def project(states: Tensor, projections: Sequence[nn.Linear]) -> Sequence[Tensor]:
    """Apply several projections to the same states as one product.

    The projections keep their own parameters. One product launches fewer kernels than one product for
    each, forward and backward, and needs the same arithmetic.

    Args:
        states: Shape: (..., width)
        projections: for example, those of queries, keys and values.

    Returns:
        Each projection's output, views of one tensor.
        Shape of each: (..., output width)
    """
    if any(projection._forward_pre_hooks for projection in projections):
        # Quantization noise is a hook on each projection, so each must be called.
        return [projection(states) for projection in projections]
    # Concatenate whole projections: their gradients are then contiguous and need no copy.
    weight = torch.cat([projection.weight for projection in projections])
    biases = [projection.bias for projection in projections]
    bias = None
    if any(each is not None for each in biases):
        bias = torch.cat(
            [
                weight.new_zeros(projection.out_features) if each is None else each
                for each, projection in zip(biases, projections, strict=True)
            ]
        )
    sizes = [projection.out_features for projection in projections]
    return linear(states, weight, bias).split(sizes, -1)


def project_heads(
    states: Tensor, projections: Sequence[nn.Linear], num_heads: int
) -> tuple[Tensor, ...]:
    """Apply several projections as one product (:func:`project`), and split each into heads.

    Args:
        states: Shape: (..., width)
        projections: such as those of queries, keys and values.
        num_heads: number of heads h.

    Returns:
        For each projection its heads.
        Shape of each: (..., heads, head width)

    Examples:
        >>> import torch
        >>> query, key = (torch.nn.Linear(6, 6) for _ in range(2))
        >>> [heads.shape for heads in project_heads(torch.zeros(2, 5, 6), (query, key), num_heads=3)]
        [torch.Size([2, 5, 3, 2]), torch.Size([2, 5, 3, 2])]
    """
    return tuple(each.unflatten(-1, (num_heads, -1)) for each in project(states, projections))


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
