"""``--attention-gate`` and ``--attention-start-scale`` of every encoder."""

from __future__ import annotations

import math
from argparse import Namespace

import pytest
import torch
from omegaconf import OmegaConf

from fairseq_phrase.checkpoints.options import model_entries
from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.causal_window import CausalWindow
from fairseq_phrase.methods.common.projections import head_gate
from fairseq_phrase.methods.encoder_method import neutral_obstacle
from fairseq_phrase.methods.syntax_encoder import adapt_attentions, padded_scores
from fairseq_phrase.testing import LENGTHS, build_model, encode, make_batch
from tests.support.encoder_attentions import PLAIN, VARIANTS, attentions_of
from tests.support.selection import first_of_each

# The plain encoders are fairseq's layers; the others have attentions of this package.
CASES = VARIANTS | PLAIN
each_variant = pytest.mark.parametrize(("name", "options"), CASES.values(), ids=CASES.keys())


@each_variant
def test_every_attention_has_a_gate_that_trains(dictionary, name, options):
    model = build_model(name, dictionary, **options, attention_gate=True)
    model.double().eval()
    encode(model, make_batch(dictionary, LENGTHS)).square().sum().backward()
    for attention in attentions_of(model):
        assert attention.gate_proj.weight.grad.abs().max() > 0


@each_variant
def test_an_open_gate_is_no_gate(dictionary, name, options):
    """A gate of sigmoid(0) halves the heads, so doubled output projections undo it."""
    plain = build_model(name, dictionary, **options).double().eval()
    gated = build_model(name, dictionary, **options, attention_gate=True).double().eval()
    state = gated.state_dict()
    state.update(plain.state_dict())
    for key in state:
        if key.endswith("gate_proj.weight"):
            state[key] = torch.zeros_like(state[key])
        elif key.startswith("encoder") and key.endswith("attn.out_proj.weight"):
            state[key] = 2 * state[key]
    gated.load_state_dict(state)
    inputs = make_batch(dictionary, LENGTHS)
    torch.testing.assert_close(encode(gated, inputs), encode(plain, inputs))


@each_variant
def test_every_gate_reads_the_input_of_its_attention(dictionary, alone_beyond, name, options):
    """Against the same attention without the gate; also where long sentences are attended to alone."""
    model = build_model(name, dictionary, **options, attention_gate=True)
    calls, heads = [], []
    for attention in attentions_of(model):
        attention.register_forward_hook(lambda *call: calls.append(call))
        attention.out_proj.register_forward_pre_hook(lambda _, inputs: heads.append(inputs[0]))
    with torch.no_grad():
        encode(model, make_batch(dictionary, LENGTHS))
        gated = heads[:]
        assert len(calls) == len(gated) == len(attentions_of(model))
        alone_beyond(0)
        for (attention, inputs, _), expected in zip(calls[:], gated, strict=True):
            heads.clear()
            attention(*inputs)
            gate, attention.gate_proj = attention.gate_proj, None
            attention(*inputs)
            with_gate, without_gate = heads
            torch.testing.assert_close(with_gate, expected)
            states = inputs[0]
            torch.testing.assert_close(expected, without_gate * torch.sigmoid(gate(states)))


@each_variant
def test_only_the_output_projections_start_smaller(dictionary, name, options):
    # build_model replaces the zeros of --phrase-gate zero by random numbers.
    options = {key: value for key, value in options.items() if key != "phrase_gate"}
    plain = build_model(name, dictionary, **options).state_dict()
    small = build_model(name, dictionary, **options, attention_start_scale=0.1)
    scaled = {id(attention.out_proj.weight) for attention in attentions_of(small)}
    assert len(scaled) == len(attentions_of(small)) > 1
    for key, value in small.state_dict(keep_vars=True).items():
        factor = 0.1 if id(value) in scaled else 1.0
        torch.testing.assert_close(value.detach(), factor * plain[key], msg=key)


def test_a_start_scale_may_be_above_one(dictionary):
    plain, large = (
        build_model("structural_transformer", dictionary, attention_start_scale=scale)
        for scale in (1.0, 3.0)
    )
    for attention, expected in zip(attentions_of(large), attentions_of(plain), strict=True):
        torch.testing.assert_close(attention.out_proj.weight, 3 * expected.out_proj.weight)


def test_a_start_scale_is_not_an_option_of_a_trained_model_but_a_gate_is():
    """A training with another scale goes on, and its checkpoints are averaged with others."""
    name = {"_name": "structural_transformer"}
    assert model_entries(name | {"attention_start_scale": 0.1}) == model_entries(name)
    assert model_entries(name | {"attention_gate": True}) != model_entries(name)


