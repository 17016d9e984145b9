"""Layers of labellers: states of words and of sentences, and word dropout."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fairseq_phrase.methods.common.tensors import check_tensor


def first_tokens(words: Tensor, num_words: int) -> Tensor:
    """Find the column of each word's first token, else 0. Shape: (batch, words), int64.

    Args:
        words: 0-based index of the word each token belongs to, -1 at tokens outside words and at padding.
            Shape: (batch, tokens), int64
    """
    positions = torch.arange(words.size(1), device=words.device).expand_as(words)
    # Tokens outside words count as tokens of an additional word, which is dropped.
    owner = words.masked_fill(words < 0, num_words)
    first = positions.new_zeros(len(words), num_words + 1)
    return first.scatter_reduce(1, owner, positions, "amin", include_self=False)[:, :num_words]


def have_tokens(words: Tensor, num_words: int) -> Tensor:
    """Find the words that have tokens: a truncated text lacks the last ones. Shape: (batch, words).

    Args:
        words: as for :func:`first_tokens`.
    """
    index = torch.arange(num_words, device=words.device)
    return (words[:, None] == index[:, None]).any(2)


def first_of_words(states: Tensor, words: Tensor, num_words: int) -> Tensor:
    """Take the state of each word's first token. Shape: (batch, num_words, width).

    Args:
        states: of the tokens, and optionally of other nodes after them. Shape: (batch, nodes, width)
        words: as for :func:`first_tokens`. Shape: (batch, tokens), int64
        num_words: number of words to return for each sentence; sentences with fewer words are padded with
            the state of any token.

    Examples:
        >>> states = torch.arange(3.0).view(1, 3, 1)
        >>> first_of_words(states, torch.tensor([[0, 0, 1]]), 2).flatten().tolist()
        [0.0, 2.0]
    """
    check_tensor("words", words, torch.int64, states.size(0), "tokens")
    first = first_tokens(words, num_words)
    # Shape: (batch, words, width)
    return states.gather(1, first.unsqueeze(2).expand(-1, -1, states.size(2)))


def mean_of_words(states: Tensor, words: Tensor, num_words: int) -> Tensor:
    """Take the mean state of each word's tokens, 0 at padding; see :func:`first_of_words`."""
    check_tensor("words", words, torch.int64, states.size(0), "tokens")
    numbers = torch.arange(num_words, device=words.device)
    # Shape: (batch, words, tokens)
    members = words.unsqueeze(1) == numbers[:, None]
    return _means(states[:, : words.size(1)], members)


def mean_of_tokens(states: Tensor, is_unit: Tensor) -> Tensor:
    """Take the mean of each sentence's states at units, 0 without units. Shape: (batch, width).

    Args:
        states: Shape: (batch, tokens, width)
        is_unit: True at tokens that count. Shape: (batch, tokens), bool
    """
    return _means(states, is_unit.unsqueeze(1)).squeeze(1)


def _means(states: Tensor, members: Tensor) -> Tensor:
    """Average states over the rows of a mask of shape (batch, rows, tokens)."""
    counts = members.sum(2, keepdim=True).clamp(min=1)
    return torch.bmm(members.to(states) / counts.to(states), states)


def with_first_token(
    src_tokens: Tensor, words: Tensor | None, token: int
) -> tuple[Tensor, Tensor | None]:
    """Put a token outside words before each sentence. Shape of both results: (batch, 1 + tokens).

    Args:
        src_tokens: source, padded on the right. Shape: (batch, tokens), int64
        words: the word of each token, or None. Shape: (batch, tokens), int64
    """
    column = src_tokens.new_full((len(src_tokens), 1), token)
    longer = torch.cat([column, src_tokens], 1)
    if words is None:
        return longer, None
    return longer, torch.cat([torch.full_like(column, -1), words], 1)


class WordDropout(nn.Module):
    """In training, replaces a word that occurs c times by the unknown word with probability α / (α + c).

    Kiperwasser and Goldberg, *Simple and Accurate Dependency Parsing Using Bidirectional LSTM Feature
    Representations* (2016), section 4. A model that never sees unknown words in training cannot recognize
    them by their context. The module lacks parameters.

    Args:
        counts: occurrences of each word in the training text. Words with a negative count are never
            replaced, such as the end of sentence and the padding. Shape: (vocabulary,).
        alpha: α, 0 or more; 0.25 in the paper. 0 replaces nothing.

    Raises:
        ValueError: α is negative.

    Examples:
        >>> dropout = WordDropout([-1, 0, 8640], alpha=0.25, unknown=1)
        >>> [round(value, 4) for value in dropout.probability.tolist()]
        [0.0, 1.0, 0.0]
        >>> dropout.eval()(torch.tensor([0, 1, 2])).tolist()
        [0, 1, 2]
    """

    probability: Tensor

    def __init__(self, counts: Sequence[int], alpha: float, unknown: int) -> None:
        super().__init__()
        if not alpha >= 0:
            raise ValueError(f"alpha {alpha}: expected a number that is not negative")
        self.alpha, self.unknown = alpha, unknown
        occurrences = torch.tensor(counts, dtype=torch.float32)
        probability = alpha / (alpha + occurrences.clamp(min=0) + (alpha == 0))
        # Not in checkpoints: the dictionary has the counts.
        self.register_buffer(
            "probability", probability.masked_fill(occurrences < 0, 0.0), persistent=False
        )

    def extra_repr(self) -> str:
        """Show the option in ``print(module)``."""
        return f"alpha={self.alpha}"

    def forward(self, tokens: Tensor) -> Tensor:
        """Replace words, in training only. Shape: as the tokens.

        Args:
            tokens: indices of words, of any shape, int64.
        """
        if not self.training or self.alpha == 0:
            return tokens
        drawn = torch.rand(tokens.shape, device=tokens.device)
        return tokens.masked_fill(drawn < self.probability[tokens], self.unknown)
