"""Dropout from 16-bit random numbers, compared with the distribution that it has by definition."""

from __future__ import annotations

import math

import pytest
import torch
from fairseq.modules import FairseqDropout
from torch import nn

from fairseq_phrase.training.dropout import FastDropout, take_fast_dropout


def fast_dropout(probability: float) -> FastDropout:
    model = nn.Sequential(nn.Linear(2, 2), FairseqDropout(probability))
    assert take_fast_dropout(model) is None
    assert type(model[1]) is FastDropout
    return model[1].train()


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5, 0.999])
def test_states_are_dropped_with_the_probability_and_scaled_to_their_expectation(probability):
    torch.manual_seed(1)
    states = torch.full((1000, 404), 2.0)
    dropped = fast_dropout(probability)(states)
    exact = round(probability * 2**16) / 2**16
    factors = dropped.unique()
    torch.testing.assert_close(factors, torch.tensor([0.0, 2 / (1 - exact)]))
    # Four numbers come from one of 64 bits: each of the four has the distribution.
    deviation = math.sqrt(exact * (1 - exact) / (states.numel() / 4))
    for lane in (dropped.flatten() == 0).view(-1, 4).double().mean(0):
        assert abs(lane.item() - exact) < 5 * deviation


def test_drops_are_independent():
    torch.manual_seed(1)
    is_dropped = (fast_dropout(0.5)(torch.ones(100_000, 4)) == 0).long()
    patterns = (is_dropped * torch.tensor([8, 4, 2, 1])).sum(1).bincount(minlength=16)
    # χ² of 15 degrees of freedom is above 44 with a probability of 1e-4.
    assert ((patterns - 6250.0) ** 2 / 6250).sum() < 44
    neighbours = is_dropped[1:, 0].double().mul(is_dropped[:-1, 3]).mean().item()
    assert abs(neighbours - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 100_000)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("shape", [(7, 3, 5), (), (0, 4), (6,)], ids=str)
def test_the_gradient_is_that_of_the_states_that_stay(shape, inplace):
    dropout = fast_dropout(0.4)
    states = torch.randn(shape, dtype=torch.float64, requires_grad=True)

    def same_numbers(states):
        torch.manual_seed(3)
        return dropout(states * 1, inplace)

    assert torch.autograd.gradcheck(same_numbers, states)
    assert torch.equal(same_numbers(torch.ones(shape)) == 0, same_numbers(states.abs() + 1) == 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_states_of_any_layout_keep_their_type(dtype):
    states = torch.ones(6, 4, 5, dtype=dtype).transpose(0, 2)
    dropped = fast_dropout(0.25)(states)
    assert dropped.dtype == dtype
    assert dropped.shape == states.shape
    torch.testing.assert_close(dropped.unique(), torch.tensor([0, 4 / 3], dtype=dtype))


@pytest.mark.parametrize("probability", [0.0, 1.0, 1e-7, 1 - 1e-7])
def test_extreme_probabilities_drop_all_or_nothing(probability):
    states = torch.ones(1000)
    expected = states if probability < 0.5 else torch.zeros(1000)
    dropped = fast_dropout(probability)(states)
    torch.testing.assert_close((dropped != 0).float(), expected, atol=1e-2, rtol=0)


def test_outside_training_nothing_is_dropped():
    states = torch.ones(100)
    assert torch.equal(fast_dropout(0.5).eval()(states), states)


def test_other_dropouts_stay():
    class OtherDropout(FairseqDropout):
        pass

    model = nn.Sequential(nn.Linear(2, 2), OtherDropout(0.1), nn.Dropout(0.1))
    assert "no dropout" in take_fast_dropout(model)
    assert [type(module) for module in model] == [nn.Linear, OtherDropout, nn.Dropout]
    assert "not on a CPU" in take_fast_dropout(model.to("meta"))
