"""Hierarchical attention: words to sentences, sentences to a document.

Source: Yang et al., *Hierarchical Attention Networks for Document Classification* (NAACL 2016), section
2.2: eqs. 1-7 for words, 8-10 for sentences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from fairseq_phrase.methods.common.tensors import check_tensor, upcast
from fairseq_phrase.methods.recurrent.bidirectional import BidirectionalLayer
from fairseq_phrase.syntax.sentence_boundaries import sentences_of_dependencies


def by_dependencies(
    words: Tensor, heads: Tensor, relations: Tensor, padding_mask: Tensor
) -> Tensor:
    """Number the sentences from dependency trees (:mod:`fairseq_phrase.syntax.sentence_boundaries`).

    Args:
        words, heads, padding_mask: as for
            :class:`~fairseq_phrase.methods.common.tree_positions.TreePositions`.
            Shape: (batch, tokens), (batch, words), (batch, tokens)
        relations: the number of each word's relation. Shape: (batch, words), int64

    Returns:
        The sentence of each token in its line, from 0; a token outside words belongs to the sentence of
        the word before it (the end of sentence to the last sentence); -1 at padding.
        Shape: (batch, tokens), int64
    """
    check_tensor("words", words, torch.int64, *padding_mask.shape)
    check_tensor("relations", relations, torch.int64, *heads.shape)
    numbers = [
        sentences_of_dependencies(head[head >= 0], relation[head >= 0])
        for head, relation in zip(heads.cpu().numpy(), relations.cpu().numpy(), strict=True)
    ]
    return _for_tokens(numbers, words, padding_mask)


def _for_tokens(numbers: list[np.ndarray], words: Tensor, padding_mask: Tensor) -> Tensor:
    """Assign words' sentences to tokens; a token outside words gets the previous word's, or 0."""
    of_token = words.cpu().numpy()
    sentences = np.full(of_token.shape, 0)
    for row, (word, of_word) in enumerate(zip(of_token, numbers, strict=True)):
        if len(of_word):
            sentences[row] = np.where(word >= 0, of_word[word.clip(0)], 0)
    # Sentences are in order, so the running maximum is the previous word's sentence.
    sentences = np.maximum.accumulate(sentences, 1)
    return torch.from_numpy(sentences).to(words.device).masked_fill(padding_mask, -1)


@dataclass(frozen=True)
class SentenceBatch:
    """The sentences of a batch of documents, one document per row.

    Attributes:
        is_token: False at padding of documents. Shape: (batch, tokens), bool
        sentence_padding: True after the last sentence of a document.
            Shape: (batch, largest number of sentences), bool
        padding: True at padding of sentences. Shape: (sentences of all documents, longest), bool

    Examples:
        >>> batch = SentenceBatch.from_numbers(torch.tensor([[0, 0, 1], [0, 0, -1]]))
        >>> (~batch.padding).sum(1).tolist()
        [2, 1, 2]
    """

    is_token: Tensor
    sentence_padding: Tensor
    padding: Tensor

    @classmethod
    def from_numbers(cls, sentences: Tensor) -> SentenceBatch:
        """Make the sentences' rows.

        Args:
            sentences: the number of each token's sentence in its document, from 0 and in order; -1 at
                padding. Shape: (batch, tokens), int64
        """
        check_tensor("sentences", sentences, torch.int64, "batch", "tokens")
        is_token, device = sentences >= 0, sentences.device
        counts = sentences.amax(1) + 1
        most = max(int(counts.max()), 1)
        sentence_padding = torch.arange(most, device=device) >= counts[:, None]
        # Number sentences over all documents.
        numbers = (sentences + (counts.cumsum(0) - counts)[:, None])[is_token]
        lengths = torch.bincount(numbers, minlength=int(counts.sum()))
        longest = int(lengths.max()) if len(lengths) else 0
        padding = torch.arange(longest, device=device) >= lengths[:, None]
        return cls(is_token, sentence_padding, padding)

    def split(self, states: Tensor) -> Tensor:
        """Arrange the tokens with one sentence per row, 0 at padding.

        Args:
            states: of the documents' tokens. Shape: (batch, tokens, width)

        Returns:
            Shape: (sentences, longest, width)
        """
        # Tokens have the same order in documents and in sentences.
        split = states.new_zeros(*self.padding.shape, states.size(2))
        return split.index_put((~self.padding,), states[self.is_token])

    def join(self, split: Tensor) -> Tensor:
        """Undo :meth:`split`: return states of the documents' tokens, 0 at padding."""
        joined = split.new_zeros(*self.is_token.shape, split.size(2))
        return joined.index_put((self.is_token,), split[~self.padding])

    def by_document(self, vectors: Tensor) -> Tensor:
        """Arrange vectors by documents. Shape: (batch, largest number of sentences, width), 0 at padding.

        Args:
            vectors: Shape: (sentences of all documents, width)
        """
        arranged = vectors.new_zeros(*self.sentence_padding.shape, vectors.size(1))
        return arranged.index_put((~self.sentence_padding,), vectors)


