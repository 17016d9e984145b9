"""The states with which phrases enter the first layer (Algorithm 1, line 2)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from fairseq_phrase.modules.phrases.adjacent_pairs import count
from fairseq_phrase.modules.phrases.phrase_batch import PhraseBatch
from fairseq_phrase.modules.precision import upcast

__all__ = ["FIRST_STATES", "with_phrases"]

FIRST_STATES = ("zero", "mean")


def with_phrases(states: Tensor, phrases: PhraseBatch, init: str = "zero") -> Tensor:
    """Append the phrases' first states to the tokens'.

    Args:
        states: token states.
            Shape: (batch, tokens, width)
        phrases: the nodes.
        init: ``"zero"``, or ``"mean"`` for the mean of the states of the phrase's tokens.

    Returns:
        Shape: (batch, nodes, width)

    Raises:
        ValueError: if ``init`` is unknown or the shape does not fit.
    """
    batch, num_tokens, width = states.shape
    if (batch, num_tokens) != (phrases.batch_size, phrases.num_tokens):
        raise ValueError(
            f"states of shape {tuple(states.shape)} do not fit a batch of {phrases.batch_size} "
            f"sentences of {phrases.num_tokens} tokens"
        )
    num_phrases = phrases.num_nodes - num_tokens
    if init == "zero":
        return pad(states, (0, 0, 0, num_phrases))
    if init != "mean":
        raise ValueError(f"unknown initial phrase state {init!r}, expected 'zero' or 'mean'")
    phrase, token = phrases.memberships
    # (batch, tokens, width) -> (memberships, width)
    tokens = upcast(states.reshape(-1, width).index_select(0, token))
    sums = tokens.new_zeros(batch * num_phrases, width).index_add(0, phrase, tokens)
    sizes = count(phrase, batch * num_phrases).clamp(min=1)
    means = (sums / sizes[:, None]).view(batch, num_phrases, width)
    return torch.cat([states, means.to(states.dtype)], dim=1)
