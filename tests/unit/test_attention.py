"""The attention of decoders in training, compared with fairseq's."""

from __future__ import annotations

import copy

import pytest
import torch
from fairseq import utils
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.modules import MultiheadAttention

from fairseq_phrase.models.encoder_method import ENCODERS
from fairseq_phrase.tasks.added_losses import CoverageCriterion
from fairseq_phrase.testing import build_model, make_batch
from fairseq_phrase.training.attention import TrainedAttention, take_fused_attention
from fairseq_phrase.training.cross_entropy import reads_attention
from tests.support.tolerance import assert_same
from tests.support.tree_losses import make_criterion, make_sample


@pytest.fixture(autouse=True)
def exact_softmax(monkeypatch):
    """Let fairseq compute in double precision: its softmax is in single precision."""
    monkeypatch.setattr(utils, "softmax", lambda scores, dim, onnx_trace=False: scores.softmax(dim))


def take(model, *, reads_weights=False, left_pad_target=False):
    options = {"reads_weights": reads_weights, "left_pad_target": left_pad_target}
    return take_fused_attention(model, **options)


def inputs_of(dictionary):
    return make_sample(dictionary, make_batch(dictionary, [7, 1, 4, 5]))["net_input"]


def compare(model, inputs, is_word):
    """Compare the scores and the gradients of two equal models, one of them with the attention."""
    faster = copy.deepcopy(model)
    assert take(faster) is None
    assert any(isinstance(module, TrainedAttention) for module in faster.modules())
    scores, expected = (
        model_or_faster(**inputs)[0][is_word] for model_or_faster in (faster, model)
    )
    assert_same(scores.detach(), expected.detach())
    weights = torch.randn(
        scores.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    for values in (scores, expected):
        (values * weights).sum().backward()
    for parameter, expected_parameter in zip(faster.parameters(), model.parameters(), strict=True):
        if expected_parameter.grad is not None:
            assert_same(parameter.grad, expected_parameter.grad)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"decoder_normalize_before": True},
        {"checkpoint_activations": True},
        {"encoder_embed_dim": 8},
    ],
    ids=str,
)
def test_scores_and_gradients_are_fairseqs(dictionary, options):
    model = build_model("transformer", dictionary, **options).train()
    inputs = inputs_of(dictionary)
    compare(model, inputs, inputs["prev_output_tokens"].ne(dictionary.pad()))


def test_layers_that_training_leaves_out_are_changed_too(dictionary):
    model = build_model("transformer", dictionary, decoder_layerdrop=0.99).train()
    assert take(model) is None
    changed = [module for module in model.decoder.modules() if isinstance(module, TrainedAttention)]
    assert len(changed) == 4


def test_another_mask_than_that_of_the_future_is_added_as_by_fairseq(dictionary):
    model = build_model("transformer", dictionary).train()
    attention = model.encoder.layers[0].self_attn
    states = torch.randn(5, 2, 16, dtype=torch.float64)
    mask = torch.randn(5, 5, dtype=torch.float64)
    options = {"need_weights": False, "attn_mask": mask}
    expected, _ = attention(states, states, states, **options)
    take(model)
    assert type(attention) is TrainedAttention
    assert_same(attention(states, states, states, **options)[0], expected)
    _, weights = attention(states, states, states, need_head_weights=True, static_kv=True)
    assert weights.shape == (2, 2, 5, 5)


def test_dropped_weights_are_as_many_as_in_fairseq(dictionary):
    model = build_model("transformer", dictionary, attention_dropout=0.4).train()
    stock = copy.deepcopy(model)
    take(model)
    torch.manual_seed(1)
    keys = torch.randn(300, 2, 16, dtype=torch.float64)
    variances = []
    for kind in (model, stock):
        attention = kind.decoder.layers[0].encoder_attn
        arguments = {"need_weights": False, "static_kv": True}
        draws = torch.stack([attention(keys[:5], keys, keys, **arguments)[0] for _ in range(200)])
        attention.eval()
        expected, _ = attention(keys[:5], keys, keys, **arguments)
        torch.testing.assert_close(draws.mean(0), expected, rtol=0, atol=0.05)
        variances.append((draws - expected).square().mean().item())
    assert variances[0] == pytest.approx(variances[1], rel=0.2)