class AttentionSum(nn.Module):
    """A sequence's weighted sum: u_t = tanh(W h_t + b), α = softmax(uᵀu_t), s = Σ α_t h_t (eqs. 5-7).

    Examples:
        >>> summary = AttentionSum(width=4)
        >>> summary(torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.bool)).shape
        torch.Size([2, 4])
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.projection = nn.Linear(width, width)
        self.query = nn.Parameter(torch.empty(width))
        nn.init.uniform_(self.query, -0.1, 0.1)

    def forward(self, states: Tensor, padding_mask: Tensor) -> Tensor:
        """Sum the states of each sequence. Shape: (batch, width).

        Args:
            states: Shape: (batch, length, width)
            padding_mask: True at padding. A sequence that is all padding has the sum 0.
                Shape: (batch, length), bool
        """
        scores = torch.tanh(self.projection(states)) @ self.query
        # The lowest finite number instead of -inf: a sequence that is all padding must not give NaN.
        scores = upcast(scores)
        scores = scores.masked_fill(padding_mask, torch.finfo(scores.dtype).min)
        weights = scores.softmax(1).masked_fill(padding_mask, 0.0).to(states)
        return torch.einsum("bl,blw->bw", weights, states)


class HierarchicalAttention(nn.Module):
    """A bidirectional GRU and attention over each sentence's words, then over the sentences.

    Args:
        hidden_dim: width of all states, both directions together.
        num_layers: GRU layers of the words, and as many of the sentences; 1 in the paper.
        dropout: on the inputs of the layers after the first, and of the sentences' GRU.
    """

    def __init__(
        self, *, input_dim: int, hidden_dim: int, num_layers: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()

        def layers(first: int) -> nn.ModuleList:
            widths = [first] + [hidden_dim] * (num_layers - 1)
            return nn.ModuleList(
                BidirectionalLayer("gru", input_dim=width, output_dim=hidden_dim)
                for width in widths
            )

        self.word_layers, self.sentence_layers = layers(input_dim), layers(hidden_dim)
        self.word_attention = AttentionSum(hidden_dim)
        self.sentence_attention = AttentionSum(hidden_dim)
        self.dropout = dropout

    def forward(
        self, inputs: Tensor, sentences: SentenceBatch
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """Encode documents.

        Args:
            inputs: the words' inputs. Shape: (batch, tokens, input width)

        Returns:
            The words' states after each layer (shape (batch, tokens, hidden width) each), the
            sentences' states (shape (batch, largest number of sentences, hidden width)), and the
            documents' states (shape (batch, hidden width)); 0 at padding.
        """
        states, padding = sentences.split(inputs), sentences.padding
        of_layers = []
        for number, layer in enumerate(self.word_layers):
            states = layer(self._dropped(states) if number else states, padding)
            of_layers.append(sentences.join(states))
        summaries = sentences.by_document(self.word_attention(states, padding))
        for layer in self.sentence_layers:
            summaries = layer(self._dropped(summaries), sentences.sentence_padding)
        return of_layers, summaries, self.sentence_attention(summaries, sentences.sentence_padding)

    def _dropped(self, states: Tensor) -> Tensor:
        return dropout(states, self.dropout, self.training)
