"""Phrases that are edges and chains of the dependency tree (eq. 8)."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_phrase.modules.parse_batch import ParseBatch
from fairseq_phrase.modules.phrases.chains import dependency_chains
from fairseq_phrase.modules.phrases.phrase_batch import ListedPairs, PhraseBatch
from fairseq_phrase.modules.phrases.sources.registry import (
    PhraseOptions,
    SourceTokens,
    check_max_length,
    phrase_source,
)
from fairseq_phrase.modules.tensors import check_mask, check_tensor


@phrase_source("dependency", fields=["words", "heads"])
def dependency(tokens: SourceTokens, parse: ParseBatch, options: PhraseOptions) -> PhraseBatch:
    """Every dependency edge, and for k >= 3 every chain of up to k words."""
    return chain_phrases(
        parse["words"], parse["heads"], tokens.padding_mask, options.phrase_max_length
    )


def chain_phrases(
    words: Tensor, heads: Tensor, padding_mask: Tensor, max_length: int
) -> PhraseBatch:
    """Make every dependency edge a phrase (eq. 8), and for k >= 3 every chain of up to k words.

    Args:
        words: 0-based index of the word each token belongs to, -1 at tokens of no word. Each word
            must have a token. Shape: (batch, tokens)
        heads: 0-based index of each word's head; a root is its own head; -1 is padding.
            Shape: (batch, words)
        padding_mask: True at padding. Shape: (batch, tokens)
        max_length: most words in a phrase, k.

    Raises:
        ValueError: if ``max_length < 2``, a tensor has a wrong type or shape, or the heads are not
            trees over the sentence's words.
    """
    check_max_length(max_length)
    check_tensor("words", words, torch.int64)
    check_tensor("heads", heads, torch.int64)
    check_mask("padding_mask", padding_mask, *words.shape)
    if heads.size(0) != words.size(0):
        raise ValueError(f"{heads.size(0)} rows of heads for {words.size(0)} sentences")
    nodes, edges = dependency_chains(words, heads, padding_mask, max_length)
    return PhraseBatch(padding_mask=nodes, num_tokens=words.size(1), pairs=ListedPairs(edges))
