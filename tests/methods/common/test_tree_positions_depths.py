"""Absolute positions: the sinusoid against fairseq's, and eq. 7 token by token."""

from __future__ import annotations

import pytest
import torch
from fairseq.modules import SinusoidalPositionalEmbedding

from fairseq_phrase.methods.common.tree_positions import DepthEncoding, sinusoids
from tests.support.tolerance import assert_same


@pytest.mark.parametrize("width", [4, 7, 64])
def test_depths_are_encoded_as_fairseq_encodes_places(width):
    expected = SinusoidalPositionalEmbedding.get_embedding(20, width)
    torch.testing.assert_close(sinusoids(20, width), expected, rtol=0, atol=0)


def fused(encoding: DepthEncoding, depth: int, place_encoding=None) -> torch.Tensor:
    """Eq. 7 for one token, or eq. 3 alone."""
    depth_encoding = sinusoids(depth + 1, encoding.table.size(1))[depth].double()
    if encoding.structural is None:
        scale = 1 if encoding.gate is None else encoding.gate
        return scale * depth_encoding + (0 if place_encoding is None else place_encoding)
    total = encoding.structural.weight @ depth_encoding + encoding.structural.bias
    if place_encoding is not None:
        total = total + encoding.sequential.weight @ place_encoding
    return torch.tanh(total)


@pytest.mark.parametrize("fusion", [None, "add", "tanh"])
@pytest.mark.parametrize("with_places", [False, True])
@pytest.mark.parametrize("gate", [None, 0.0, 0.6])
def test_encodings_and_their_gradients_are_eq_7_token_by_token(fusion, with_places, gate):
    torch.manual_seed(0)
    encoding = DepthEncoding(6, max_depth=2, fusion=fusion, neutral=gate is not None).double()
    if encoding.gate is not None:
        encoding.gate.data.fill_(gate)
    if encoding.structural is not None:
        torch.nn.init.normal_(encoding.structural.bias)
    depths = torch.tensor([[0, 3, 1], [2, 2, 0]])  # 3 is deeper than was prepared for
    places = torch.tensor([[0, 1, 2], [0, 0, 1]])
    # float32 values, so that both sides start from the same numbers
    encoding.table = sinusoids(3, 6).double()
    place_encodings = torch.randn(3, 6, dtype=torch.double, requires_grad=True)
    place_arguments = (places, place_encodings) if with_places else ()
    actual = encoding(depths, 3, *place_arguments)
    expected = torch.stack(
        [
            fused(encoding, depth, place_encodings[place] if with_places else None)
            for depth, place in zip(depths.view(-1).tolist(), places.view(-1).tolist(), strict=True)
        ]
    ).view(2, 3, 6)
    assert_same(actual, expected)
    variables = [*encoding.parameters(), *([place_encodings] if with_places else [])]
    if variables:
        direction = torch.randn_like(actual)
        gradients, expected_gradients = (
            torch.autograd.grad((x * direction).sum(), variables, allow_unused=True)
            for x in (actual, expected)
        )
        for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
            assert (gradient is None) == (expected_gradient is None)
            if gradient is not None:
                assert_same(gradient, expected_gradient)


def test_the_sum_has_no_parameters_and_an_unknown_fusion_is_refused():
    assert not list(DepthEncoding(4, fusion="add").parameters())
    assert len(list(DepthEncoding(4, fusion="tanh").parameters())) == 3
    with pytest.raises(ValueError, match="unknown fusion 'sum', expected one of tanh, add"):
        DepthEncoding(4, fusion="sum")
