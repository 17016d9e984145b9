"""Phrases of padded batches against the definitions for single sentences."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.methods.phrases.builtin_sources import (
    chain_phrases,
    phrases_of_members,
    token_ngrams,
    without_phrases,
    word_ngrams,
)
from fairseq_phrase.methods.phrases.phrase_batch import PhraseBatch
from fairseq_phrase.methods.phrases.phrase_nodes import with_phrases
from tests.support.hostile import trees
from tests.support.padded_sentences import all_kinds, members_of, pad, pad_heads, phrases_of
from tests.support.tolerance import assert_same
from tests.twins.phrase_attention import literal_adjacency
from tests.twins.phrases import dependency_phrases, ngram_phrases, phrase_tokens, word_ngram_phrases


@st.composite
def sentences(draw: st.DrawFn) -> list[list[int]]:
    """Draw for each sentence the number of subwords of each word."""
    subwords = st.lists(st.sampled_from([1, 1, 2, 3]), min_size=1, max_size=6)
    return draw(st.lists(subwords, min_size=1, max_size=4))


@given(sentences(), st.integers(2, 8), st.booleans(), st.booleans())
def test_token_ngrams_are_the_spans_of_each_sentence(
    sentences: list[list[int]], k: int, left: bool, ends_with_eos: bool
) -> None:
    words, padding = pad(sentences, left)
    batch = token_ngrams(words >= 0, padding, k, ends_with_eos=ends_with_eos)
    for phrases, row in zip(phrases_of(batch), words.tolist(), strict=True):
        positions = [position for position, word in enumerate(row) if word >= 0]
        spans = ngram_phrases(len(positions), k).tolist()
        assert phrases == {tuple(positions[start:end]) for start, end in spans}


@given(sentences(), st.integers(2, 8), st.booleans())
def test_word_ngrams_are_the_spans_of_whole_words(
    sentences: list[list[int]], k: int, left: bool
) -> None:
    words, padding = pad(sentences, left)
    batch = word_ngrams(words, padding, k)
    expected = [
        set(phrase_tokens(word_ngram_phrases(len(subwords), k), row))
        for subwords, row in zip(sentences, words.tolist(), strict=True)
    ]
    assert phrases_of(batch) == expected
    assert batch.num_nodes == words.size(1) + max(map(len, expected))


@given(
    st.lists(trees(max_words=9), min_size=1, max_size=4),
    st.integers(2, 6),
    st.booleans(),
    st.data(),
)
def test_dependency_phrases_are_the_chains_of_each_tree(
    heads: list[list[int]], k: int, left: bool, data: st.DataObject
) -> None:
    subwords = [
        data.draw(st.lists(st.integers(1, 3), min_size=len(x), max_size=len(x))) for x in heads
    ]
    words, padding = pad(subwords, left)
    batch = chain_phrases(words, pad_heads(heads), padding, k)
    expected = [
        set(phrase_tokens(dependency_phrases(tree, k), row))
        for tree, row in zip(heads, words.tolist(), strict=True)
    ]
    assert phrases_of(batch) == expected
    assert batch.num_nodes == words.size(1) + max(map(len, expected))


@given(
    st.lists(trees(max_words=9), min_size=1, max_size=3),
    st.integers(2, 5),
    st.booleans(),
    st.data(),
)
def test_nodes_are_adjacent_iff_one_contains_the_other(
    heads: list[list[int]], k: int, left: bool, data: st.DataObject
) -> None:
    subwords = [
        data.draw(st.lists(st.integers(1, 2), min_size=len(x), max_size=len(x))) for x in heads
    ]
    words, padding = pad(subwords, left)
    for kind, batch in all_kinds(words, pad_heads(heads), padding, k).items():
        expected = literal_adjacency(batch)
        assert torch.equal(batch.adjacency, expected), kind
        query, key = batch.edges
        sentence, row, column = expected.nonzero(as_tuple=True)
        pairs = set(zip(query.tolist(), key.tolist(), strict=True))
        first = sentence * batch.num_nodes
        assert pairs == set(zip((first + row).tolist(), (first + column).tolist(), strict=True)), (
            kind
        )
        assert len(pairs) == len(query), kind
        assert query.tolist() == sorted(query.tolist()), kind


def test_the_end_of_sentence_is_a_node_but_in_no_phrase() -> None:
    words, padding = pad([[1, 1, 1]], left=False)
    batch = token_ngrams(words >= 0, padding, 2)
    assert not batch.padding_mask[0, 3]
    assert batch.adjacency[0, 3].nonzero().flatten().tolist() == [3]


@pytest.mark.parametrize("left", [False, True])
def test_sentences_of_one_token_have_no_phrases(left: bool) -> None:
    words, padding = pad([[1], [1]], left)
    heads = torch.zeros(2, 1, dtype=torch.int64)
    for kind, batch in all_kinds(words, heads, padding, 3).items():
        assert phrases_of(batch) == [set(), set()], kind
        assert not batch.padding_mask[:, :2].any(), kind


def test_promising_eos_at_the_end_saves_the_slots_that_would_reach_it() -> None:
    words, padding = pad([[1] * 5], left=False)
    plain = token_ngrams(words >= 0, padding, 3)
    saved = token_ngrams(words >= 0, padding, 3, ends_with_eos=True)
    assert plain.num_nodes - saved.num_nodes == 2
    assert phrases_of(saved) == phrases_of(plain)
    assert not saved.padding_mask.any()


def test_a_broken_promise_of_eos_at_the_end_is_refused() -> None:
    padding = torch.zeros(1, 4, dtype=torch.bool)
    with pytest.raises(ValueError, match="ends_with_eos"):
        token_ngrams(~padding, padding, 2, ends_with_eos=True)


def test_phrases_do_not_reach_over_a_token_that_is_no_unit() -> None:
    is_unit = torch.tensor([[True, True, False, True, True]])
    batch = token_ngrams(is_unit, torch.zeros_like(is_unit), 3)
    assert phrases_of(batch) == [{(0, 1), (3, 4)}]


def test_phrases_given_as_members_are_merged_when_they_have_the_same_tokens() -> None:
    padding = torch.zeros(1, 4, dtype=torch.bool)
    sets = [[(0, 1), (1, 0), (0, 1, 1), (0, 1, 2)]]
    batch = phrases_of_members(members_of(sets, padding), padding)
    assert phrases_of(batch) == [{(0, 1), (0, 1, 2)}]
    assert batch.num_nodes == 6


@pytest.mark.parametrize("init", ["zero", "mean"])
def test_tokens_keep_their_states_and_phrases_start_from_zero_or_the_mean(init: str) -> None:
    words, padding = pad([[1, 2, 1], [2]], left=False)
    heads = pad_heads([[1, 1, 1], [0]])
    states = torch.randn(*words.shape, 3, dtype=torch.float64)
    for kind, batch in all_kinds(words, heads, padding, 3).items():
        extended = with_phrases(states, batch, init)
        assert extended.shape == (2, batch.num_nodes, 3), kind
        assert torch.equal(extended[:, : batch.num_tokens], states), kind
        for sentence, nodes in enumerate(batch.members()):
            for slot in range(batch.num_tokens, batch.num_nodes):
                expected = torch.zeros(3, dtype=torch.float64)
                if init == "mean" and nodes[slot]:
                    expected = states[sentence, list(nodes[slot])].mean(0)
                assert_same(extended[sentence, slot], expected)


def test_the_gradient_of_a_phrase_state_is_spread_evenly_over_its_tokens() -> None:
    padding = torch.zeros(1, 3, dtype=torch.bool)
    batch = phrases_of_members(members_of([[(0, 2)]], padding), padding)
    states = torch.zeros(1, 3, 1, dtype=torch.float64, requires_grad=True)
    with_phrases(states, batch, "mean")[:, 3:].sum().backward()
    assert states.grad is not None
    assert states.grad.flatten().tolist() == [0.5, 0.0, 0.5]


def test_unknown_initial_states_and_misshapen_states_are_refused() -> None:
    batch = without_phrases(torch.zeros(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="'zero' or 'mean'"):
        with_phrases(torch.zeros(2, 3, 4), batch, "random")
    with pytest.raises(ValueError, match="2 sentences of 3 tokens"):
        with_phrases(torch.zeros(2, 5, 4), batch)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([[1, 0, -1]], "circle"),
        ([[1, 2, 0]], "circle"),
        ([[0, 7, 0]], "outside"),
        ([[0, 2, -1]], "not in the sentence"),
        ([[0, 0, -1]], "word has no head"),
    ],
)
def test_heads_that_are_no_tree_are_refused(heads: list[list[int]], message: str) -> None:
    words, padding = pad([[1, 1, 1]], left=False)
    if message == "circle" and heads[0][2] == -1:
        words, padding = pad([[1, 1]], left=False)
    with pytest.raises(ValueError, match=message):
        chain_phrases(words, torch.tensor(heads), padding, 2)


def test_a_word_without_tokens_is_refused() -> None:
    words, padding = pad([[1, 1]], left=False)
    with pytest.raises(ValueError, match="no token"):
        chain_phrases(words, torch.tensor([[0, 0, 0]]), padding, 2)
    with pytest.raises(ValueError, match="skipped"):
        word_ngrams(torch.tensor([[0, 2, -1]]), padding, 2)
    with pytest.raises(ValueError, match="out of range"):
        word_ngrams(torch.tensor([[0, 9, -1]]), padding, 2)


def test_malformed_arguments_are_refused_by_name() -> None:
    padding = torch.zeros(2, 4, dtype=torch.bool)
    with pytest.raises(ValueError, match="2 or more"):
        token_ngrams(~padding, padding, 1)
    with pytest.raises(ValueError, match="is_unit must be"):
        token_ngrams(padding.long(), padding, 2)
    with pytest.raises(ValueError, match=r"padding_mask must be .* of shape \(\d, \d\), got"):
        token_ngrams(~padding, padding[:, :3], 2)
    with pytest.raises(ValueError, match="words must be"):
        word_ngrams(padding.int(), padding, 2)
    with pytest.raises(ValueError, match="1 rows of heads for 2 sentences"):
        chain_phrases(padding.long(), torch.zeros(1, 1, dtype=torch.int64), padding, 2)
    with pytest.raises(
        ValueError, match=r"members must be a torch.bool .* of shape \(2, phrases, 4\)"
    ):
        phrases_of_members(torch.zeros(1, 0, 4).bool(), padding)
    with pytest.raises(
        ValueError, match=r"members must be a torch.bool .* of shape \(2, phrases, 4\)"
    ):
        phrases_of_members(torch.zeros(2, 1, 4), padding)
    with pytest.raises(ValueError, match="at least two tokens"):
        phrases_of_members(members_of([[(1, 1)], []], padding), padding)
    is_padding = torch.tensor([[False, False, False, True], [False] * 4])
    with pytest.raises(ValueError, match="contains padding"):
        phrases_of_members(members_of([[(1, 3)], []], padding), is_padding)
    with pytest.raises(ValueError, match=r"is_member must be .* of shape \(2, phrases, 4\)"):
        PhraseBatch(padding, torch.zeros(2, 1, 5).bool())
