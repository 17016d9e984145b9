"""Batches of raw text: how many sentences fit into one."""

from __future__ import annotations

import numpy as np
import pytest

from fairseq_phrase.data.batches.source_batches import PAIRS_PER_TOKEN, SourceBatcher
from fairseq_phrase.syntax.sentence import EncodedSentence
from fairseq_phrase.testing import make_dictionary


def encoded(tokens, spans):
    """A sentence of so many tokens, with its end, and constituents."""
    words = np.arange(tokens - 1)
    nodes = np.tile(np.array([[0, 1]]), (spans, 1)) if spans is not None else None
    labels = ["S"] * (spans or 0)
    return EncodedSentence(["w1"] * (tokens - 1), words, None, [], [], nodes, labels)


def batches(sentences, max_tokens, fields=("words", "spans"), **options):
    """The numbers of the sentences of each batch."""
    batcher = SourceBatcher(make_dictionary(), None, None)
    batcher.fields = {*fields}
    batcher.batch = lambda *_: None
    return [indices for indices, _ in batcher.batches(sentences, max_tokens, **options)]


@pytest.mark.parametrize(
    ("tokens", "spans", "size"),
    [
        (10, 9, 10),  # 19² pairs are less than 10 tokens
        (512, 511, 511),  # and so are 1,023²
        (512, 512, 512),
        (512, 600, 603),
        (1000, 999, 1951),
        (1000, None, 1000),
        (2048, 0, 2048),
    ],
)
def test_a_sentence_counts_as_its_tokens_or_as_the_pairs_of_its_nodes(tokens, spans, size):
    largest = max(tokens, size)
    if spans is not None:
        assert largest == max(tokens, (tokens + spans) ** 2 // PAIRS_PER_TOKEN)
    pair = [encoded(tokens, spans)] * 2
    assert [len(batch) for batch in batches(pair, 2 * largest)] == [2]
    assert [len(batch) for batch in batches(pair, 2 * largest - 1)] == [1, 1]


def test_constituents_do_not_count_for_models_that_do_not_read_them():
    pair = [encoded(1000, 999)] * 2
    assert [len(batch) for batch in batches(pair, 2000, fields=["words", "heads"])] == [2]
    assert [len(batch) for batch in batches(pair, 2000)] == [1, 1]


def test_padding_counts_and_no_batch_has_too_many_sentences():
    sentences = [encoded(tokens, 0) for tokens in (5, 9, 4, 10, 4)]
    assert batches(sentences, 15) == [[0, 4, 2], [1], [3]]
    assert batches(sentences, 12) == [[4, 2], [0], [1], [3]]
    assert batches(sentences, 20, max_sentences=2) == [[4, 2], [1, 0], [3]]
    assert batches(sentences, 3) == [[2], [4], [0], [1], [3]]
    assert batches(sentences, 1000) == [[3, 1, 0, 4, 2]]
