"""Phrases that are n-grams: spans of adjacent tokens (eq. 1), or of whole words."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_phrase.modules.parse_batch import ParseBatch
from fairseq_phrase.modules.phrases.phrase_batch import (
    NgramLevel,
    NgramPairs,
    PhraseBatch,
    without_phrases,
)
from fairseq_phrase.modules.phrases.sources.chains import word_ngrams
from fairseq_phrase.modules.phrases.sources.registry import (
    PhraseOptions,
    SourceTokens,
    check_max_length,
    phrase_source,
)
from fairseq_phrase.modules.tensors import check_mask, may_read


@phrase_source("ngram", fields=lambda options: ["words"] if options.phrase_unit == "word" else [])
def ngram(tokens: SourceTokens, parse: ParseBatch, options: PhraseOptions) -> PhraseBatch:
    """Every span of 2..k adjacent tokens, or of whole words with ``--phrase-unit word``."""
    if options.phrase_unit == "word":
        return word_ngrams(parse["words"], tokens.padding_mask, options.phrase_max_length)
    # Saves a few slots where the question does not wait for the device.
    last = tokens.is_unit[:, -1]
    ends_with_eos = may_read(last) and not last.numpy().any()
    return token_ngrams(
        tokens.is_unit, tokens.padding_mask, options.phrase_max_length, ends_with_eos=ends_with_eos
    )


@phrase_source("none")
def no_phrases(tokens: SourceTokens, parse: ParseBatch, options: PhraseOptions) -> PhraseBatch:
    """No phrase at all, as a control."""
    return without_phrases(tokens.padding_mask)


def token_ngrams(
    is_unit: Tensor, padding_mask: Tensor, max_length: int, *, ends_with_eos: bool = False
) -> PhraseBatch:
    """Make every span of 2..k adjacent tokens a phrase (eq. 1); left or right padding.

    Args:
        is_unit: True where a phrase may contain the token, False at end of sentence and padding.
            Shape: (batch, tokens)
        padding_mask: True at padding. The end of sentence is a node like any other token.
            Shape: (batch, tokens)
        max_length: most tokens in a phrase, k.
        ends_with_eos: promise that the last column holds no unit in any sentence. Phrases that reach
            it then get no slots, which saves k-1 slots per sentence.

    Raises:
        ValueError: if ``max_length < 2`` or a mask is not boolean of shape (batch, tokens).
    """
    check_max_length(max_length)
    check_mask("is_unit", is_unit)
    check_mask("padding_mask", padding_mask, *is_unit.shape)
    num_tokens = is_unit.size(1)
    reach = num_tokens - int(ends_with_eos)
    # Only checked where the check does not wait for the device.
    if ends_with_eos and may_read(is_unit) and is_unit[:, reach:].numpy().any():
        raise ValueError("ends_with_eos was promised, but the last column holds a unit")
    levels = [NgramLevel(1, 0, num_tokens)]
    is_padding = [padding_mask]
    is_phrase = (is_unit & ~padding_mask)[:, :reach]
    first_units = is_phrase
    for size in range(2, min(max_length, reach) + 1):
        # A phrase of this size is a phrase of the previous size plus one unit.
        is_phrase = is_phrase[:, :-1] & first_units[:, size - 1 :]
        offset = levels[-1].offset + levels[-1].length
        levels.append(NgramLevel(size, offset, is_phrase.size(1)))
        is_padding.append(~is_phrase)
    return PhraseBatch(
        padding_mask=torch.cat(is_padding, dim=1),
        num_tokens=num_tokens,
        pairs=NgramPairs(tuple(levels)),
    )
