"""Copying source words: the scores of words of a vocabulary, joined with scores of source positions.

One idea serves all forms of copying. Let a word w have the score l_w, and a source position j with the
word x_j the score s_j. The joined score of w is

    o_w = log(exp(l_w) + Σ_{j: x_j = w} exp(s_j))

so softmax(o) is the softmax over all words *and* all positions, summed for each word. Thus every user
of a softmax of a decoder's scores (a criterion, beam search, an ensemble, the scorer of references)
copies without changes. The forms of copying differ only in s and l:

- joint (Jia and Liang, 2016): s_j = h_jᵀ V h̄_i;
- gate (See et al., 2017): p P_vocabulary(w) + (1 - p) Σ_{j: x_j = w} α_ij, by
  s_j = log α_ij + log((1 - p) / p) + log Σ_w exp(l_w);
- pointer (Vinyals et al., 2015): s = log softmax(h_jᵀ V h̄_i), and l_w has a constant near -∞.

Time and memory are linear in batch × target × (vocabulary + source).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from fairseq_phrase.methods.common.tensors import applied, upcast

#: In a pointer network, the log-probability of a word that is not in the source. A finite number keeps
#: losses finite: e^-100 is less than the smallest normal number of single precision.
OUTSIDE = -100.0


def join_scores(words: Tensor, positions: Tensor, source: Tensor, padding: Tensor) -> Tensor:
    """Compute o_w = log(exp(l_w) + Σ_{j: x_j = w} exp(s_j)). Shape: (batch, target, vocabulary).

    Args:
        words: l. Shape: (batch, target, vocabulary)
        positions: s. Shape: (batch, target, source)
        source: x, indices of the vocabulary. Shape: (batch, source), int64
        padding: True at padding. Shape: (batch, source)

    Examples:
        >>> words = torch.zeros(1, 1, 3)
        >>> source = torch.tensor([[2, 2]])
        >>> joined = join_scores(words, torch.zeros(1, 1, 2), source, source < 0)
        >>> joined.softmax(-1).tolist()[0][0]  # word 2 is in the vocabulary and twice in the source
        [0.20000000298023224, 0.20000000298023224, 0.6000000238418579]
    """
    return applied(_JoinScores, words, positions, source, padding)


class _JoinScores(torch.autograd.Function):
    """:func:`join_scores`, whose gradient does not need a second tensor of all words' scores.

    Only the scores of source words change. So all tensors but one copy have the shape (batch, target,
    source). Positions with the same word are a group; the group's first position stores its sum.

    All positions of a group, padding included, write the same value to their word. This value is the
    joined score instead of a difference to add, which means that half precision rounds only the result.
    The value of a group that is all padding is the word's own score.
    """

    @staticmethod
    def forward(
        ctx: Any, words: Tensor, positions: Tensor, source: Tensor, padding: Tensor
    ) -> Tensor:
        group = _groups(source, words.size(-1))
        # (batch, source) -> (batch, target, source)
        word = source.unsqueeze(1).expand_as(positions)
        word_scores = upcast(words.gather(-1, word))
        # An excluded word has -inf. A finite number instead keeps differences from it defined.
        word_scores.clamp_(min=torch.finfo(word_scores.dtype).min)
        scores = upcast(positions).masked_fill(padding.unsqueeze(1), -math.inf)
        group = group.unsqueeze(1).expand_as(scores)
        # Subtracting each group's largest score keeps exponentials from overflow and underflow.
        largest = scores.new_full(scores.shape, -math.inf)
        largest = largest.scatter_reduce(-1, group, scores, "amax").gather(-1, group)
        largest = largest.maximum(word_scores)
        sums = torch.zeros_like(scores).scatter_add(-1, group, (scores - largest).exp())
        joined = largest + (sums.gather(-1, group) + (word_scores - largest).exp()).log()
        ctx.save_for_backward(word, (word_scores - joined).exp(), (scores - joined).exp())
        ctx.type_of_positions = positions.dtype
        return words.scatter(-1, word, joined.to(words.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        word, share_of_word, share_of_position = ctx.saved_tensors
        at_source = gradient.gather(-1, word)
        of_positions = (at_source * share_of_position).to(ctx.type_of_positions)
        of_source_words = (at_source * share_of_word).to(gradient.dtype)
        return gradient.scatter(-1, word, of_source_words), of_positions, None, None


def _groups(source: Tensor, vocabulary: int) -> Tensor:
    """Return for each position the first position with its word. Shape: (batch, source), int64."""
    columns = torch.arange(source.size(1), device=source.device).expand_as(source)
    first = source.new_full((len(source), vocabulary), source.size(1))
    return first.scatter_reduce(1, source, columns, "amin").gather(1, source)


class CopySource(NamedTuple):
    """The source words, which can be copied.

    Attributes:
        states: h_j. Shape: (batch, source, source width)
        words: x, indices of the target's vocabulary. Shape: (batch, source), int64
        padding: True at padding. Shape: (batch, source)
    """

    states: Tensor
    words: Tensor
    padding: Tensor


class CopyScores(nn.Module):
    """Joins the scores of words with scores of source positions.

    Subclasses are built with the width of decoder states and the width of source states.
    """

    #: Whether the scores need the decoder's attention weights.
    needs_attention = False

    @abstractmethod
    def forward(
        self, words: Tensor, states: Tensor, source: CopySource, attention: Tensor | None
    ) -> Tensor:
        """Compute o. Shape: (batch, target, vocabulary).

        Args:
            words: l, the decoder's scores. Shape: (batch, target, vocabulary)
            states: h̄_i. Shape: (batch, target, width)
            attention: α, if ``needs_attention``. Shape: (batch, target, source)
        """


class JointCopy(CopyScores):
    """One softmax over words and positions, with s_j = h_jᵀ V h̄_i."""

    def __init__(self, width: int, source_width: int) -> None:
        super().__init__()
        # Initial scores have the size of a vocabulary's initial scores, about 1.
        deviation = 1 / math.sqrt(width * source_width)
        self.weight = nn.Parameter(torch.empty(source_width, width).normal_(std=deviation))

    def scores(self, states: Tensor, source: CopySource) -> Tensor:
        """Return s. Shape: (batch, target, source)."""
        return states @ (source.states @ self.weight).transpose(1, 2)

    def forward(
        self, words: Tensor, states: Tensor, source: CopySource, attention: Tensor | None
    ) -> Tensor:
        """Join; for arguments and shapes see :class:`CopyScores`."""
        return join_scores(words, self.scores(states, source), source.words, source.padding)


class PointerCopy(JointCopy):
    """Positions only: softmax(h_jᵀ V h̄_i) over the source, and :data:`OUTSIDE` for other words."""

    def forward(
        self, words: Tensor, states: Tensor, source: CopySource, attention: Tensor | None
    ) -> Tensor:
        """Join; for arguments and shapes see :class:`CopyScores`. Values of ``words`` are not used."""
        scores = upcast(self.scores(states, source))
        scores = scores.masked_fill(source.padding.unsqueeze(1), -math.inf).log_softmax(-1)
        # With a new tensor, the output layer would lack the gradient that distributed training waits for.
        # The gradient through a mask is zero, also at -∞.
        words = words.masked_fill(words.new_ones((), dtype=torch.bool), OUTSIDE)
        return join_scores(words, scores, source.words, source.padding)


class GateCopy(CopyScores):
    """Pointer-generator: p P_vocabulary + (1 - p) α, with p = sigmoid(w · [c_i; h̄_i] + b).

    *Decision*: α is only over tokens, even if the decoder attends to constituents. It is normalized over
    the tokens before it is mixed. c_i = Σ_j α_ij h_j sums the tokens' states with the given α. So c_i is
    not the decoder's whole context, which includes constituents and their accumulated values. The gate
    reads that context through h̄_i.
    """

    needs_attention = True

    def __init__(self, width: int, source_width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(source_width + width, 1)

    def forward(
        self, words: Tensor, states: Tensor, source: CopySource, attention: Tensor | None
    ) -> Tensor:
        """Join; for arguments and shapes see :class:`CopyScores`."""
        assert attention is not None
        gate = upcast(self.gate(torch.cat([attention @ source.states, states], -1)))
        weights = upcast(attention)
        # A window's weights do not sum to 1. A weight of 0 has a logarithm without a gradient.
        least = torch.finfo(weights.dtype).tiny
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=least)
        total = upcast(words).logsumexp(-1, keepdim=True)
        odds = logsigmoid(-gate) - logsigmoid(gate)
        scores = weights.clamp(min=least).log() + odds + total
        return join_scores(words, scores, source.words, source.padding)


#: The forms of copying by name.
COPIES: dict[str, type[CopyScores]] = {"joint": JointCopy, "gate": GateCopy, "pointer": PointerCopy}
