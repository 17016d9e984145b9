"""The states with which phrases enter the first layer (Algorithm 1, line 2)."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from fairseq_phrase.modules.phrases.phrase_batch import PhraseBatch, count
from fairseq_phrase.modules.tensors import upcast

FIRST_STATES = ("zero", "mean", "attention", "ends")


def with_phrases(states: Tensor, phrases: PhraseBatch, init: str | nn.Module = "zero") -> Tensor:
    """Append the phrases' first states to the tokens'. Shape: (batch, nodes, width).

    Args:
        states: token states. Shape: (batch, tokens, width)
        init: ``"zero"``; ``"mean"`` for the mean of the states of the phrase's tokens; or a learned
            module, :class:`PooledPhrases` or :class:`EndsOfPhrases`. First states are 0 at slots
            without a phrase.

    Raises:
        ValueError: if ``init`` is unknown or the shape does not fit the batch.
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
    if isinstance(init, nn.Module):
        first = init(states, phrases)
    elif init == "mean":
        first = _means(states, phrases)
    else:
        raise ValueError(f"unknown initial phrase state {init!r}, expected 'zero' or 'mean'")
    # (batch * phrases, width) -> (batch, phrases, width)
    first = first.view(batch, num_phrases, width).to(states.dtype)
    is_padding = phrases.padding_mask[:, num_tokens:, None]
    return torch.cat([states, first.masked_fill(is_padding, 0.0)], dim=1)


def _means(states: Tensor, phrases: PhraseBatch) -> Tensor:
    """Return the mean of each phrase's tokens. Shape: (batch * phrases, width)."""
    phrase, token = phrases.memberships
    slots = phrases.batch_size * (phrases.num_nodes - phrases.num_tokens)
    # (batch, tokens, width) -> (memberships, width)
    tokens = upcast(states.flatten(0, 1).index_select(0, token))
    sums = tokens.new_zeros(slots, tokens.size(1)).index_add(0, phrase, tokens)
    return sums / count(phrase, slots).clamp(min=1)[:, None]


class PooledPhrases(nn.Module):
    """First states as weighted means of the phrases' tokens, separately for each head's dimensions.

    A token's weight is a softmax, over the phrase's tokens, of a linear function of its state. The
    function starts at 0, so the first states start as the mean of the tokens.
    """

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.score = nn.Linear(width, num_heads, bias=False)
        nn.init.zeros_(self.score.weight)

    def forward(self, states: Tensor, phrases: PhraseBatch) -> Tensor:
        """Pool; see :func:`with_phrases`. Shape: (batch * phrases, width)."""
        phrase, token = phrases.memberships
        slots = phrases.batch_size * (phrases.num_nodes - phrases.num_tokens)
        # (batch, tokens, width) -> (memberships, heads), (memberships, heads, head width)
        scores = upcast(self.score(states)).flatten(0, 1).index_select(0, token)
        tokens = upcast(states.flatten(0, 1)).index_select(0, token)
        tokens = tokens.unflatten(1, (self.num_heads, -1))
        # The maximum cancels out, so it does not need a gradient.
        maxima = scores.new_full((slots, self.num_heads), -math.inf).scatter_reduce(
            0, phrase[:, None].expand_as(scores), scores.detach(), "amax"
        )
        weights = (scores - maxima[phrase]).exp()
        sums = weights.new_zeros(slots, self.num_heads).index_add(0, phrase, weights)
        weighed = tokens * (weights / sums[phrase])[:, :, None]
        return cast(
            Tensor,
            weighed.new_zeros(slots, *weighed.shape[1:]).index_add(0, phrase, weighed).flatten(1),
        )


class EndsOfPhrases(nn.Module):
    """First states as a projection of the concatenated states of the first and last token.

    The projection starts as their mean.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.projection = nn.Linear(2 * width, width, bias=False)
        with torch.no_grad():
            self.projection.weight.copy_(torch.eye(width).repeat(1, 2) / 2)

    def forward(self, states: Tensor, phrases: PhraseBatch) -> Tensor:
        """Project; see :func:`with_phrases`. Shape: (batch * phrases, width)."""
        phrase, token = phrases.memberships
        slots = phrases.batch_size * (phrases.num_nodes - phrases.num_tokens)
        empty = token.new_zeros(slots)
        first = empty.scatter_reduce(0, phrase, token, "amin", include_self=False)
        last = empty.scatter_reduce(0, phrase, token, "amax", include_self=False)
        rows = states.flatten(0, 1)
        ends = torch.cat([rows.index_select(0, first), rows.index_select(0, last)], dim=1)
        return cast(Tensor, self.projection(ends))