def test_the_gate_is_its_equation_in_value_and_gradient():
    torch.manual_seed(0)
    projection = torch.nn.Linear(4, 4, bias=False).double()
    heads, states = torch.randn(2, 3, 4).double(), torch.randn(2, 3, 4).double()
    expected = torch.empty_like(heads)
    for i in range(2):
        for j in range(3):
            for k in range(4):
                scores = sum(projection.weight[k, m] * states[i, j, m] for m in range(4))
                expected[i, j, k] = heads[i, j, k] / (1 + math.exp(-scores))
    torch.testing.assert_close(head_gate(heads, states, projection), expected)
    heads.requires_grad_(), states.requires_grad_()
    torch.autograd.gradcheck(lambda *x: head_gate(*x, projection), (heads, states))
    assert head_gate(heads, states, None) is heads


def test_the_gated_plain_encoder_is_torchs_attention_behind_the_gate(dictionary):
    """Against torch's attention, whose output projection is the identity, with left padding."""
    model = build_model("structural_transformer", dictionary, attention_gate=True)
    attention = model.double().eval().encoder.layers[0].self_attn
    reference = torch.nn.MultiheadAttention(16, 2).double()
    with torch.no_grad():
        rows = [getattr(attention, f"{kind}_proj") for kind in "qkv"]
        reference.in_proj_weight.copy_(torch.cat([row.weight for row in rows]))
        reference.in_proj_bias.copy_(torch.cat([row.bias for row in rows]))
        reference.out_proj.weight.copy_(torch.eye(16))
        reference.out_proj.bias.zero_()
    states = torch.randn(5, 2, 16).double()
    padding = torch.tensor([[False] * 5, [True, True, False, False, False]])
    causal = torch.triu(torch.full((5, 5), -1e8), 1).double()
    for mask in (None, causal):
        heads, weights = reference(
            states, states, states, padding, attn_mask=mask, average_attn_weights=False
        )
        expected = attention.out_proj(heads * torch.sigmoid(attention.gate_proj(states)))
        padded = padded_scores(padding, states.dtype)
        added = padded if mask is None else padded + mask
        actual, actual_weights = attention(states, added, need_weights=True)
        torch.testing.assert_close(actual[2:], expected[2:])
        torch.testing.assert_close(actual_weights[:, :, 2:], weights[:, :, 2:])


@pytest.mark.parametrize("padding", [0, 2])
def test_a_gated_plain_encoder_can_be_causal(dictionary, padding):
    """Padding on the left is in nobody's future, so only its own mask excludes it."""
    model = build_model("structural_transformer", dictionary, attention_gate=True).double().eval()
    inputs = make_batch(dictionary, [6], left=True, extra=padding)
    tokens = inputs["src_tokens"]
    states = model.encoder(tokens, causal=CausalWindow())["encoder_out"][0]
    part = model.encoder(tokens[:, padding : padding + 3], causal=CausalWindow())["encoder_out"][0]
    torch.testing.assert_close(states[padding : padding + 3], part)


def test_a_gate_has_no_neutral_start_and_no_xformers(dictionary):
    model = build_model("relation_transformer", dictionary, attention_gate=True)
    assert "--attention-gate" in neutral_obstacle(model.encoder, model.cfg)
    with pytest.raises(UserError, match="--attention-gate"):
        build_model(
            "parent_scaled_transformer", dictionary, attention_gate=True, neutral_start=True
        )
    with pytest.raises(UserError, match=r"--attention-gate .*xformers"):
        build_model(
            "structural_transformer", dictionary, attention_gate=True,
            encoder_xformers_att_config="{'name': 'linear'}",
        )  # fmt: skip


@pytest.mark.parametrize("value", [0.0, 1e-50, -1.0, 1e39, math.inf, math.nan])
def test_a_start_scale_is_positive_and_leaves_numbers_of_single_precision(dictionary, value):
    with pytest.raises(UserError, match="--attention-start-scale"):
        build_model("structural_transformer", dictionary, attention_start_scale=value)


@pytest.mark.parametrize(("name", "options"), first_of_each(CASES.values()), ids=CASES.keys())
def test_dropout_of_attention_weights_is_retained_at_inference(dictionary, name, options):
    """``fairseq-generate --retain-dropout``, of all modules or of the classes that are named."""
    inputs = make_batch(dictionary, LENGTHS)
    for retained, are_named, varies in (
        (False, None, False), (True, None, True), (True, True, True), (True, False, False),
    ):  # fmt: skip
        model = build_model(name, dictionary, **options, dropout=0.0, attention_dropout=0.5)
        classes = {type(attention).__name__ for attention in attentions_of(model)}
        modules = None if are_named is None else [*(classes if are_named else ["Decoder"])]
        model.prepare_for_inference_(
            OmegaConf.create(
                {"generation": {"retain_dropout": retained, "retain_dropout_modules": modules}}
            )
        )
        first, second = (encode(model, inputs) for _ in range(2))
        assert torch.equal(first, second) != varies, (retained, modules)


def test_an_attention_that_takes_no_gate_is_named():
    with pytest.raises(UserError, match="--attention-gate: derive Identity from HeadsAttention"):
        adapt_attentions(Namespace(self_attn=torch.nn.Identity()), Namespace(attention_gate=True))
