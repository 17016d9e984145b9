"""Phrases that a chunker found: the constituents without constituents in them."""

from __future__ import annotations

from torch import Tensor

from fairseq_phrase.modules.parse_batch import ParseBatch
from fairseq_phrase.modules.phrases.sources.registry import (
    PhraseOptions,
    SourceTokens,
    phrase_source,
)


@phrase_source("chunk", fields=["words", "spans"])
def chunk(tokens: SourceTokens, parse: ParseBatch, options: PhraseOptions) -> Tensor:
    """Every constituent of several words that contains no other one; chunks do not overlap.

    ``phrase_max_length`` does not apply: the chunker decides how long a phrase is.
    """
    return chunk_members(parse["words"], parse["spans"])


def chunk_members(words: Tensor, spans: Tensor) -> Tensor:
    """Find the tokens of each chunk.

    In a tree made of chunk labels (``scripts/labelled_text.py``), chunks are the constituents below the
    root. In a parsed tree, they are the constituents of height one.

    Args:
        words: 0-based index of the word each token belongs to, -1 at tokens of no word.
            Shape: (batch, tokens)
        spans: first word and one past the last of each constituent; -1 at padding. Further columns are
            ignored. Shape: (batch, constituents, 2 or more)

    Returns:
        True where a chunk contains a token; rows of other constituents contain none.
        Shape: (batch, constituents, tokens), bool
    """
    start, end = spans[..., 0], spans[..., 1]
    several = (start >= 0) & (end - start > 1)
    # inner[b, i, j]: constituent j has several words, all of them in i, but not all words of i
    inner = (start[:, :, None] <= start[:, None]) & (end[:, None] <= end[:, :, None])
    inner &= (end - start)[:, None] < (end - start)[:, :, None]
    inner &= several[:, None]
    is_chunk = several & ~inner.any(2)
    word = words[:, None]
    members = (start[..., None] <= word) & (word < end[..., None]) & (word >= 0)
    return members & is_chunk[..., None]
