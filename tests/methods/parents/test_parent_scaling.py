"""Parent-scaled attention: its equation in loops, fairseq's Transformer, its options."""

from __future__ import annotations

import math

import pytest
import torch

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.tensors import masked_keys
from fairseq_phrase.methods.common.tree_positions import TreePositions
from fairseq_phrase.methods.parents.parent_scaling import (
    SCALINGS,
    parent_middles,
    parent_scaled_attention,
    parent_scales,
)
from fairseq_phrase.testing import build_model, encode, make_batch
from tests.support.tolerance import assert_same

NAME = "parent_scaled_transformer"
LENGTHS = [9, 1, 5, 6]


def trees(dictionary, *, left=False, roots=1):
    """Random trees, and the places of each sentence's tokens in its row."""
    inputs = make_batch(dictionary, LENGTHS, left=left, extra=1)
    heads = inputs["src_heads"]
    for word in range(1, roots):
        # The later roots: words of the first sentence that are not above the first root.
        heads[0, word] = word
    padding = inputs["src_tokens"].eq(dictionary.pad())
    return inputs["src_words"], heads, padding


def twin_middles(words, heads, padding):
    """p_t, token by token."""
    middles = []
    for of_token, of_word, is_padding in zip(words, heads, padding, strict=True):
        row = []
        for place, word in enumerate(of_token.tolist()):
            if word < 0 or is_padding[place]:
                row.append(float(place))
                continue
            parent = int(of_word[word])
            first_root = next(w for w, h in enumerate(of_word.tolist()) if w == h)
            if parent == word:
                parent = first_root  # of several roots the later ones hang off the first
            places = [j for j, token_word in enumerate(of_token.tolist()) if token_word == parent]
            row.append((places[0] + places[-1]) / 2)
        middles.append(row)
    return torch.tensor(middles, dtype=torch.double)


def twin_attention(query, key, value, middles, padding, scaling, std, gate):
    """Eq. of parent-scaled attention, score by score, in double precision."""
    batch, num_heads, n, width = query.shape
    outputs = torch.zeros_like(query)
    for b in range(batch):
        keys = [j for j in range(n) if not padding[b, j]]
        for h in range(num_heads):
            for t in range(n):
                scores = []
                for j in keys:
                    score = query[b, h, t] @ key[b, h, j] / math.sqrt(width)
                    square = (j - middles[b, t]) ** 2 / (2 * std**2)
                    if scaling == "multiply":
                        density = math.exp(-square) / (std * math.sqrt(2 * math.pi))
                        score = score * (1 + gate[h] * (density - 1))
                    else:
                        score = score - gate[h] * square
                    scores.append(score)
                weights = torch.stack(scores).softmax(0)
                outputs[b, h, t] = sum(
                    w * value[b, h, j] for w, j in zip(weights, keys, strict=True)
                )
    return outputs


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("roots", [1, 3])
def test_the_middle_of_the_parent_is_that_of_its_subwords(dictionary, left, roots):
    words, heads, padding = trees(dictionary, left=left)
    for word in range(1, roots):
        heads[2, word - 1] = word - 1
    tree = TreePositions(words, heads, padding)
    expected = twin_middles(words, heads, padding)
    assert torch.equal(parent_middles(tree).double(), expected)


@pytest.mark.fast(5)
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize(
    ("std", "gate"), [(1.0, None), (2.5, 0.7), (2.5, None), (1.0, 0.7), (1.0, 0.0)]
)
def test_attention_is_the_equation_in_loops(dictionary, left, scaling, std, gate):
    torch.manual_seed(3)
    words, of_words, padding = trees(dictionary, left=left)
    tree = TreePositions(words, of_words, padding)
    shape = (len(words), 3, words.size(1), 4)
    inputs = [torch.randn(shape, dtype=torch.double).requires_grad_() for _ in range(3)]
    gates = torch.ones(3, dtype=torch.double)
    if gate is not None:
        gates = (gates * gate - torch.arange(3) * gate / 4).requires_grad_()
    learned = inputs if gate is None else [*inputs, gates]
    expected = twin_attention(
        *inputs, twin_middles(words, of_words, padding), padding, scaling, std, gates,
    )  # fmt: skip
    middles = parent_middles(tree).double()
    for need_weights in (False, True):
        attended, weights = parent_scaled_attention(
            *inputs,
            parent_scales(middles, scaling, std),
            masked_keys(padding),
            scaling=scaling,
            gate=None if gate is None else gates,
            need_weights=need_weights,
        )
        direction = torch.randn_like(expected) * ~padding[:, None, :, None]
        assert_same(attended * direction, expected * direction)
        expected_gradients = torch.autograd.grad(
            (expected * direction).sum(), learned, retain_graph=True
        )
        for gradient, expected_gradient in zip(
            torch.autograd.grad((attended * direction).sum(), learned),
            expected_gradients,
            strict=True,
        ):
            assert_same(gradient, expected_gradient)
            assert expected_gradient.any()
    assert_same(weights.double() @ inputs[2], attended)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_long_sentence_does_not_overflow_half_precision(dtype):
    length = 600
    words = torch.arange(length)[None]
    tree = TreePositions(words, torch.zeros_like(words), torch.zeros_like(words).bool())
    scales = parent_scales(parent_middles(tree), "prior", 0.5)
    query = torch.randn(1, 1, length, 4).to(dtype)
    attended, _ = parent_scaled_attention(query, query, query, scales, scaling="prior")
    assert attended.isfinite().all()


def test_layers_after_the_first_have_fairseqs_attention(dictionary):
    model = build_model(NAME, dictionary)
    kinds = [type(layer.self_attn).__name__ for layer in model.encoder.layers]
    assert kinds == ["ParentScaledAttention", "TokenAttention"]


def test_the_trees_decide(dictionary):
    model = build_model(NAME, dictionary)
    inputs = make_batch(dictionary, LENGTHS)
    chain = torch.arange(inputs["src_heads"].size(1)).clamp(min=1) - 1
    heads = torch.where(inputs["src_heads"] >= 0, chain, -1)
    assert not torch.allclose(encode(model, inputs), encode(model, {**inputs, "src_heads": heads}))


def test_attention_of_xformers_is_refused(dictionary):
    with pytest.raises(UserError, match="--encoder-xformers-att-config"):
        build_model(NAME, dictionary, encoder_xformers_att_config="{}")
