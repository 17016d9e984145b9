"""Joint, gated and pointer copying, against enumerations in float64."""

from __future__ import annotations

import pytest
import torch

from fairseq_phrase.methods.copying.copy_scores import (
    OUTSIDE,
    CopySource,
    GateCopy,
    JointCopy,
    PointerCopy,
    join_scores,
)
from tests.support.tolerance import assert_same
from tests.twins import copying as twin

VOCABULARY, TARGET, WIDTH, SOURCE_WIDTH = 11, 4, 6, 5
#: Sentences of source words: distinct, one word twice and thrice, one word alone; then padding.
SOURCES = [[3, 7, 9, 4, 2], [5, 3, 5, 5, 3, 2], [2]]


def make_source(left: bool = False):
    longest = max(map(len, SOURCES)) + 1
    source = torch.full((len(SOURCES), longest), 1)
    padding = torch.ones(len(SOURCES), longest, dtype=torch.bool)
    for row, words in enumerate(SOURCES):
        start = longest - len(words) if left else 0
        source[row, start : start + len(words)] = torch.tensor(words)
        padding[row, start : start + len(words)] = False
    return source, padding


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def compare(found, expected, leaves):
    """Compare log-probabilities and the gradients of all leaves."""
    assert_same(found, expected)
    upstream = torch.randn_like(found)
    gradients = [
        torch.autograd.grad((scores * upstream).sum(), leaves, allow_unused=True, retain_graph=True)
        for scores in (found, expected)
    ]
    for gradient, expected_gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_joint_scores_are_the_enumeration_over_words_and_positions(left):
    """Also for a word that is in the vocabulary, and twice in the source."""
    torch.manual_seed(1)
    source, padding = make_source(left)
    words, positions = randn(3, TARGET, VOCABULARY), randn(3, TARGET, source.size(1))
    scores = join_scores(words, positions, source, padding).log_softmax(-1)
    expected = torch.stack(
        [
            torch.stack(
                [
                    twin.joint(words[b, t], positions[b, t][~padding[b]], SOURCES[b]).log()
                    for t in range(TARGET)
                ]
            )
            for b in range(len(SOURCES))
        ]
    )
    compare(scores, expected, [words, positions])


def test_the_gradient_is_the_numerical_one():
    torch.manual_seed(2)
    source, padding = make_source()
    words, positions = randn(3, 2, VOCABULARY), randn(3, 2, source.size(1))
    assert torch.autograd.gradcheck(
        lambda own, copied: join_scores(own, copied, source, padding), (words, positions)
    )


def test_scores_far_apart_neither_overflow_nor_vanish():
    words = torch.tensor([[[0.0, 500.0, -500.0, -900.0]]])
    positions = torch.tensor([[[-501.0, -499.0, -500.0]]])
    source = torch.tensor([[2, 2, 3]])
    scores = join_scores(words, positions, source, source < 0)
    expected = torch.logsumexp(torch.tensor([-500.0, -501.0, -499.0]), 0)
    torch.testing.assert_close(scores[0, 0], torch.tensor([0.0, 500.0, expected, -500.0]))


