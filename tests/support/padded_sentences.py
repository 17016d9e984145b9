"""Sentences of words and subwords laid out in a padded batch, and every kind of phrases over them."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from fairseq_phrase.methods.phrases.builtin_sources import (
    chain_phrases,
    phrases_of_members,
    token_ngrams,
    without_phrases,
    word_ngrams,
)
from fairseq_phrase.methods.phrases.phrase_batch import PhraseBatch
from tests.support.hostile import trees

TokenSets = set[tuple[int, ...]]


def pad(sentences: list[list[int]], left: bool) -> tuple[Tensor, Tensor]:
    """Lay sentences out: each token's word or -1, and the padding; every sentence ends with EOS."""
    rows = [
        [word for word, count in enumerate(subwords) for _ in range(count)] + [-1]
        for subwords in sentences
    ]
    width = max(map(len, rows))
    words, padding = [], []
    for row in rows:
        blank = width - len(row)
        words.append([-1] * blank + row if left else row + [-1] * blank)
        is_padding = [False] * len(row)
        padding.append([True] * blank + is_padding if left else is_padding + [True] * blank)
    return torch.tensor(words), torch.tensor(padding)


def pad_heads(heads: list[list[int]]) -> Tensor:
    width = max(map(len, heads))
    return torch.tensor([row + [-1] * (width - len(row)) for row in heads])


def phrases_of(batch: PhraseBatch) -> list[TokenSets]:
    """Return each sentence's phrases, after checking that none stands there twice."""
    phrases_of_sentences = []
    for nodes in batch.members():
        phrases = [node for node in nodes[batch.num_tokens :] if node]
        assert len(phrases) == len(set(phrases))
        assert all(len(phrase) >= 2 for phrase in phrases)
        phrases_of_sentences.append(set(phrases))
    return phrases_of_sentences


def members_of(sets: list[list[tuple[int, ...]]], padding: Tensor) -> Tensor:
    """Mark the tokens of each phrase. Shape: (batch, phrases, tokens), bool."""
    members = torch.zeros(len(sets), max(map(len, sets), default=0), padding.size(1)).bool()
    for sentence, phrases in enumerate(sets):
        for slot, phrase in enumerate(phrases):
            members[sentence, slot, list(phrase)] = True
    return members


def all_kinds(words: Tensor, heads: Tensor, padding: Tensor, k: int) -> dict[str, PhraseBatch]:
    listed = word_ngrams(words, padding, k).members()
    sets = [[node for node in nodes if len(node) > 1] for nodes in listed]
    return {
        "token": token_ngrams(words >= 0, padding, k),
        "token, ends with EOS": token_ngrams(
            (words >= 0) & (torch.arange(words.size(1)) < words.size(1) - 1),
            padding,
            k,
            ends_with_eos=True,
        ),
        "word": word_ngrams(words, padding, k),
        "dependency": chain_phrases(words, heads, padding, k),
        "members": phrases_of_members(members_of(sets, padding), padding),
        "none": without_phrases(padding),
    }


KINDS = ("token", "token, ends with EOS", "word", "dependency", "members", "none")


PATHS = ("dense", "edges")


# Words of several subwords, a non-projective tree (word 1 under 3 crosses 2 under 0), a sentence of
# one token, and one that is shorter by half.
SUBWORDS = [[1, 2, 1, 1, 2, 1], [1], [2, 1, 1]]


HEADS = [[0, 3, 0, 0, 1, 4], [0], [1, 1, 0]]


def make_phrases(kind: str, k: int = 3, left: bool = False) -> PhraseBatch:
    words, padding = pad(SUBWORDS, left)
    return all_kinds(words, pad_heads(HEADS), padding, k)[kind]


def random_heads(phrases: PhraseBatch, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Draw queries, keys and values. Shape of each: (batch, 2, nodes, 3)."""
    generator = torch.Generator().manual_seed(2)
    shape = (phrases.batch_size, 2, phrases.num_nodes, 3)
    return [
        torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype) for _ in range(3)
    ]


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]], bool]:
    """Heads of each sentence, subwords of each of its words, and whether padding is on the left."""
    heads = draw(st.lists(trees(8), min_size=1, max_size=4))
    subwords = [draw(st.lists(st.integers(1, 3), min_size=len(h), max_size=len(h))) for h in heads]
    return heads, subwords, draw(st.booleans())
