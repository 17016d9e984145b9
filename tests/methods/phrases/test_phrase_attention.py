"""Attention within phrases against eq. 4-7 written out in loops."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fairseq_phrase.methods.phrases import long_phrases, phrase_batch
from fairseq_phrase.methods.phrases.builtin_sources import token_ngrams
from fairseq_phrase.methods.phrases.phrase_attention import (
    ACTIVATIONS,
    MASKS,
    PhraseAttention,
    all_attention,
    attention_weights,
    hadamard_attention,
    subset_attention,
)
from fairseq_phrase.methods.phrases.phrase_batch import PhraseBatch
from tests.support.padded_sentences import (
    HEADS,
    KINDS,
    PATHS,
    SUBWORDS,
    all_kinds,
    make_phrases,
    pad,
    pad_heads,
    random_heads,
)
from tests.support.tolerance import assert_same, error
from tests.twins.phrase_attention import literal_attention

FUNCTIONS = {"subset": subset_attention, "hadamard": hadamard_attention}
PATHS_OF_KINDS = list(itertools.product(KINDS, PATHS))
#: And the largest number of words, in turn: each kind and each path has both.
SIZES_OF_KINDS = [
    (kind, path, 2 + (number + other) % 2)
    for number, kind in enumerate(KINDS)
    for other, path in enumerate(PATHS)
]


def gradients(
    attention: PhraseAttention, output: Tensor, states: Tensor, phrases: PhraseBatch
) -> list[Tensor]:
    """Differentiate a fixed random function of the unpadded outputs."""
    weight = torch.randn(
        output.shape, dtype=output.dtype, generator=torch.Generator().manual_seed(3)
    )
    loss = (output * weight).masked_fill(phrases.padding_mask[:, :, None], 0).sum()
    inputs = [states, *attention.parameters()]
    gradients_of_inputs = torch.autograd.grad(loss, inputs, allow_unused=True)
    return [
        torch.zeros_like(x) if grad is None else grad
        for x, grad in zip(inputs, gradients_of_inputs, strict=True)
    ]


def force(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take one path whatever the size, with so few pairs at once that there are several rounds."""
    monkeypatch.setattr(phrase_batch, "LONG", 0 if path == "edges" else math.inf)
    monkeypatch.setattr(long_phrases, "EDGES_AT_ONCE", 7)


def make_attention(mask: str = "subset", activation: str = "sigmoid") -> PhraseAttention:
    torch.manual_seed(0)
    attention = PhraseAttention(embed_dim=6, num_heads=2, activation=activation, mask=mask).double()
    for projection in (attention.q_proj, attention.k_proj):
        # Scores far from 0, so that a wrong score cannot hide.
        nn.init.normal_(projection.weight)
    return attention


