"""Words of training text that become unknown words, the rarer the more often."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class WordDropout(nn.Module):
    """In training, replaces a word that occurs c times by the unknown word with probability α / (α + c).

    Kiperwasser and Goldberg, *Simple and Accurate Dependency Parsing Using Bidirectional LSTM Feature
    Representations* (2016), section 4. A model that never sees unknown words in training cannot tell them
    by their context. There are no parameters.

    Args:
        counts: occurrences of each word in the training text. Words with a negative count are never
            replaced, such as the end of sentence and the padding. Shape: (vocabulary,).
        alpha: α, 0 or more; 0.25 in the paper. 0 replaces nothing.
        unknown: index of the unknown word.

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
        # A checkpoint does not need it: the dictionary has the counts.
        self.register_buffer(
            "probability", probability.masked_fill(occurrences < 0, 0.0), persistent=False
        )

    def extra_repr(self) -> str:
        """Show the option in ``print(module)``."""
        return f"alpha={self.alpha}"

    def forward(self, tokens: Tensor) -> Tensor:
        """Replace words, in training only.

        Args:
            tokens: indices of words, of any shape, int64.

        Returns:
            The same, or a new tensor of the same shape.
        """
        if not self.training or self.alpha == 0:
            return tokens
        drawn = torch.rand(tokens.shape, device=tokens.device)
        return tokens.masked_fill(drawn < self.probability[tokens], self.unknown)
