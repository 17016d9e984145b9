"""The layer that all encoders share: what it drops in training, quantization noise, what it returns."""

from __future__ import annotations

import pytest
import torch
from fairseq.modules import FairseqDropout
from torch import nn

from fairseq_phrase import testing
from fairseq_phrase.methods.common.projections import HeadsAttention
from fairseq_phrase.methods.syntax_encoder import GatedEncoderLayer, SyntaxEncoderLayer
from fairseq_phrase.testing import LENGTHS, SIZES, build_model, encode, make_batch
from tests.support.encoder_attentions import PLAIN, VARIANTS, attentions_of

GATED = {
    title: (name, {**options, "attention_gate": True}) for title, (name, options) in PLAIN.items()
}
CASES = VARIANTS | GATED
each_variant = pytest.mark.parametrize(("name", "options"), CASES.values(), ids=CASES.keys())


def first_of(value):
    """A layer's states: of its output, or of its arguments."""
    return value[0] if isinstance(value, tuple) else value


@each_variant
def test_a_layer_drops_the_output_of_each_block_before_it_is_added(
    dictionary, monkeypatch, name, options
):
    """If all of it is dropped, a layer with pre-norm returns its states as they are."""
    dropouts = {"dropout": 0.1, "activation_dropout": 0.2, "encoder_normalize_before": True}
    model = build_model(name, dictionary, **options, **dropouts).train()
    drops: list[tuple[float, int]] = []
    layers = []

    def drop(module, x, inplace=False):
        drops.append((module.p, x.size(-1)))
        return torch.zeros_like(x) if module.p == 0.1 and layers else x

    def enter(layer, inputs):
        layers.append(layer)
        drops.clear()

    def leave(layer, inputs, output):
        blocks = len(layer.attention_blocks())
        of_states = (0.1, SIZES["embed_dim"])
        assert drops == [of_states] * blocks + [(0.2, SIZES["ffn_embed_dim"]), of_states]
        states, before = first_of(output), first_of(inputs)
        assert before.any()
        assert torch.equal(states, before[: states.size(0), : states.size(1)])

    monkeypatch.setattr(FairseqDropout, "forward", drop)
    for layer in model.encoder.layers:
        assert isinstance(layer, SyntaxEncoderLayer)
        layer.register_forward_pre_hook(enter)
        layer.register_forward_hook(leave)
    encode(model, make_batch(dictionary, LENGTHS))
    assert layers == list(model.encoder.layers)


@each_variant
def test_every_attention_drops_its_weights_in_training_only(dictionary, name, options):
    model = build_model(name, dictionary, **options, attention_dropout=0.5)
    calls = []
    for attention in attentions_of(model):
        attention.register_forward_hook(lambda *call: calls.append(call))
    with torch.no_grad():
        encode(model, make_batch(dictionary, LENGTHS))
        assert [attention for attention, *_ in calls] == attentions_of(model)
        for attention, inputs, (expected, _) in calls[:]:
            same, _ = attention(*inputs)
            assert torch.equal(same, expected)
            attention.train()
            assert not torch.allclose(attention(*inputs)[0], expected)
            if isinstance(attention, HeadsAttention):
                attention.dropout = 0.0
            else:
                attention.dropout_module.p = 0.0
            torch.testing.assert_close(attention(*inputs)[0], expected)


@each_variant
def test_every_projection_of_an_attention_takes_part_in_quantization_noise(
    dictionary, name, options
):
    noise = {"quant_noise_pq": 0.5, "quant_noise_pq_block_size": 4}
    model = build_model(name, dictionary, **{**options, "attention_gate": True}, **noise)
    for attention in attentions_of(model):
        projections = {
            key: part for key, part in attention.named_children() if isinstance(part, nn.Linear)
        }
        assert {"q_proj", "k_proj", "v_proj", "out_proj", "gate_proj"} <= projections.keys()
        assert [key for key, part in projections.items() if not part._forward_pre_hooks] == []


@each_variant
def test_a_gate_leaves_the_initial_values_of_the_other_parameters(
    dictionary, monkeypatch, name, options
):
    """Of the first layer: the layers after it draw other random numbers."""
    # Initial values are compared, which it would replace.
    monkeypatch.setattr(testing, "randomized", lambda model: model)
    options = {key: value for key, value in options.items() if key != "attention_gate"}
    plain = build_model(name, dictionary, **options).encoder.layers[0].state_dict()
    gated = build_model(name, dictionary, **options, attention_gate=True)
    values = gated.encoder.layers[0].state_dict()
    added = values.keys() - plain.keys()
    assert added
    assert all(key.endswith("attn.gate_proj.weight") for key in added)
    for key, value in plain.items():
        assert torch.equal(values[key], value), key


@pytest.mark.parametrize("is_first", [True, False])
def test_a_gated_plain_layer_returns_its_feed_forward_output_if_asked(dictionary, is_first):
    options = {"attention_gate": True, "encoder_normalize_before": is_first}
    encoder = build_model("structural_transformer", dictionary, **options).encoder
    layer = GatedEncoderLayer(encoder.cfg, return_fc=True).double().eval()
    layer.self_attn.add_gate()
    layer.self_attn.double()
    states = torch.randn(4, 2, SIZES["embed_dim"], dtype=torch.float64)
    output, feed_forward = layer(states, None)
    layer.return_fc = False
    assert torch.equal(layer(states, None), output)
    attended, _ = layer.self_attn(layer.self_attn_layer_norm(states) if is_first else states, None)
    middle = states + attended
    if is_first:
        torch.testing.assert_close(output, middle + feed_forward)
    else:
        middle = layer.self_attn_layer_norm(middle)
        torch.testing.assert_close(output, layer.final_layer_norm(middle + feed_forward))
