"""Copying by enumeration: the probability of each word, word by word and position by position."""

from __future__ import annotations

import torch
from torch import Tensor


def joint(words: Tensor, positions: Tensor, source: list[int]) -> Tensor:
    """P(w) of one softmax over words and positions.

    Args:
        words: l of one target position. Shape: (vocabulary,)
        positions: s, without padding. Shape: (source,)
        source: x, without padding.
    """
    everything = torch.cat([words, positions]).softmax(0)
    totals = []
    for word in range(len(words)):
        total = everything[word]
        for j, source_word in enumerate(source):
            if source_word == word:
                total = total + everything[len(words) + j]
        totals.append(total)
    return torch.stack(totals)


def gate(words: Tensor, weights: Tensor, p: Tensor, source: list[int]) -> Tensor:
    """P(w) = p P_vocabulary(w) + (1 - p) Σ α_j over the positions j of w.

    Args:
        words: the vocabulary's scores of one target position. Shape: (vocabulary,)
        weights: α, which sum to 1, without padding. Shape: (source,)
        p: the probability of the vocabulary. Shape: ()
        source: x, without padding.
    """
    vocabulary = words.softmax(0)
    totals = []
    for word in range(len(words)):
        total = p * vocabulary[word]
        for j, source_word in enumerate(source):
            if source_word == word:
                total = total + (1 - p) * weights[j]
        totals.append(total)
    return torch.stack(totals)
