"""Scores, windows, times and cells of recurrent decoders, against loops in float64."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch

from fairseq_phrase.methods.recurrent.attentive_layers import (
    AttentiveLayers,
    CellState,
    DecoderState,
    InitialState,
    Readout,
    both_directions,
)
from fairseq_phrase.methods.recurrent.source_attention import (
    SCORES,
    WINDOWS,
    BilinearSelfAttention,
    PlainSelfAttention,
    SourceAttention,
    SourceStates,
    coverage_loss,
)
from tests.support.tolerance import assert_same
from tests.twins import recurrent_attention as twin

LENGTHS = [5, 1, 9]
WIDTH, INPUT, STEPS, LAYERS = 6, 4, 7, 2
TIMES = {"after": {}, "before": {"before": True}, "fed": {"input_feeding": True}}


def source_width(score: str) -> int:
    return WIDTH if score == "dot" else 8


def make_source(width: int, left: bool) -> SourceStates:
    longest = max(LENGTHS) + 1
    padding = torch.ones(len(LENGTHS), longest, dtype=torch.bool)
    for row, length in zip(padding, LENGTHS, strict=True):
        row[longest - length if left else 0 : longest if left else length] = False
    states = torch.randn(len(LENGTHS), longest, width, dtype=torch.float64, requires_grad=True)
    return SourceStates(states, padding)


def make_layers(score: str | None, window: str = "all", time: str = "after", **options):
    width = source_width(score)
    if score is None:
        return AttentiveLayers("lstm", INPUT, WIDTH, LAYERS, **options).double()
    return AttentiveLayers(
        options.pop("cell", "lstm"),
        INPUT,
        WIDTH,
        LAYERS,
        SourceAttention(score, WIDTH, width, window, reach=2),
        Readout(width, WIDTH, 5),
        source_width=width,
        **TIMES[time],
        **options,
    ).double()


def first_state(layers) -> CellState:
    hidden, memory = torch.randn(2, LAYERS, len(LENGTHS), WIDTH, dtype=torch.float64)
    return CellState(hidden, memory if layers.layers.has_memory else None)


def compare(layers, names, left: bool = False) -> None:
    """Outputs, weights, and gradients of parameters, source and inputs are those of the loops."""
    source = make_source(source_width(names[0] if names else None), left)
    inputs = torch.randn(len(LENGTHS), STEPS, INPUT, dtype=torch.float64, requires_grad=True)
    start = first_state(layers)
    outputs, weights, _ = layers(inputs, source, DecoderState(start))
    expected_outputs, expected_weights = [], []
    for index in range(len(LENGTHS)):
        real = ~source.padding[index]
        states = [*source.states[index][real]]
        first = [tuple(tensor[index] for tensor in layer) for layer in layers.layers.unbind(start)]
        outputs_of_sentence, maps = twin.decode(layers, names, inputs[index], states, first)
        expected_outputs.append(outputs_of_sentence)
        if names:
            expected_weights.append(
                torch.zeros(STEPS, len(real), dtype=torch.float64).masked_scatter(real, maps)
            )
    assert_same(outputs, torch.stack(expected_outputs))
    upstream = torch.randn_like(outputs)
    actual_total, expected = (
        (outputs * upstream).sum(),
        (torch.stack(expected_outputs) * upstream).sum(),
    )
    if names:
        assert_same(weights, torch.stack(expected_weights))
        upstream = torch.randn_like(weights)
        actual_total = actual_total + (weights * upstream).sum()
        expected = expected + (torch.stack(expected_weights) * upstream).sum()
    else:
        assert weights is None
    leaves = {"inputs": inputs, "source": source.states, **dict(layers.named_parameters())}
    gradients = [
        torch.autograd.grad(total, [*leaves.values()], allow_unused=True)
        for total in (actual_total, expected)
    ]
    for name, outputs_of_sentence, expected_gradient in zip(leaves, *gradients, strict=True):
        assert (outputs_of_sentence is None) == (expected_gradient is None), name
        if outputs_of_sentence is not None:
            torch.testing.assert_close(
                outputs_of_sentence, expected_gradient, rtol=1e-8, atol=1e-10, msg=name
            )


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize(("score", "window"), itertools.product(SCORES, WINDOWS))
def test_every_score_window_and_time_is_that_of_loops(score, window, time):
    torch.manual_seed(1)
    compare(make_layers(score, window, time), (score, window))


@pytest.mark.parametrize("window", WINDOWS)
def test_positions_do_not_count_padding_on_the_left(window):
    torch.manual_seed(2)
    compare(make_layers("bilinear", window), ("bilinear", window), left=True)


@pytest.mark.parametrize("time", TIMES)
def test_gru_cells_are_those_of_loops(time):
    torch.manual_seed(3)
    compare(make_layers("additive", "all", time, cell="gru"), ("additive", "all"))


def test_without_attention_the_output_is_the_last_layers_state():
    torch.manual_seed(5)
    compare(make_layers(None), None)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("window", WINDOWS)
def test_steps_one_at_a_time_are_those_of_the_whole_sequence(time, window):
    torch.manual_seed(6)
    layers = make_layers("bilinear", window, time)
    source = make_source(8, left=False)
    inputs = torch.randn(len(LENGTHS), STEPS, INPUT, dtype=torch.float64)
    start = first_state(layers)
    expected, expected_weights, last = layers(inputs, source, DecoderState(start))
    state, outputs, weights = DecoderState(start), [], []
    for step in inputs.split([1, 2, STEPS - 3], 1):
        output, step_weights, state = layers(step, source, state)
        outputs.append(output)
        weights.append(step_weights)
    assert_same(torch.cat(outputs, 1), expected)
    assert_same(torch.cat(weights, 1), expected_weights)
    assert_same(state.cells.hidden, last.cells.hidden)
    assert state.step == last.step == STEPS


def test_concat_does_not_depend_on_the_decoder_state():
    """vᵀ W [h̄; h] is a sum of a part of h̄ and a part of h, so the softmax over h has no h̄."""
    torch.manual_seed(7)
    source = make_source(8, left=False)
    queries = torch.randn(len(LENGTHS), STEPS, WIDTH, dtype=torch.float64)
    for name, is_independent in {"concat": True, "additive": False, "bilinear": False}.items():
        attention = SourceAttention(name, WIDTH, 8).double()
        _, weights = attention(queries, source, attention.score.keys(source.states))
        assert torch.allclose(weights, weights[:, :1].expand_as(weights)) == is_independent


def test_dot_says_that_widths_differ():
    with pytest.raises(ValueError, match="one width: 6 and 8"):
        SourceAttention("dot", 6, 8)


def test_half_precision_attends_far_from_overflow():
    attention = SourceAttention("dot", 4, 4).half()
    source = SourceStates(torch.full((1, 3, 4), 90.0).half(), torch.tensor([[False, False, True]]))
    _, weights = attention(source.states[:, :1], source, source.states)
    assert weights.tolist() == [[[0.5, 0.5, 0.0]]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_predicts_the_same_window_of_a_long_sentence(dtype):
    """bfloat16 has no number between 512 and 516; positions and their distances need some."""
    torch.manual_seed(10)
    window = WINDOWS["local-p"](32, 10).to(dtype)
    queries = torch.randn(1, 50, 32).to(dtype)
    # Centres all over the sentence.
    window.scaled_vector.weight.data *= 50
    source = SourceStates(
        torch.zeros(1, 1000, 4, dtype=dtype), torch.zeros(1, 1000, dtype=torch.bool)
    )
    centres = window.centres(queries, source)
    near, factors = window(queries, source, 0)

    exact = copy.deepcopy(window).float()
    expected = exact.centres(queries.float(), source)
    assert expected.min() < 200
    assert expected.max() > 800
    torch.testing.assert_close(centres.float(), expected, rtol=0, atol=1e-3)
    expected_near, expected_factors = exact(queries.float(), source, 0)
    assert torch.equal(near, expected_near)
    assert factors.dtype == dtype
    rounding = 0.51 * torch.finfo(dtype).eps
    compared = factors.float()[near], expected_factors[near]
    torch.testing.assert_close(*compared, rtol=rounding, atol=0)
    factors.float().sum().backward()
    assert window.scaled_vector.weight.grad.any()
    assert window.scaled_vector.weight.grad.dtype == dtype


def test_mixed_precision_predicts_the_same_window():
    torch.manual_seed(11)
    window = WINDOWS["local-p"](32, 10)
    queries = torch.randn(1, 50, 32)
    source = SourceStates(torch.zeros(1, 1000, 4), torch.zeros(1, 1000, dtype=torch.bool))
    expected = window.centres(queries, source)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(window.centres(queries, source), expected)


def test_a_wide_window_does_not_stick_to_one_end():
    """The first updates pull all centres to the end; later ones can still bring them back."""
    torch.manual_seed(12)
    window = WINDOWS["local-p"](256, 10)
    source = SourceStates(torch.zeros(1, 20, 4), torch.zeros(1, 20, dtype=torch.bool))
    optimizer = torch.optim.Adam(window.parameters(), lr=0.004, betas=(0.9, 0.98))
    queries = 0.3 * torch.randn(1, 30, 256)

    def pull(direction: int) -> float:
        for _ in range(100):
            optimizer.zero_grad()
            (-direction * window.centres(queries, source)).mean().backward()
            optimizer.step()
        return window.centres(queries, source).mean().item()

    assert pull(1) > 15
    assert pull(-1) < 15


def test_coverage_is_that_of_loops():
    torch.manual_seed(8)
    weights = torch.rand(2, 4, 3, dtype=torch.float64).softmax(-1)
    padding = torch.tensor([[False] * 4, [False, False, True, True]])
    expected = twin.coverage(weights[0].tolist()) + twin.coverage(weights[1, :2].tolist())
    assert coverage_loss(weights, padding).item() == pytest.approx(expected)


def test_attending_to_each_position_once_costs_nothing():
    assert coverage_loss(torch.eye(4)[None], torch.zeros(1, 4, dtype=torch.bool)).item() == 0


@pytest.mark.parametrize("kind", [PlainSelfAttention, BilinearSelfAttention])
def test_self_attention_is_that_of_loops(kind):
    torch.manual_seed(9)
    module = kind(6, 3).double()
    source = make_source(6, left=False)
    attended = module(source.states, source.padding)
    for index, length in enumerate(LENGTHS):
        states = source.states[index, :length]
        expected = (
            twin.plain_self_attention(states)
            if kind is PlainSelfAttention
            else twin.bilinear_self_attention(module, states)
        )
        assert_same(attended[index, :length], expected)


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="4 heads do not divide the width 6"):
        BilinearSelfAttention(6, 4)


def test_the_decoder_starts_from_its_own_layer_or_the_last():
    hidden = torch.randn(3, 2, 4)
    initial = InitialState("gru", 4, 4, 3)(CellState(hidden))
    assert torch.equal(initial.hidden, hidden)
    assert initial.cell is None
    fewer = InitialState("lstm", 4, 4, 2)(CellState(hidden))
    assert torch.equal(fewer.hidden, hidden[[2, 2]])
    assert torch.equal(fewer.cell, hidden[[2, 2]])
    assert InitialState("lstm", 4, 6, 2)(CellState(hidden, hidden)).cell.shape == (2, 2, 6)


def test_directions_are_joined_layer_by_layer():
    cells = torch.nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True)
    states, (hidden, memory) = cells(torch.randn(5, 7, 3))
    joined = both_directions(CellState(hidden, memory)).hidden
    assert joined.shape == (2, 5, 8)
    assert torch.equal(joined[-1], torch.cat([states[:, -1, :4], states[:, 0, 4:]], 1))
