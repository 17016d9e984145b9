"""Attention of long sentences: in one after the other, without storing the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

#: Sentence length above which attention weights are not stored. With them, an encoder of relation biases
#: or structural positions has 1.9 or 2.2 times the memory of fairseq's at 256 tokens, without 1.1 or 1.3.
LONG = 192


def is_long(pairs: Tensor) -> bool:
    """Return whether attention recomputes its weights in the backward pass instead of storing them.

    It does so for one sentence after the other, only on a CPU: on a GPU it would launch too many kernels.

    Args:
        pairs: heads, or numbers of pairs. Shape: (..., queries, any size)
    """
    return pairs.size(-2) > LONG and not pairs.is_cuda


def one_of(batch: Tensor | None, index: int) -> Any:
    """Take a sentence of a batch, which may have one row for all sentences. Shape: (1, ...)."""
    return batch if batch is None or len(batch) == 1 else batch[index : index + 1]


class Batched(Protocol):
    """A structure of a batch's sentences."""

    def sentence(self, index: int) -> Any:
        """Take the structure of one sentence."""


def one_by_one(attend: Callable[..., Any], batch: Batched, *heads: Tensor) -> Tensor:
    """Attend in one sentence after the other, and again in the backward pass, to store no weights.

    Args:
        attend: takes a sentence's structure and heads, and returns the attended values first.
        heads: Shape of each: (batch, heads, tokens, head width)

    Returns:
        The attended values. Shape: (batch, heads, tokens, head width)
    """
    sentences: list[Tensor] = []
    for index, states in enumerate(zip(*(x.split(1) for x in heads), strict=True)):
        # It draws the same dropout twice, and knows autocast.
        sentences += checkpoint(attend, batch.sentence(index), *states, use_reentrant=False)[:1]
    return torch.cat(sentences)
