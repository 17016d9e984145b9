"""Constituents as phrases: the batched builder against sets of tokens, and the model with them."""

from __future__ import annotations

import pytest
import torch
from fairseq.models import MODEL_DATACLASS_REGISTRY
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.phrases.builtin_sources import (
    chunk_members,
    constituent_phrases,
    phrases_of_members,
)
from tests.support.padded_sentences import pad, phrases_of
from tests.support.phrase_models import batch, build, encode
from tests.support.tree_strategies import Tree, trees
from tests.twins.phrase_attention import literal_adjacency
from tests.twins.phrase_encoder import twin_encoder


def pad_spans(forest: list[Tree], subwords: list[list[int]]) -> torch.Tensor:
    """The constituents, and below them a nonterminal for every word of several subwords."""
    rows = []
    for tree, counts in zip(forest, subwords, strict=True):
        words = [[word, word + 1] for word, count in enumerate(counts) if count > 1]
        # Post-order; the sort is stable, and words stand before constituents over the same word.
        spans = sorted(words + tree.spans, key=lambda span: (span[1], -span[0]))
        rows.append(torch.tensor([[*span, 4] for span in spans], dtype=torch.int64).view(-1, 3))
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)


@given(
    st.lists(trees(max_leaves=6), min_size=1, max_size=4),
    st.integers(2, 7),
    st.booleans(),
    st.data(),
)
def test_phrases_are_the_constituents_of_up_to_k_words_and_of_several_tokens(
    forest: list[Tree], k: int, left: bool, data: st.DataObject
) -> None:
    counts = [
        data.draw(st.lists(st.integers(1, 3), min_size=tree.leaves, max_size=tree.leaves))
        for tree in forest
    ]
    words, padding = pad(counts, left)
    spans = pad_spans(forest, counts)
    phrases = constituent_phrases(words, spans, padding, k)
    expected = []
    for row, sentence_spans in zip(words.tolist(), spans.tolist(), strict=True):
        members = (
            tuple(token for token, word in enumerate(row) if start <= word < end)
            for start, end, _ in sentence_spans
            if 0 < end - start <= k
        )
        expected.append({tokens for tokens in members if len(tokens) > 1})
    assert phrases_of(phrases) == expected
    assert phrases.num_nodes == words.size(1) + max(map(len, expected))
    adjacency = literal_adjacency(phrases)
    assert torch.equal(phrases.adjacency, adjacency)
    query, key = phrases.edges
    sentence, row, column = adjacency.nonzero(as_tuple=True)
    assert torch.equal(query, sentence * phrases.num_nodes + row)
    assert torch.equal(key, sentence * phrases.num_nodes + column)


@given(st.lists(trees(max_leaves=8), min_size=1, max_size=3), st.booleans(), st.data())
def test_chunks_are_the_constituents_of_several_words_without_others_in_them(
    forest: list[Tree], left: bool, data: st.DataObject
) -> None:
    counts = [
        data.draw(st.lists(st.integers(1, 3), min_size=tree.leaves, max_size=tree.leaves))
        for tree in forest
    ]
    words, padding = pad(counts, left)
    phrases = phrases_of_members(chunk_members(words, pad_spans(forest, counts)), padding)
    expected = []
    for row, tree in zip(words.tolist(), forest, strict=True):
        several = {(start, end) for start, end in tree.spans if end - start > 1}
        chunks = {
            (start, end)
            for start, end in several
            if not any((a, b) != (start, end) and start <= a and b <= end for a, b in several)
        }
        expected.append(
            {
                tuple(token for token, word in enumerate(row) if start <= word < end)
                for start, end in chunks
            }
        )
    assert phrases_of(phrases) == expected


def test_a_batch_without_constituents_has_no_phrases() -> None:
    words, padding = pad([[1], [1]], left=False)
    phrases = constituent_phrases(words, torch.zeros(2, 0, 3, dtype=torch.int64), padding, 3)
    assert phrases_of(phrases) == [set(), set()]


def test_the_encoder_with_constituents_is_the_equations(dictionary) -> None:
    options = {"phrase_source": "constituency", "phrase_max_length": 4, "phrase_init": "mean"}
    model = build(dictionary, **options)
    inputs = batch(dictionary, [6, 3])
    del inputs["src_heads"]
    # The first sentence: words 0-3, the first of three subwords; the second has one.
    inputs["src_spans"] = torch.tensor(
        [
            [[0, 1, 4], [0, 2, 5], [2, 4, 5], [0, 4, 6]],
            [[0, 1, 4], [-1, -1, -1], [-1, -1, -1], [-1, -1, -1]],
        ]
    )
    states = encode(model, inputs)
    cfg = MODEL_DATACLASS_REGISTRY["phrase_transformer"](**options)
    for row, (length, phrases) in enumerate(
        [(6, [{0, 1, 2}, {0, 1, 2, 3}, {4, 5}, {0, 1, 2, 3, 4, 5}]), (3, [{0, 1, 2}])]
    ):
        members = [{token} for token in range(length + 1)] + phrases
        twin = twin_encoder(model, cfg, inputs["src_tokens"][row, : length + 1], members)
        torch.testing.assert_close(states[row, : length + 1], twin, rtol=1e-9, atol=1e-9)


def test_a_batch_or_a_task_without_constituents_is_refused(dictionary) -> None:
    model = build(dictionary, phrase_source="constituency")
    with pytest.raises(ValueError, match="carries no spans: use --task"):
        model.encoder(**batch(dictionary, [4]))
    with pytest.raises(UserError, match="words and spans: use --task syntax_translation"):
        build(
            dictionary,
            task=type("Task", (), {"source_dictionary": dictionary}),
            phrase_source="constituency",
        )
    with pytest.raises(ValueError, match="2 or more"):
        constituent_phrases(
            torch.zeros(1, 1).long(), torch.zeros(1, 0, 3).long(), torch.zeros(1, 1).bool(), 1
        )
