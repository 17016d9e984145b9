"""Coverage: the loss of attending again to what was attended to (See et al., 2017)."""

from __future__ import annotations

from torch import Tensor

from fairseq_phrase.modules.tensors import upcast


def coverage_loss(weights: Tensor, target_padding: Tensor) -> Tensor:
    """Sum min(α_ij, Σ_{i'<i} α_i'j) over source positions j and unpadded target positions i.

    Args:
        weights: α, 0 at the source's padding. Shape: (batch, target, source)
        target_padding: True at the target's padding, which comes last. Shape: (batch, target)

    Returns:
        The sum. Shape: ()

    Examples:
        >>> import torch
        >>> weights = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])
        >>> coverage_loss(weights, torch.zeros(1, 2, dtype=torch.bool)).item()
        0.5
    """
    weights = upcast(weights)
    before = weights.cumsum(1) - weights
    repeated = weights.minimum(before).sum(-1)
    return repeated.masked_fill(target_padding, 0.0).sum()
