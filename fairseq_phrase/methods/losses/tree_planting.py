"""Tree-planting: a loss that makes attention between words decrease with their distance in the tree.

Source: Yoshida, Someya and Oseki, *Tree-Planted Transformers* (Findings of ACL 2024);
``docs/models/tree_losses.md``. With the number of edges D_ij between the words i and j in a tree and
the attention A_ij of a head from the word i to the word j:

    S_ij = exp(-D_ij) / Σ_k exp(-D_ik),   loss_i = KL(S_i ‖ A_i)

k runs over the words that i sees: on both sides, or on the left only with a causal mask, as in the paper.
A word's attention is the mean over its subwords, to a word the sum over that word's subwords.
*Decision*: attention to tokens outside words and to other nodes does not count: A is normalized over
words.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from fairseq_phrase.methods.common.tensors import upcast
from fairseq_phrase.methods.common.tree_positions import TreePositions


def tree_planting(
    weights: Tensor, words: Tensor, distances: Tensor, visible: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compare attention with distances; return the sum of the losses, and their number.

    Args:
        weights: attention, of tokens and optionally of other nodes after them.
            Shape: (batch, heads, nodes, nodes)
        words: 0-based index of the word each token belongs to, -1 at tokens outside words and at
            padding. Shape: (batch, tokens)
        distances: D. Shape: (batch, words, words)
        visible: True where the tokens of a row may attend; None for all. Shape: (batch, nodes, nodes)
    """
    tokens = words.size(1)
    weights = upcast(weights[:, :, :tokens, :tokens])
    limits, index = torch.finfo(weights.dtype), torch.arange(distances.size(1), device=words.device)
    # Whether a token belongs to a word. Shape: (batch, 1, words, tokens)
    of_word = (words[:, None] == index[:, None])[:, None]
    is_word = of_word.any(3)
    is_seen = is_word[:, :, None]
    with torch.autocast(words.device.type, enabled=False):
        of_word = of_word.to(weights.dtype)
        # The mean over the subwords of i is a sum here: rows are normalized below.
        between = of_word @ weights @ of_word.mT
        if visible is not None:
            pairs = visible[:, None, :tokens, :tokens].to(weights.dtype)
            is_seen = of_word @ pairs @ of_word.mT > 0
    target = (-distances).to(weights.dtype)[:, None].masked_fill(~is_seen, limits.min)
    total = between.sum(3, keepdim=True)
    attention = between.clamp(min=limits.tiny).log() - total.clamp(min=limits.tiny).log()
    losses = kl_div(attention, target.softmax(3).expand_as(attention), reduction="none").sum(3)
    return losses.where(is_word, 0.0).sum(), is_word.sum() * weights.size(1)


def tree_distances(words: Tensor, heads: Tensor) -> Tensor:
    """Count the edges between words, undefined at padding. Shape: (batch, words, words), int64.

    Args:
        words: as for :func:`tree_planting`.
        heads: 0-based index of each word's head. Shape: (batch, words)
    """
    return TreePositions(words, heads, words < 0).word_distances()