def test_padding_is_not_copied_even_where_its_word_is_in_the_source():
    words, positions = torch.zeros(1, 1, 3), torch.zeros(1, 1, 3)
    source, padding = torch.tensor([[1, 1, 1]]), torch.tensor([[True, False, True]])
    scores = join_scores(words, positions, source, padding)
    torch.testing.assert_close(scores.exp(), torch.tensor([[[1.0, 2.0, 1.0]]]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_summed_in_single_precision(dtype):
    torch.manual_seed(3)
    words, positions = torch.randn(2, 3, 50), torch.randn(2, 3, 40)
    source = torch.randint(0, 50, (2, 40))
    half = join_scores(words.to(dtype), positions.to(dtype), source, source < 0)
    assert half.dtype == dtype
    exact = join_scores(words.to(dtype).float(), positions.to(dtype).float(), source, source < 0)
    error, rounding = (half.float() - exact).abs().max(), torch.finfo(dtype).eps * exact.abs().max()
    assert error <= 2 * rounding


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_far_from_the_vocabularys_scores_only_the_result_is_rounded(dtype):
    """A pointer's words have -100: a sum with a rounded difference would be wrong by 0.25."""
    torch.manual_seed(8)
    source = torch.randint(0, 20, (2, 30))
    padding = torch.arange(30) >= torch.tensor([[30], [17]])
    words = torch.full((2, 3, 50), OUTSIDE, dtype=dtype, requires_grad=True)
    positions = torch.randn(2, 3, 30).masked_fill(padding[:, None], -torch.inf).log_softmax(-1)
    positions.requires_grad_()
    upstream = torch.randn(2, 3, 50).to(dtype)

    half = join_scores(words, positions, source, padding)
    gradients = torch.autograd.grad(half, [words, positions], upstream)
    exact_words = words.detach().double().requires_grad_()
    exact = join_scores(exact_words, positions.double(), source, padding)
    expected = torch.autograd.grad(exact, [exact_words, positions], upstream.double())

    assert half.dtype == gradients[0].dtype == dtype
    # Half the distance of neighbouring numbers, and single precision's own error.
    numbers = torch.finfo(dtype)
    tolerance = {"rtol": 0.51 * numbers.eps, "atol": numbers.tiny * numbers.eps}
    torch.testing.assert_close(half.double(), exact, **tolerance)
    torch.testing.assert_close(gradients[0].double(), expected[0], **tolerance)
    torch.testing.assert_close(gradients[1], expected[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_pointers_probabilities_sum_to_one_in_half_precision(dtype):
    torch.manual_seed(9)
    module = PointerCopy(WIDTH, SOURCE_WIDTH).to(dtype)
    source, padding = make_source()
    states, source_states = (
        torch.randn(3, TARGET, WIDTH),
        torch.randn(3, len(source[0]), SOURCE_WIDTH),
    )
    words = torch.zeros(3, TARGET, VOCABULARY, dtype=dtype)
    scores = module(
        words, states.to(dtype), CopySource(source_states.to(dtype), source, padding), None
    )
    # log p of 10 is rounded by 5 eps at most.
    total = scores.double().exp().sum(-1)
    torch.testing.assert_close(
        total, torch.ones_like(total), rtol=0, atol=5 * torch.finfo(dtype).eps
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_excluded_words_can_be_copied_and_padding_keeps_them_excluded(dtype):
    """An output layer may exclude words, like padding's, by -∞."""
    words = torch.tensor([[[0.0, -torch.inf, -torch.inf]]], dtype=dtype, requires_grad=True)
    positions = torch.tensor([[[-3.0, 5.0]]], dtype=dtype, requires_grad=True)
    source, padding = torch.tensor([[2, 1]]), torch.tensor([[False, True]])
    scores = join_scores(words, positions, source, padding)
    assert scores.softmax(-1).tolist()[0][0][1] == 0
    assert scores[0, 0, [0, 2]].tolist() == [0, -3]
    of_words, of_positions = torch.autograd.grad(scores[0, 0, 2], [words, positions])
    assert of_words.tolist() == [[[0, 0, 0]]]
    assert of_positions.tolist() == [[[1, 0]]]


def copied(module, attention=None):
    """A module's inputs, and its log-probabilities."""
    source, padding = make_source()
    words, states = randn(3, TARGET, VOCABULARY), randn(3, TARGET, WIDTH)
    source_states = randn(3, source.size(1), SOURCE_WIDTH)
    scores = module(words, states, CopySource(source_states, source, padding), attention)
    return words, states, source_states, padding, scores.log_softmax(-1)


def rows(make):
    """Stack what a function makes of each sentence and target position."""
    return torch.stack(
        [torch.stack([make(b, t) for t in range(TARGET)]) for b in range(len(SOURCES))]
    )


def test_joint_copying_scores_positions_by_a_bilinear_form():
    torch.manual_seed(4)
    module = JointCopy(WIDTH, SOURCE_WIDTH).double()
    words, states, source_states, padding, scores = copied(module)

    def expected(b, t):
        keys = source_states[b][~padding[b]]
        positions = torch.stack([key @ module.weight @ states[b, t] for key in keys])
        return twin.joint(words[b, t], positions, SOURCES[b]).log()

    compare(scores, rows(expected), [words, states, source_states, module.weight])


def test_gated_copying_is_the_mixture():
    torch.manual_seed(5)
    module = GateCopy(WIDTH, SOURCE_WIDTH).double()
    source, padding = make_source()
    scores = randn(3, TARGET, source.size(1))
    attention = scores.masked_fill(padding[:, None], -torch.inf).softmax(-1)
    words, states, source_states, _, mixture = copied(module, attention)

    def expected(b, t):
        context = attention[b, t] @ source_states[b]
        p = module.gate(torch.cat([context, states[b, t]])).sigmoid()
        return twin.gate(words[b, t], attention[b, t][~padding[b]], p[0], SOURCES[b]).log()

    leaves = [words, states, source_states, scores, *module.parameters()]
    compare(mixture, rows(expected), leaves)


def test_weights_of_a_window_are_normalized_before_they_are_mixed():
    torch.manual_seed(6)
    module = GateCopy(WIDTH, SOURCE_WIDTH).double()
    source, padding = make_source()
    attention = torch.rand(3, TARGET, source.size(1)).double() / 9
    attention = attention.masked_fill(padding[:, None], 0.0)
    attention[:, :, 2] = 0.0
    probabilities = copied(module, attention)[-1].exp()
    torch.testing.assert_close(probabilities.sum(-1), torch.ones_like(probabilities[..., 0]))
    assert probabilities.isfinite().all()


def test_a_pointer_produces_source_words_only():
    torch.manual_seed(7)
    module = PointerCopy(WIDTH, SOURCE_WIDTH).double()
    _, states, source_states, padding, scores = copied(module)

    def expected(b, t):
        keys = source_states[b][~padding[b]]
        weights = torch.stack([key @ module.weight @ states[b, t] for key in keys]).softmax(0)
        return torch.stack(
            [
                sum(
                    (
                        w
                        for w, source_word in zip(weights, SOURCES[b], strict=True)
                        if source_word == word
                    ),
                    weights.new_zeros(()),
                )
                for word in range(VOCABULARY)
            ]
        )

    torch.testing.assert_close(scores.exp(), rows(expected), rtol=1e-9, atol=1e-40)
    outside = [word for word in range(VOCABULARY) if word not in SOURCES[0]]
    assert (scores[0][:, outside] == -100).all()
    gradient = torch.autograd.grad(scores[0][:, outside].sum(), source_states)[0]
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-12)


def test_scores_of_words_that_a_pointer_does_not_use_have_a_gradient_of_zero():
    """Also where an output layer excludes words by -∞."""
    torch.manual_seed(10)
    module = PointerCopy(WIDTH, SOURCE_WIDTH).double()
    source, padding = make_source()
    words = randn(3, TARGET, VOCABULARY)
    excluded = words.masked_fill(torch.arange(VOCABULARY) == 3, -torch.inf)
    states, source_states = randn(3, TARGET, WIDTH), randn(3, source.size(1), SOURCE_WIDTH)
    scores = module(excluded, states, CopySource(source_states, source, padding), None)
    assert scores.isfinite().all()
    gradient = torch.autograd.grad(scores.square().sum(), words)[0]
    assert (gradient == 0).all()
