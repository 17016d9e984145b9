"""A head of self-attention that learns to point at each word's parent.

Source: Strubell et al., *Linguistically-Informed Self-Attention* (2018);
``docs/models/tree_losses.md``.
For each word's first subword t, ``loss = -log softmax_j(q_t' U k_j)`` at its parent's first subword; the
root points at itself.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fairseq_phrase.methods.common.labelling import first_tokens, have_tokens
from fairseq_phrase.methods.common.tensors import upcast


class Pointed(NamedTuple):
    """The loss and accuracy of a batch's words at pointing at their parents.

    Attributes:
        loss: -log p of the parents, added up over words.
        correct: number of words that point at a subword of their parent.
    """

    loss: Tensor
    correct: Tensor
    words: Tensor


class ParentPointer(nn.Module):
    """Scores of all tokens as a word's parent, by one head's queries and keys.

    It starts as the head's own attention: U is the identity over √d_head.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(width) / math.sqrt(width))

    def forward(self, query: Tensor, key: Tensor, words: Tensor, heads: Tensor) -> Pointed:
        """Score the parents, and compare with the parse.

        Args:
            query, key: of every token. Shape of each: (batch, tokens, width)
            words: 0-based index of the word each token belongs to, -1 at tokens outside words and at
                padding. A word may point at any token of a word. Shape: (batch, tokens)
            heads: 0-based index of each word's head; a root is its own head; -1 is padding. Words do not
                count if they or their heads have no tokens. Shape: (batch, words)
        """
        first = first_tokens(words, heads.size(1))
        # Shape: (batch, words, width)
        asking = query.gather(1, first[:, :, None].expand(-1, -1, query.size(2)))
        # Shape: (batch, words, tokens)
        scores = upcast(asking @ self.weight @ key.transpose(1, 2))
        has_tokens, head = have_tokens(words, heads.size(1)), heads.clamp(min=0)
        is_word = (heads >= 0) & has_tokens & has_tokens.gather(1, head)
        scores = scores.masked_fill((words < 0)[:, None], torch.finfo(scores.dtype).min)
        parent = first.gather(1, head)
        log_probability = scores.log_softmax(-1).gather(2, parent[:, :, None]).squeeze(2)
        predicted = words.gather(1, scores.argmax(-1))
        return Pointed(
            loss=-log_probability.where(is_word, 0.0).sum(),
            correct=((predicted == heads) & is_word).sum(),
            words=is_word.sum(),
        )
