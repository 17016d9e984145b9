"""Which sentence of its line each token of a padded batch belongs to."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairseq_phrase.modules.tensors import check_tensor
from fairseq_phrase.syntax.sentence_boundaries import (
    sentences_of_constituents,
    sentences_of_dependencies,
)


def by_dependencies(
    words: Tensor, heads: Tensor, relations: Tensor, padding_mask: Tensor
) -> Tensor:
    """Number the sentences by dependency trees (:mod:`fairseq_phrase.syntax.sentence_boundaries`).

    Args:
        words: 0-based index of the word each token belongs to, -1 at tokens of no word and at padding.
            Shape: (batch, tokens), int64
        heads: 0-based index of each word's head; a root is its own head; -1 at padding.
            Shape: (batch, words), int64
        relations: the number of each word's relation. Shape: as ``heads``
        padding_mask: True at padding. Shape: (batch, tokens), bool

    Returns:
        The sentence of each token in its line, from 0; a token of no word belongs to the sentence of the
        word before it (the end of sentence to the last one); -1 at padding.
        Shape: (batch, tokens), int64
    """
    check_tensor("words", words, torch.int64, *padding_mask.shape)
    check_tensor("relations", relations, torch.int64, *heads.shape)
    numbers = [
        sentences_of_dependencies(head[head >= 0], relation[head >= 0])
        for head, relation in zip(heads.cpu().numpy(), relations.cpu().numpy(), strict=True)
    ]
    return _for_tokens(numbers, words, padding_mask)


def by_constituents(
    words: Tensor,
    spans: Tensor,
    root: int,
    padding_mask: Tensor,
    separates: Tensor | None = None,
) -> Tensor:
    """Number the sentences by constituents (:mod:`fairseq_phrase.syntax.sentence_boundaries`).

    Args:
        words: as for :func:`by_dependencies`.
        spans: first word, one past the last, and label of each constituent, in post-order; -1 at padding.
            Shape: (batch, constituents, 3), int64
        root: the number of the label of joined trees.
        padding_mask: as for :func:`by_dependencies`.
        separates: True at ends of sentences, which are words between two sentences; None if there are
            none there. Shape: (batch, tokens), bool

    Returns:
        As :func:`by_dependencies`.
    """
    check_tensor("words", words, torch.int64, *padding_mask.shape)
    check_tensor("spans", spans, torch.int64, words.size(0), "constituents", 3)
    counts = words.amax(1).add(1).tolist() if words.size(1) else [0] * words.size(0)
    ends = None
    if separates is not None:
        ends = torch.where(separates, words, -1).cpu().numpy()
    numbers = []
    for line, (row, count) in enumerate(zip(spans.cpu().numpy(), counts, strict=True)):
        real = row[row[:, 0] >= 0]
        # The last end of sentence is not a word.
        between = () if ends is None else ends[line][ends[line] >= 0]
        numbers.append(sentences_of_constituents(real[:, :2], real[:, 2], root, count, between))
    return _for_tokens(numbers, words, padding_mask)


def _for_tokens(numbers: list[np.ndarray], words: Tensor, padding_mask: Tensor) -> Tensor:
    """Give tokens the sentences of their words; one of no word has that of the word before it, or 0."""
    of_token = words.cpu().numpy()
    found = np.full(of_token.shape, 0)
    for row, (own, of_word) in enumerate(zip(of_token, numbers, strict=True)):
        if len(of_word):
            found[row] = np.where(own >= 0, of_word[own.clip(0)], 0)
    # Sentences are in order, so the largest number so far is that of the last word so far.
    found = np.maximum.accumulate(found, 1)
    return torch.from_numpy(found).to(words.device).masked_fill(padding_mask, -1)


def by_final_tokens(src_tokens: Tensor, is_final: Tensor, eos: int, padding_mask: Tensor) -> Tensor:
    """Number the sentences by their last tokens, without a parse.

    A sentence ends after a run of final tokens, such as full stops and separators. An abbreviation's full
    stop also ends it.

    Args:
        src_tokens: token indices. Shape: (batch, tokens), int64
        is_final: whether each token of the dictionary ends a sentence. Shape: (dictionary,), bool
        eos: the index of the end of sentence, which belongs to the sentence before it.
        padding_mask: True at padding. Shape: (batch, tokens), bool

    Returns:
        As :func:`by_dependencies`.
    """
    final = (is_final[src_tokens] | src_tokens.eq(eos)) & ~padding_mask
    # A sentence begins at a token that is not final and whose predecessor is.
    begins = torch.zeros_like(final)
    begins[:, 1:] = final[:, :-1] & ~final[:, 1:]
    return (begins & ~padding_mask).cumsum(1).masked_fill(padding_mask, -1)
