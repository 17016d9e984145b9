"""Recurrent layers and hierarchical attention against loops, in values and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fairseq_phrase.data.batches.text_blocks import joined_parses
from fairseq_phrase.methods.recurrent.bidirectional import BidirectionalLayer
from fairseq_phrase.methods.recurrent.hierarchical_attention import (
    AttentionSum,
    HierarchicalAttention,
    SentenceBatch,
    by_dependencies,
)
from fairseq_phrase.syntax.dependency import DependencyTree
from tests.support.tolerance import assert_same
from tests.twins import recurrent as twins

WIDTH, HIDDEN = 3, 4


def assert_same_gradients(found, expected, variables):
    weights = [torch.randn_like(tensor) for tensor in found]
    pairs = [
        torch.autograd.grad(
            sum((tensor * weight).sum() for tensor, weight in zip(values, weights, strict=True)),
            variables,
        )
        for values in (found, expected)
    ]
    for gradient, expected_gradient in zip(*pairs, strict=True):
        assert_same(gradient, expected_gradient)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_a_layer_is_a_loop_over_each_sequence(cell, left):
    torch.manual_seed(2)
    layer = BidirectionalLayer(cell, input_dim=WIDTH, output_dim=HIDDEN).double()
    lengths = [4, 1, 6, 0]
    states = torch.randn(4, 6, WIDTH, dtype=torch.float64, requires_grad=True)
    padding = torch.arange(6) >= torch.tensor(lengths)[:, None]
    padding = padding.flip(1) if left else padding
    expected = torch.zeros(4, 6, HIDDEN, dtype=torch.float64)
    for row, length in enumerate(lengths):
        if length:
            expected[row, ~padding[row]] = twins.bidirectional(layer, states[row][~padding[row]])
    states_of_layer = layer(states, padding)
    assert_same(states_of_layer, expected)
    assert_same_gradients([states_of_layer], [expected], [states, *layer.parameters()])


def test_an_odd_width_has_no_two_directions():
    with pytest.raises(ValueError, match="two directions need an even width, not 5"):
        BidirectionalLayer("lstm", input_dim=3, output_dim=5)


DOCUMENTS = [[3, 1, 5], [2], [1, 1], []]


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_hierarchical_attention_is_a_loop_over_words_and_sentences(layers, left):
    torch.manual_seed(4)
    network = HierarchicalAttention(input_dim=WIDTH, hidden_dim=HIDDEN, num_layers=layers).double()
    longest = max(map(sum, DOCUMENTS)) + 1
    numbers = torch.full((len(DOCUMENTS), longest), -1)
    for row, lengths in enumerate(DOCUMENTS):
        sentence_numbers = torch.arange(len(lengths)).repeat_interleave(
            torch.tensor(lengths, dtype=torch.int64)
        )
        start = longest - len(sentence_numbers) if left else 0
        numbers[row, start : start + len(sentence_numbers)] = sentence_numbers
    inputs = torch.randn(*numbers.shape, WIDTH, dtype=torch.float64, requires_grad=True)
    words, sentences, documents = network(inputs, SentenceBatch.from_numbers(numbers))
    expected = [torch.zeros_like(tensor) for tensor in (words[-1], sentences, documents)]
    for row, lengths in enumerate(DOCUMENTS):
        if lengths:
            parts = inputs[row][numbers[row] >= 0].split(lengths)
            of_words, of_sentences, of_document = twins.document(network, parts)
            expected[0][row, numbers[row] >= 0] = of_words
            expected[1][row, : len(lengths)] = of_sentences
            expected[2][row] = of_document
    actual = [words[-1], sentences, documents]
    assert len(words) == layers
    for output, expected_output in zip(actual, expected, strict=True):
        assert_same(output, expected_output)
    assert_same_gradients(actual, expected, [inputs, *network.parameters()])


def test_attention_over_nothing_is_zero():
    summary = AttentionSum(WIDTH)
    summed = summary(torch.randn(2, 3, WIDTH), torch.ones(2, 3, dtype=torch.bool))
    assert not summed.any()


def test_a_document_of_thousands_of_tokens_is_encoded():
    numbers = (torch.arange(4000) // 25).expand(2, -1)
    network = HierarchicalAttention(input_dim=8, hidden_dim=8)
    *_, document = network(torch.randn(2, 4000, 8), SentenceBatch.from_numbers(numbers))
    assert document.shape == (2, 8)


# Sentence boundaries

ROOT, OTHER = 4, 9
WORDS = torch.tensor([[0, 1, 1, 2, 3, -1, -1]])
PADDING = torch.tensor([[False] * 6 + [True]])


def test_later_roots_begin_sentences():
    # Two sentences of two words; the tree has joined the second root to the first.
    heads = torch.from_numpy(DependencyTree([0, 0, 3, 3]).heads)[None]
    relations = torch.tensor([[ROOT, OTHER, OTHER, ROOT]])
    numbers = by_dependencies(WORDS, heads, relations, PADDING)
    assert numbers.tolist() == [[0, 0, 0, 1, 1, 1, -1]]


def test_a_token_before_the_words_is_in_the_first_sentence():
    words = torch.tensor([[-1, 0, 1, 2, -1]])
    heads, relations = torch.tensor([[0, 0, 0]]), torch.tensor([[ROOT, OTHER, ROOT]])
    numbers = by_dependencies(words, heads, relations, torch.zeros(1, 5, dtype=torch.bool))
    assert numbers.tolist() == [[0, 0, 0, 1, 1]]


def test_a_dependent_of_the_root_begins_no_sentence():
    heads, relations = torch.tensor([[0, 0, 3, 0]]), torch.tensor([[ROOT, OTHER, OTHER, OTHER]])
    assert by_dependencies(WORDS, heads, relations, PADDING).tolist() == [[0] * 6 + [-1]]


def test_separators_of_joined_sentences_belong_to_the_sentence_before_them():
    # Sentences of two words, one word and two words.
    counts = [2, 1, 2]
    parses = [
        {
            "words": np.arange(count),
            "heads": np.zeros(count, dtype=np.int64),
            "deprels": np.array([ROOT, OTHER])[:count],
        }
        for count in counts
    ]
    joined = {
        name: torch.from_numpy(values)[None] for name, values in joined_parses(parses, ROOT).items()
    }
    words, padding = joined["words"], torch.zeros(1, 7, dtype=torch.bool)
    numbers = by_dependencies(words, joined["heads"], joined["deprels"], padding)
    assert numbers.tolist() == [[0, 0, 0, 1, 1, 2, 2]]


def test_a_line_without_words_is_one_sentence():
    words, none = torch.tensor([[-1]]), torch.full((1, 0), -1)
    padding = torch.zeros(1, 1, dtype=torch.bool)
    assert by_dependencies(words, none, none, padding).tolist() == [[0]]