def random_states(phrases: PhraseBatch, width: int = 6, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (phrases.batch_size, phrases.num_nodes, width)
    return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()


@pytest.mark.fast(12)
@pytest.mark.parametrize(("kind", "path", "k"), SIZES_OF_KINDS)
@pytest.mark.parametrize("mask", MASKS)
def test_values_and_gradients_are_those_of_the_equations(
    mask: str, kind: str, path: str, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    phrases = make_phrases(kind, k, left=k == 3)
    attention = make_attention(mask)
    states = random_states(phrases)
    literal, literal_weights = literal_attention(attention, states, phrases)
    force(path, monkeypatch)
    output, weights = attention(states, phrases, need_weights=True)
    is_node = ~phrases.padding_mask
    assert_same(output[is_node], literal[is_node])
    assert weights is not None
    assert_same(weights * is_node[:, None, :, None], literal_weights)
    for actual, expected in zip(
        gradients(attention, output, states, phrases),
        gradients(attention, literal, states, phrases),
        strict=True,
    ):
        assert_same(actual, expected)


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("mask", MASKS)
def test_the_activation_stands_between_heads_and_output_projection(
    mask: str, activation: str
) -> None:
    phrases = make_phrases("dependency")
    attention = make_attention(mask, activation)
    states = random_states(phrases)
    literal, _ = literal_attention(attention, states, phrases)
    output, weights = attention(states, phrases)
    assert weights is None
    is_node = ~phrases.padding_mask
    assert_same(output[is_node], literal[is_node])
    for actual, expected in zip(
        gradients(attention, output, states, phrases),
        gradients(attention, literal, states, phrases),
        strict=True,
    ):
        assert_same(actual, expected)


@pytest.mark.parametrize(("kind", "path"), PATHS_OF_KINDS)
@pytest.mark.parametrize("mask", MASKS)
def test_what_stands_at_padding_changes_nothing(
    mask: str, kind: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(path, monkeypatch)
    phrases = make_phrases(kind)
    attention = make_attention(mask)
    states = random_states(phrases)
    padding = phrases.padding_mask[:, :, None]
    changed_states = (
        states.detach() + 100 * padding * random_states(phrases, seed=5)
    ).requires_grad_()
    output, _ = attention(states, phrases)
    other_output, _ = attention(changed_states, phrases)
    is_node = ~phrases.padding_mask
    assert torch.equal(output[is_node], other_output[is_node])
    grads = gradients(attention, output, states, phrases)
    assert (grads[0] * padding == 0).all()
    for left, right in zip(
        grads, gradients(attention, other_output, changed_states, phrases), strict=True
    ):
        assert_same(left, right)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mask", MASKS)
def test_a_sentence_alone_is_as_in_a_batch_whatever_the_padding(
    mask: str, path: str, left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(path, monkeypatch)
    attention = make_attention(mask)
    for extra in range(5):
        # The second sentence alone, then beside ones that pad it more and more.
        subwords = [[1] * (3 + extra), [1, 1, 1]]
        words, padding = pad(subwords, left)
        together = token_ngrams(words >= 0, padding, 3)
        states = random_states(together, seed=extra).detach()
        keep = ~together.padding_mask[1]
        alone_words, alone_padding = pad(subwords[1:], left)
        alone = token_ngrams(alone_words >= 0, alone_padding, 3, ends_with_eos=True)
        assert not alone.padding_mask.any()
        expected, _ = attention(states[1:, keep], alone)
        output, _ = attention(states, together)
        assert_same(output[1, keep], expected[0])


@pytest.mark.parametrize(("kind", "path"), PATHS_OF_KINDS)
@pytest.mark.parametrize("mask", MASKS)
def test_reordering_the_sentences_reorders_the_output(
    mask: str, kind: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(path, monkeypatch)
    order = [2, 0, 1]
    words, padding = pad(SUBWORDS, left=False)
    heads = pad_heads(HEADS)
    phrases = all_kinds(words, heads, padding, 3)[kind]
    reordered = all_kinds(words[order], heads[order], padding[order], 3)[kind]
    attention = make_attention(mask)
    states = random_states(phrases)
    is_node = ~phrases.padding_mask[order]
    output, _ = attention(states, phrases)
    assert_same(attention(states[order], reordered)[0][is_node], output[order][is_node])


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("path", PATHS)
def test_scores_of_any_size_and_rows_of_padding_give_finite_results(
    mask: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(path, monkeypatch)
    padding = torch.tensor([[False, False, False], [True, True, True]])
    phrases = token_ngrams(~padding, padding, 3)
    for scale in (1e-3, 1.0, 50.0):
        attention = make_attention(mask).float()
        states = (random_states(phrases).detach().float() * scale).requires_grad_()
        output, weights = attention(states, phrases, need_weights=True)
        output.sum().backward()
        assert torch.isfinite(output).all()
        assert torch.isfinite(weights).all()
        assert torch.isfinite(states.grad).all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_hadamard_survives_scores_whose_exponentials_do_not(path: str, sign: float) -> None:
    # Two tokens and their phrase, which is adjacent to all: no zero stands in its row, so that
    # taking 0 for the row's maximum would divide 0 by 0.
    padding = torch.zeros(1, 2, dtype=torch.bool)
    phrases = token_ngrams(~padding, padding, 2)
    query = torch.full((1, 1, 3, 1), 300.0)
    key = sign * torch.tensor([1.0, 2.0, 3.0]).view(1, 1, 3, 1)
    value = torch.tensor([1.0, 10.0, 100.0]).view(1, 1, 3, 1)
    phrases.is_long = path == "edges"
    output = hadamard_attention(query, key, value, phrases).flatten()
    # Token 0 sees itself, the phrase, and token 1 with score 0, which wins among negative scores.
    expected = [100.0, 100.0, 100.0] if sign > 0 else [10.0, 1.0, 1.0]
    assert output.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("kind", "path"), PATHS_OF_KINDS)
@pytest.mark.parametrize("mask", list(FUNCTIONS))
def test_in_bfloat16_a_fast_path_errs_at_most_twice_as_much_as_the_dense_one(
    mask: str, kind: str, path: str
) -> None:
    phrases = make_phrases(kind)
    function = FUNCTIONS[mask]
    is_node = ~phrases.padding_mask[:, None, :, None]

    def evaluate(dtype: torch.dtype, path: str) -> list[Tensor]:
        # The exact result, too, is that of the rounded inputs.
        inputs = [x.bfloat16().to(dtype).requires_grad_() for x in random_heads(phrases)]
        phrases.is_long = path == "edges"
        output = function(*inputs, phrases)
        assert output.dtype == dtype
        return [output * is_node, *torch.autograd.grad((output * is_node).sum(), inputs)]

    exact = evaluate(torch.float64, "dense")
    plain, fast = evaluate(torch.bfloat16, "dense"), evaluate(torch.bfloat16, path)
    for number, (true, dense, actual) in enumerate(zip(exact, plain, fast, strict=True)):
        assert error(actual, true) <= 2 * error(dense, true) + 1e-12, number


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mask", MASKS)
def test_half_precision_and_autocast_keep_to_the_result(
    mask: str, path: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(path, monkeypatch)
    phrases = make_phrases("token")
    attention = make_attention(mask).float()
    states = random_states(phrases).detach().float()
    is_node = ~phrases.padding_mask
    expected = attention(states, phrases)[0][is_node]
    with torch.autocast("cpu", dtype=dtype):
        automatic, _ = attention(states, phrases)
    automatic.float().sum().backward()
    assert attention.q_proj.weight.grad is not None
    half, _ = copy.deepcopy(attention).to(dtype)(states.to(dtype), phrases)
    assert automatic.dtype == half.dtype == dtype
    for output in (automatic, half):
        torch.testing.assert_close(output[is_node].float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.fast(6)
@pytest.mark.parametrize(("kind", "path"), PATHS_OF_KINDS)
@pytest.mark.parametrize("mask", list(FUNCTIONS))
def test_dropout_of_adjacent_pairs_is_unbiased_on_every_path(
    mask: str, kind: str, path: str
) -> None:
    torch.manual_seed(4)
    phrases = make_phrases(kind)
    function = FUNCTIONS[mask]
    inputs = random_heads(phrases)
    is_node = ~phrases.padding_mask
    phrases.is_long = path == "edges"
    without_dropout = function(*inputs, phrases).transpose(1, 2)[is_node]
    draws = torch.stack(
        [function(*inputs, phrases, 0.3).transpose(1, 2)[is_node] for _ in range(400)]
    )
    assert (draws[0] != draws[1]).any()
    noise = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - without_dropout).abs() <= 5 * noise + 1e-9).all()


@pytest.mark.parametrize("path", PATHS)
def test_hadamard_dropout_of_everything_within_phrases_leaves_the_leak(path: str) -> None:
    phrases = make_phrases("token")
    query, key, value = random_heads(phrases)
    weights = attention_weights(query, key, phrases, "hadamard")
    leak = weights.masked_fill(phrases.adjacency[:, None], 0) @ value
    phrases.is_long = path == "edges"
    output = hadamard_attention(query, key, value, phrases, 1.0)
    is_node = ~phrases.padding_mask
    assert_same(output.transpose(1, 2)[is_node], leak.transpose(1, 2)[is_node])


def test_dropout_is_for_training_only() -> None:
    phrases = make_phrases("token")
    torch.manual_seed(0)
    attention = PhraseAttention(embed_dim=6, num_heads=2, dropout=0.5).double()
    states = random_states(phrases)
    assert not torch.equal(attention(states, phrases)[0], attention(states, phrases)[0])
    attention.eval()
    assert torch.equal(attention(states, phrases)[0], attention(states, phrases)[0])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mask", MASKS)
def test_checkpointing_activations_changes_no_gradient(
    mask: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(path, monkeypatch)
    phrases = make_phrases("token")
    attention = make_attention(mask)
    states = random_states(phrases)
    plain, _ = attention(states, phrases)
    for use_reentrant in (False, True):
        output, _ = checkpoint(attention, states, phrases, use_reentrant=use_reentrant)
        plain_grads = gradients_by_backward(attention, plain, states)
        for left, right in zip(
            gradients_by_backward(attention, output, states), plain_grads, strict=True
        ):
            assert_same(left, right)


def gradients_by_backward(
    attention: PhraseAttention, output: Tensor, states: Tensor
) -> list[Tensor]:
    """Differentiate by ``backward``: reentrant checkpoints know no other way."""
    attention.zero_grad()
    states.grad = None
    output.square().sum().backward(retain_graph=True)
    parameters = [states, *attention.parameters()]
    assert all(parameter.grad is not None for parameter in parameters)
    return [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]


@pytest.mark.parametrize("mask", list(FUNCTIONS))
def test_the_edges_path_can_be_differentiated_twice(mask: str) -> None:
    phrases = make_phrases("dependency", k=2)
    inputs = [x[2:, :1].clone().requires_grad_() for x in random_heads(phrases)]
    words, padding = pad(SUBWORDS[2:], left=False)
    alone = all_kinds(words, pad_heads(HEADS[2:]), padding, 2)["dependency"]
    alone.is_long = True
    inputs = [x[:, :, : alone.num_nodes].detach().requires_grad_() for x in inputs]

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return FUNCTIONS[mask](query, key, value, alone)

    assert torch.autograd.gradcheck(attend, inputs)
    assert torch.autograd.gradgradcheck(attend, inputs)


def test_without_phrases_a_token_attends_to_itself_alone() -> None:
    phrases = make_phrases("none")
    query, key, value = random_heads(phrases)
    assert_same(subset_attention(query, key, value, phrases), value)


def test_all_attention_is_scaled_dot_product_attention() -> None:
    padding = torch.zeros(2, 5, dtype=torch.bool)
    phrases = token_ngrams(~padding, padding, 3)
    query, key, value = random_heads(phrases)
    expected = nn.functional.scaled_dot_product_attention(query, key, value)
    assert_same(all_attention(query, key, value, phrases), expected)


def test_only_inputs_longer_than_sentences_are_computed_along_the_edges(monkeypatch) -> None:
    calls, edge_attention = [], long_phrases.edge_attention
    # Count the calls.
    monkeypatch.setattr(
        long_phrases, "edge_attention", lambda *a, **b: calls.append(a) or edge_attention(*a, **b)
    )
    for tokens, k, is_long in ((150, 3, False), (200, 2, False), (400, 2, True)):
        padding = torch.zeros(1, tokens, dtype=torch.bool)
        phrases = token_ngrams(~padding, padding, k)
        for function in FUNCTIONS.values():
            calls.clear()
            function(*random_heads(phrases), phrases)
            assert bool(calls) == is_long == phrases.is_long


def test_parameters_are_named_and_initialized_as_in_fairseq() -> None:
    torch.manual_seed(0)
    attention = PhraseAttention(embed_dim=256, num_heads=4)
    names = {
        f"{name}_proj.{kind}" for name in ("q", "k", "v", "out") for kind in ("weight", "bias")
    }
    assert set(attention.state_dict()) == names
    bound = math.sqrt(6 / 512)
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        largest = projection.weight.abs().max().item()
        assert 0.99 * bound / math.sqrt(2) < largest <= bound / math.sqrt(2)
    assert 0.99 * bound < attention.out_proj.weight.abs().max().item() <= bound
    assert (attention.out_proj.bias == 0).all()
    assert attention.q_proj.bias.abs().max() > 0


def test_unknown_options_and_misshapen_states_are_refused() -> None:
    with pytest.raises(ValueError, match="not divisible"):
        PhraseAttention(embed_dim=10, num_heads=3)
    with pytest.raises(ValueError, match=r"'softplus', expected one of sigmoid"):
        PhraseAttention(embed_dim=4, num_heads=2, activation="softplus")
    with pytest.raises(ValueError, match=r"'superset', expected one of subset"):
        PhraseAttention(embed_dim=4, num_heads=2, mask="superset")
    phrases = make_phrases("token")
    with pytest.raises(ValueError, match="do not fit"):
        make_attention()(torch.zeros(3, 2, 6, dtype=torch.float64), phrases)
