"""Phrases as nodes of an encoder: their first states, and what a causal model sees.

Their first states follow Algorithm 1, line 2.

In a causal model a phrase of the tokens i..j belongs to the position j (backward: i). Only nodes that
belong to this position or to a later one see it. A token therefore does not attend to phrases that end
after it.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from fairseq_phrase.methods.common.causal_window import CausalWindow
from fairseq_phrase.methods.common.tensors import cached_property, single_product, upcast
from fairseq_phrase.methods.phrases.phrase_batch import PhraseBatch, PhraseEdges

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
    num_tokens = phrases.num_tokens
    if states.shape[:2] != (phrases.batch_size, num_tokens):
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
    is_padding = phrases.padding_mask[:, num_tokens:, None]
    return torch.cat([states, first.to(states.dtype).masked_fill(is_padding, 0.0)], dim=1)


def _means(states: Tensor, phrases: PhraseBatch) -> Tensor:
    """Return the mean of each phrase's tokens. Shape: (batch, phrases, width)."""
    sums = single_product(phrases.is_member, states)
    return sums / phrases.is_member.sum(2, keepdim=True).clamp(min=1)


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
        """Pool; see :func:`with_phrases`. Shape: (batch, phrases, width)."""
        # Shape: (batch, heads, 1, tokens)
        scores = upcast(self.score(states)).mT[:, :, None]
        # Finite, because a slot without a phrase has no tokens.
        lowest = torch.finfo(scores.dtype).min
        weights = scores.masked_fill(~phrases.is_member[:, None], lowest).softmax(3)
        tokens = states.unflatten(2, (self.num_heads, -1)).transpose(1, 2)
        return single_product(weights, tokens).transpose(1, 2).flatten(2)


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
        """Project; see :func:`with_phrases`. Shape: (batch, phrases, width)."""
        is_member = phrases.is_member.long()
        first = is_member.argmax(2)
        last = phrases.num_tokens - 1 - is_member.flip(2).argmax(2)
        ends = [
            states.gather(1, index[:, :, None].expand(-1, -1, states.size(2)))
            for index in (first, last)
        ]
        return cast(Tensor, self.projection(torch.cat(ends, dim=2)))


class CausalPhrases(PhraseBatch):
    """The nodes of a batch; each sees the nodes that belong to its position or to an earlier one.

    Args:
        phrases: the nodes; the tokens of each phrase are adjacent.
        window: defines the direction of the past; without a context.

    Attributes:
        visible: True where a query sees a key; padding included. Shape: (batch, nodes, nodes)
    """

    def __init__(self, phrases: PhraseBatch, window: CausalWindow) -> None:
        starts, sizes = phrases.extents
        visible = window.visible(starts, starts + sizes - 1)
        # Padded nodes are adjacent to themselves and see themselves.
        self.visible = ~window.masked_pairs(visible, phrases.padding_mask)
        super().__init__(phrases.token_padding, phrases.is_member)
        self._all, self._window = phrases, window

    @cached_property
    def edges(self) -> PhraseEdges:
        """The adjacent pairs of which the query sees the key, sorted by query."""
        query, key = self._all.edges
        is_visible = self.visible.flatten(0, 1)[query, key % self.num_nodes]
        return PhraseEdges(query[is_visible], key[is_visible])

    @cached_property
    def adjacency(self) -> Tensor:
        """A of eq. 6, without later nodes. Shape: (batch, nodes, nodes)."""
        return self._all.adjacency & self.visible

    @cached_property
    def key_mask(self) -> Tensor:
        """The keys that phase 1 attends to. Shape: (batch, 1, nodes, nodes)."""
        return self.visible[:, None]

    @cached_property
    def tokens(self) -> CausalPhrases:
        """The tokens without phrases."""
        return CausalPhrases(self._all.tokens, self._window)