def test_outside_training_attention_is_fairseqs_to_the_last_bit(dictionary):
    model = build_model("transformer", dictionary)
    inputs = inputs_of(dictionary)
    expected = model(**inputs)
    take(model)
    output = model.eval()(**inputs)
    torch.testing.assert_close(output[0], expected[0], rtol=0, atol=0)
    torch.testing.assert_close(output[1]["attn"], expected[1]["attn"], rtol=0, atol=0)


def test_weights_are_returned_to_those_who_read_them(dictionary):
    model = build_model("transformer", dictionary).train()
    inputs = inputs_of(dictionary)
    expected = model(**inputs)[1]["attn"][0]
    take(model, reads_weights=True)
    is_word = inputs["prev_output_tokens"].ne(dictionary.pad())
    weights = model(**inputs)[1]["attn"][0]
    torch.testing.assert_close(weights[is_word], expected[is_word], rtol=1e-6, atol=1e-7)
    unread = build_model("transformer", dictionary).train()
    take(unread)
    assert unread(**inputs)[1]["attn"] == [None]


def test_who_reads_weights_is_known(dictionary):
    model = build_model("transformer", dictionary)
    criterion = make_criterion(LabelSmoothedCrossEntropyCriterion, dictionary)
    assert not reads_attention(model, criterion)
    assert reads_attention(model, CoverageCriterion.over(criterion, 1.0))
    copies = build_model("structural_transformer", dictionary, copy="gate")
    assert reads_attention(copies, criterion)


def test_what_differs_stays_fairseqs(dictionary):
    model = build_model("transformer", dictionary)
    assert "padded on the left" in take(model, left_pad_target=True)
    noisy = build_model("transformer", dictionary, quant_noise_pq=0.1, quant_noise_pq_block_size=1)
    assert "no layer" in take(noisy)
    other_model = build_model(
        "transformer", dictionary, cross_self_attention=True, no_cross_attention=True
    )
    assert take(other_model) is None  # its encoder is changed
    assert "in parts" in take(torch.nn.Linear(1, 1))
    for stock_module in (model, noisy, other_model.decoder):
        assert not any(isinstance(module, TrainedAttention) for module in stock_module.modules())


@pytest.mark.parametrize("function", ["extract_features_scriptable", "buffered_future_mask"])
def test_a_decoder_that_makes_its_masks_stays_fairseqs(dictionary, function):
    model = build_model("transformer", dictionary)
    kind = type(model.decoder)
    own = {function: lambda self, *args, **options: getattr(kind, function)(self, *args, **options)}
    model.decoder.__class__ = type("OwnDecoder", (kind,), own)
    assert "OwnDecoder has masks of its own" in take(model)


@pytest.mark.parametrize(
    "option", ["use_xformers", "add_zero_attn", "onnx_trace", "skip_embed_dim_check", "bias_k"]
)
def test_an_attention_with_another_option_stays_fairseqs(dictionary, option):
    model = build_model("transformer", dictionary)
    for attention in model.modules():
        if isinstance(attention, MultiheadAttention):
            value = torch.nn.Parameter(torch.zeros(1, 1, 1)) if option == "bias_k" else True
            setattr(attention, option, value)
    assert "no layer" in take(model)


def test_the_cross_attention_of_trees_stays_its_own(dictionary):
    variant = next(iter(ENCODERS["tree_transformer"].variants.values()))
    model = build_model("tree_transformer", dictionary, **variant)
    assert take(model) is None
    layer = model.decoder.layers[0]
    assert type(layer.self_attn) is TrainedAttention
    assert not isinstance(layer.encoder_attn, TrainedAttention)
    assert type(MultiheadAttention(4, 2)) is MultiheadAttention
