"""States of words and of sentences, made from the states of tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_phrase.modules.tensors import check_tensor


def first_of_words(states: Tensor, words: Tensor, num_words: int) -> Tensor:
    """Take the state of each word's first token. Shape: (batch, num_words, width).

    Args:
        states: of the tokens, and perhaps of further nodes after them. Shape: (batch, nodes, width)
        words: 0-based index of the word each token belongs to, -1 at tokens of no word and at padding.
            Shape: (batch, tokens), int64
        num_words: number of words to return for each sentence; sentences with fewer words get the state
            of a padded token, or of any other.

    Examples:
        >>> states = torch.arange(3.0).view(1, 3, 1)
        >>> first_of_words(states, torch.tensor([[0, 0, 1]]), 2).flatten().tolist()
        [0.0, 2.0]
    """
    check_tensor("words", words, torch.int64, states.size(0), "tokens")
    positions = torch.arange(words.size(1), device=words.device).expand_as(words)
    # Tokens of no word count as tokens of one word more, which is dropped.
    owner = words.masked_fill(words < 0, num_words)
    first = positions.new_zeros(len(words), num_words + 1)
    first = first.scatter_reduce(1, owner, positions, "amin", include_self=False)[:, :num_words]
    # Shape: (batch, words, width)
    return states.gather(1, first.unsqueeze(2).expand(-1, -1, states.size(2)))


def mean_of_words(states: Tensor, words: Tensor, num_words: int) -> Tensor:
    """Take the mean state of each word's tokens, 0 at padding; for the arguments see the first."""
    check_tensor("words", words, torch.int64, states.size(0), "tokens")
    numbers = torch.arange(num_words, device=words.device)
    # Shape: (batch, words, tokens)
    members = words.unsqueeze(1) == numbers[:, None]
    return _means(states[:, : words.size(1)], members)


def mean_of_tokens(states: Tensor, is_unit: Tensor) -> Tensor:
    """Take the mean of some of each sentence's states; 0 for a sentence without any.

    Args:
        states: Shape: (batch, tokens, width)
        is_unit: True at tokens that count. Shape: (batch, tokens), bool

    Returns:
        Shape: (batch, width)
    """
    return _means(states, is_unit.unsqueeze(1)).squeeze(1)


def _means(states: Tensor, members: Tensor) -> Tensor:
    """Average states over the rows of a mask of shape (batch, rows, tokens)."""
    counts = members.sum(2, keepdim=True).clamp(min=1)
    return torch.bmm(members.to(states) / counts.to(states), states)


def with_first_token(
    src_tokens: Tensor, words: Tensor | None, token: int
) -> tuple[Tensor, Tensor | None]:
    """Put a token before each sentence; it belongs to no word.

    Args:
        src_tokens: source, padded on the right. Shape: (batch, tokens), int64
        words: the word of each token, or None. Shape: (batch, tokens), int64
        token: the index of the new token.

    Returns:
        The longer source and words. Shape of each: (batch, 1 + tokens)
    """
    column = src_tokens.new_full((len(src_tokens), 1), token)
    longer = torch.cat([column, src_tokens], 1)
    if words is None:
        return longer, None
    return longer, torch.cat([torch.full_like(column, -1), words], 1)
