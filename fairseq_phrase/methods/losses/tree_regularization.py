"""TreeReg: a loss that makes the states of constituents independent of their context.

Source: Nandi, Manning and Murty, *Sneaking Syntax into Transformer Language Models with Tree
Regularization* (NAACL 2025), section 3; ``docs/models/tree_losses.md``. With the part of x that is
orthogonal to y, ``orth(x, y) = x - (x·y / y·y) y``, the independence of the words i to j, and the loss of
a constituent of these words, which the parse divides after p, are

    SCIN(i, j) = ‖orth(h_j, h_{i-1})‖ + ‖orth(h_{j+1}, h_j)‖
    l(i, j) = -log softmax_q(SCIN(i, q) + SCIN(q + 1, j)) at q = p

*Decisions*: an encoder's states have seen both sides, a language model's only the left side. h_j and
h_{i-1} are states of the words' last tokens, h_{j+1} of the word's first token, as in the authors' code;
the term of h_{i-1} is 0 at the first word. Constituents of more than two parts are binarized to the
right. The term of h_{j+1} is the same for all q, and is omitted.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from fairseq_phrase.methods.common.labelling import first_tokens
from fairseq_phrase.methods.common.tensors import upcast


def tree_regularization(states: Tensor, words: Tensor, spans: Tensor) -> tuple[Tensor, ...]:
    """Score the divisions of constituents of three words or more, and compare with the parse.

    A binarized tree divides one constituent after each word. So row t of the scores belongs to the
    constituent that is divided after token t, and column q to its division after token q.

    Args:
        states: of the tokens. Shape: (batch, tokens, width)
        words: 0-based index of the word each token belongs to, -1 at tokens outside words and at
            padding. Shape: (batch, tokens)
        spans: each constituent's first word, one past its last word, and its label; -1 is padding.
            Words without tokens are left out of them. Shape: (batch, constituents, 3)

    Returns:
        The sum of the losses; how many divisions of the parse score highest; and the number of losses.
    """
    words, spans = _of_words_with_tokens(words, spans)
    position = torch.arange(words.size(1), device=words.device)
    left, right, ends = divided_spans(words, spans)
    divisions = ends[:, None] & (position >= left[..., None]) & (position < right[..., None])
    norms = orthogonal_norms(states)
    context = (left - 1).clamp(min=0)[..., None].expand_as(norms)
    before = norms.mT.gather(1, context) * (words.gather(1, left) > 0)[..., None]
    following = pad(norms.diagonal(-1, 1, 2), (0, 1))[:, None]
    scores = before + following + norms.gather(1, right[..., None].expand_as(norms))
    scores = scores.masked_fill(~divisions, torch.finfo(scores.dtype).min)
    counted = divisions.sum(2) > 1
    losses = -scores.log_softmax(2).diagonal(dim1=1, dim2=2)
    correct = (scores.argmax(2) == position) & counted
    return losses.where(counted, 0.0).sum(), correct.sum(), counted.sum()


def _of_words_with_tokens(words: Tensor, spans: Tensor) -> tuple[Tensor, Tensor]:
    """Number only the words that have tokens, in the tokens' words and in the constituents."""
    numbers = words.cummax(1).values
    is_first = words > pad(numbers[:, :-1], (1, 0), value=-1)
    before = is_first.cumsum(1) - 1

    def renumbered(bound: Tensor) -> Tensor:
        return (is_first[:, None] & (words[:, None] < bound[..., None])).sum(2)

    start, end, label = spans.unbind(2)
    bounds = torch.stack([renumbered(start), renumbered(end), label], 2)
    is_empty = (start < 0) | (bounds[..., 0] == bounds[..., 1])
    return before.where(words >= 0, -1), bounds.masked_fill(is_empty[..., None], -1)


def divided_spans(words: Tensor, spans: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find the first and the last token of the constituent that is divided after each token.

    Both are the token itself where none is divided. Also return whether the token is the last of a word
    before another word. Shape of each: (batch, tokens).
    """
    tokens = words.size(1)
    position = torch.arange(tokens, device=words.device).expand_as(words)
    ends = (words >= 0) & (pad(words[:, 1:], (0, 1), value=-1) == words + 1)
    first = first_tokens(words, tokens)
    last = tokens - 1 - first_tokens(words.flip(1), tokens)
    start, end, _ = pad(spans, (0, 0, 0, 1), value=-1).unbind(2)  # at least one
    real = start >= 0
    start, end = first.gather(1, start.clamp(min=0)), last.gather(1, (end - 1).clamp(min=0))
    # The left part is the largest constituent that ends at the token, or its word.
    left = pad(first.gather(1, words.clamp(min=0)), (0, 1))
    left = left.scatter_reduce(1, end.where(real, tokens), start, "amin")[:, :-1]
    # The right part ends with the smallest constituent that has the next word, too.
    has_both = (start[..., None] <= position[:, None]) & (end[..., None] > position[:, None])
    right = end[..., None].where(has_both & real[..., None], tokens).amin(1)
    divides = ends & (right < tokens)
    return left.where(divides, position), right.where(divides, position), ends


def orthogonal_norms(states: Tensor) -> Tensor:
    """Compute ‖orth(h_t, h_c)‖, in single precision or better. Shape: (batch, tokens t, tokens c)."""
    with torch.autocast(states.device.type, enabled=False):
        states = upcast(states)
        squares = states.square().sum(2).clamp(min=1e-12)
        cosines = (states @ states.mT).square() / (squares[:, :, None] * squares[:, None])
        # Below a sin² of 1e-6 states are parallel: the root's gradient would be unbounded.
        return (squares[:, :, None] * (1 - cosines).clamp(min=1e-6)).sqrt()
