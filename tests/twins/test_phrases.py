"""The definitions of phrases of one sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.hostile import trees
from tests.twins.phrases import (
    chains_to_root,
    dependency_phrases,
    ngram_phrases,
    phrase_tokens,
    word_ngram_phrases,
)


@given(st.integers(0, 40))
def test_n_units_have_n_minus_1_phrases_of_two(length: int) -> None:
    assert len(ngram_phrases(length, 2)) == max(length - 1, 0)


@given(st.integers(0, 40))
def test_n_units_have_2n_minus_3_phrases_of_two_or_three(length: int) -> None:
    assert len(ngram_phrases(length, 3)) == max(2 * length - 3, 0)


@given(st.integers(0, 12), st.integers(2, 15))
def test_ngrams_are_all_the_spans_of_two_to_k_units(length: int, max_length: int) -> None:
    spans = {tuple(span) for span in ngram_phrases(length, max_length).tolist()}
    assert spans == {
        (start, end)
        for start in range(length)
        for end in range(length + 1)
        if 2 <= end - start <= max_length
    }


def test_the_last_straw_has_these_phrases() -> None:
    assert ngram_phrases(4, 3).tolist() == [[0, 2], [1, 3], [2, 4], [0, 3], [1, 4]]


@pytest.mark.parametrize("length", [0, 1])
def test_a_sentence_of_at_most_one_unit_has_no_phrase(length: int) -> None:
    assert ngram_phrases(length, 3).shape == (0, 2)
    assert dependency_phrases([0] * length, 3) == []


@pytest.mark.parametrize("max_length", [1, 0, -2])
def test_phrases_of_fewer_than_two_units_are_refused(max_length: int) -> None:
    with pytest.raises(ValueError, match="2 or more"):
        ngram_phrases(5, max_length)
    with pytest.raises(ValueError, match="2 or more"):
        dependency_phrases([0, 0], max_length)
    with pytest.raises(ValueError, match="2 or more"):
        word_ngram_phrases(5, max_length)


def test_a_sentence_of_negative_length_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 units"):
        ngram_phrases(-1, 2)


def test_dependency_phrases_are_edges_and_chains_of_heads() -> None:
    # not only popular but also: "not" governs "also", a discontinuous pair.
    heads = [2, 0, 2, 2, 0]
    assert dependency_phrases(heads, 2) == [(0, 2), (0, 1), (2, 3), (0, 4)]
    assert dependency_phrases(heads, 3)[4:] == [(0, 1, 2), (0, 2, 4)]


@given(trees(max_words=9))
def test_a_tree_has_one_pair_per_edge(heads: list[int]) -> None:
    edges = [tuple(sorted((word, head))) for word, head in enumerate(heads) if word != head]
    assert dependency_phrases(heads, 2) == edges


@given(trees(max_words=9), st.integers(2, 10))
def test_dependency_phrases_are_unique_connected_chains(heads: list[int], max_length: int) -> None:
    phrases = dependency_phrases(heads, max_length)
    assert len(set(phrases)) == len(phrases)
    for phrase in phrases:
        assert 2 <= len(phrase) <= max_length
        assert list(phrase) == sorted(set(phrase))
        # A chain has one top, and no two of its words share a head.
        inside = [heads[word] for word in phrase if heads[word] in phrase and heads[word] != word]
        assert len(inside) == len(set(inside)) == len(phrase) - 1


@given(trees(max_words=9), st.integers(2, 10))
def test_longer_chains_only_add_phrases(heads: list[int], max_length: int) -> None:
    shorter = dependency_phrases(heads, max_length)
    assert dependency_phrases(heads, max_length + 1)[: len(shorter)] == shorter


def test_chains_end_at_the_root() -> None:
    assert chains_to_root([1, 2, 2]) == [(0, 1, 2), (1, 2), (2,)]


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([1, 0], "circle"),
        ([0, 2, 3, 1], "circle"),
        ([0, 2], "word 1 has head 2"),
        ([0, -1], "word 1 has head -1"),
        ([[0, 0]], "one row"),
        ([0.0, 0.0], "integers"),
    ],
)
def test_heads_that_are_no_tree_are_refused(heads: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dependency_phrases(heads, 2)


def test_a_phrase_covers_all_subwords_of_its_words() -> None:
    words = [0, 0, 1, 2, 2, 2, -1]
    assert phrase_tokens([(0, 2)], words) == [(0, 1, 3, 4, 5)]


def test_a_word_of_several_subwords_is_a_phrase_of_its_own() -> None:
    words = [0, 1, 1, 2, -1]
    phrases = phrase_tokens(word_ngram_phrases(3, 2), words)
    assert phrases == [(1, 2), (0, 1, 2), (1, 2, 3)]


def test_phrases_with_the_same_tokens_are_one() -> None:
    assert phrase_tokens([(0, 1), (1, 0), (0, 1)], [0, 1]) == [(0, 1)]


def test_a_phrase_of_a_word_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="word 1"):
        phrase_tokens([(0, 1)], [0, -1])
