"""What the PhraseTransformer has beyond its paper: gates, first states, parts, layers, the decoder."""

from __future__ import annotations

import math

import pytest
import torch
from fairseq.models import MODEL_DATACLASS_REGISTRY

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.phrases.phrase_attention import (
    PhraseAttention,
    attention_weights,
    subset_attention,
)
from fairseq_phrase.methods.phrases.phrase_nodes import EndsOfPhrases, PooledPhrases, with_phrases
from fairseq_phrase.testing import build_model, encode, make_batch
from tests.support.padded_sentences import HEADS, KINDS, PATHS, SUBWORDS, make_phrases, random_heads
from tests.support.tolerance import assert_same

NAME = "phrase_transformer"
LENGTHS = [7, 1, 4, 5]
each_kind = pytest.mark.parametrize("kind", KINDS)


def phrases_of(batch):
    """(sentence, node, its tokens) of every phrase."""
    for sentence, nodes in enumerate(batch.members()):
        for node in range(batch.num_tokens, batch.num_nodes):
            yield sentence, node, list(nodes[node])


@each_kind
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_pooled_first_states_are_a_softmax_over_the_phrases_tokens(kind, left):
    batch = make_phrases(kind, left=left)
    torch.manual_seed(1)
    pooled = PooledPhrases(6, 2).double()
    torch.nn.init.normal_(pooled.score.weight)
    states = torch.randn(len(SUBWORDS), batch.num_tokens, 6, dtype=torch.double, requires_grad=True)
    pooled_states = with_phrases(states, batch, pooled)
    expected = torch.zeros_like(pooled_states)
    for sentence, node, tokens in phrases_of(batch):
        parts = []
        for head in range(2):
            part = slice(3 * head, 3 * head + 3)
            if tokens:
                scores = states[sentence, tokens] @ pooled.score.weight[head]
                parts.append(scores.softmax(0) @ states[sentence, tokens][:, part])
        if parts:
            expected[sentence, node] = torch.cat(parts)
    expected[:, : batch.num_tokens] = states
    assert_same(pooled_states, expected)
    direction = torch.randn_like(pooled_states)
    parameters = [states, pooled.score.weight]
    expected_gradients = torch.autograd.grad(
        (expected * direction).sum(), parameters, materialize_grads=True
    )
    actual_gradients = torch.autograd.grad(
        (pooled_states * direction).sum(), parameters, materialize_grads=True
    )
    for gradient, expected_gradient in zip(actual_gradients, expected_gradients, strict=True):
        assert_same(gradient, expected_gradient)


@each_kind
def test_pooled_first_states_start_at_the_mean_and_ends_at_the_mean_of_both(kind):
    batch = make_phrases(kind)
    states = torch.randn(len(SUBWORDS), batch.num_tokens, 6, dtype=torch.double)
    pooled = with_phrases(states, batch, PooledPhrases(6, 2).double())
    assert_same(pooled, with_phrases(states, batch, "mean"))
    ends = with_phrases(states, batch, EndsOfPhrases(6).double())
    for sentence, node, tokens in phrases_of(batch):
        expected = states.new_zeros(6)
        if tokens:
            expected = (states[sentence, tokens[0]] + states[sentence, tokens[-1]]) / 2
        assert_same(ends[sentence, node], expected)


def number_of_part(members, i, j, clip):
    """0 for itself; by the offset of the part in the whole, and which of both is the whole."""
    if i == j:
        return 0
    offset = min(clip, abs(members[j][0] - members[i][0]))
    return 1 + offset if len(members[j]) < len(members[i]) else 2 + clip + offset


@each_kind
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_parts_add_the_number_of_their_place_to_the_scores(kind, path, left):
    clip = 1
    batch = make_phrases(kind, left=left)
    heads = [states.detach().requires_grad_() for states in random_heads(batch)]
    query, key, value = heads
    bias = torch.randn(query.size(1), 2 * clip + 3, dtype=torch.double, requires_grad=True)
    expected = torch.zeros_like(value)
    for sentence, members in enumerate(batch.members()):
        for head in range(query.size(1)):
            for i, query_members in enumerate(members):
                near = [
                    j
                    for j, key_members in enumerate(members)
                    if query_members
                    and key_members
                    and (
                        set(query_members) <= set(key_members)
                        or set(key_members) <= set(query_members)
                    )
                ]
                scores = [
                    query[sentence, head, i] @ key[sentence, head, j] / math.sqrt(query.size(-1))
                    + bias[head, number_of_part(members, i, j, clip)]
                    for j in near
                ]
                if near:
                    weights = torch.stack(scores).softmax(0)
                    expected[sentence, head, i] = weights @ value[sentence, head, near]
    batch.is_long = path == "edges"
    attended = subset_attention(query, key, value, batch, bias=bias)
    real = ~batch.padding_mask[:, None, :, None]
    assert_same(attended * real, expected)
    direction = torch.randn_like(attended) * real
    expected_gradients = torch.autograd.grad((expected * direction).sum(), [*heads, bias])
    query_members = torch.autograd.grad((attended * direction).sum(), [*heads, bias])
    for gradient, expected_gradient in zip(query_members, expected_gradients, strict=True):
        assert_same(gradient, expected_gradient)
    weights = attention_weights(query, key, batch, "subset", bias)
    assert_same((weights @ value) * real, expected)


@pytest.mark.parametrize("gate", ["zero", "scalar"])
def test_a_gated_attention_starts_at_nothing_and_learns(gate):
    batch = make_phrases("token")
    attention = PhraseAttention(embed_dim=6, num_heads=2, gate=gate)
    states = torch.randn(len(HEADS), batch.num_nodes, 6)
    output, _ = attention(states, batch)
    assert not output.any()
    output.sum().backward()
    opened = attention.factor if gate == "scalar" else attention.out_proj.weight
    assert opened.grad.any()


def test_what_starts_at_zero_draws_no_other_numbers():
    """Another gate, or numbers of parts, leave the rest as it was."""
    states_of_attentions = []
    for options in ({}, {"gate": "scalar", "relative_clip": 2}, {"gate": "zero"}):
        torch.manual_seed(1)
        states_of_attentions.append(
            PhraseAttention(embed_dim=6, num_heads=2, **options).state_dict()
        )
    plain, scalar, zero = states_of_attentions
    assert all(torch.equal(plain[name], scalar[name]) for name in plain)
    assert all(torch.equal(plain[name], zero[name]) for name in plain if name != "out_proj.weight")


def test_the_papers_form_has_no_further_parameters(dictionary):
    model = build_model(NAME, dictionary)
    names = {name.split(".", 3)[-1] for name, _ in model.encoder.layers.named_parameters()}
    assert not {name for name in names if "factor" in name or "part_bias" in name}
    assert model.encoder.first_phrase_states is None


def nodes_of_layers(model, inputs):
    """How many nodes each layer sees."""
    counts = []
    handles = [
        layer.register_forward_pre_hook(lambda _, inputs: counts.append(inputs[0].size(1)))
        for layer in model.encoder.layers
    ]
    encode(model, inputs)
    for handle in handles:
        handle.remove()
    return counts


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("all", [True, True, True]),
        ("2", [True, True, False]),
        ("1-2", [True, True, False]),
        ("2-2", [False, True, False]),
        ("3-3", [False, False, True]),
    ],
)
def test_phrases_are_in_the_chosen_layers_only(dictionary, chosen, expected):
    model = build_model(NAME, dictionary, phrase_layers=chosen, encoder_layers=3)
    inputs = make_batch(dictionary, LENGTHS)
    tokens = inputs["src_tokens"].size(1)
    assert [nodes > tokens for nodes in nodes_of_layers(model, inputs)] == expected
    has_phrases = [hasattr(layer, "phrase_attn") for layer in model.encoder.layers]
    assert has_phrases == expected
    assert encode(model, inputs).size(1) == tokens


@pytest.mark.parametrize("pre_norm", [False, True], ids=["post-norm", "pre-norm"])
def test_a_layer_without_phrases_is_fairseqs_layer(dictionary, pre_norm):
    options = {"encoder_normalize_before": pre_norm}
    model = build_model(NAME, dictionary, phrase_layers="1", **options)
    plain = build_model("transformer", dictionary, **options)
    plain.encoder.layers[1].load_state_dict(model.encoder.layers[1].state_dict())
    inputs = make_batch(dictionary, LENGTHS)
    encoded = model.encoder(**inputs, return_all_hiddens=True)
    # (tokens, batch, width)
    before, after = encoded["encoder_states"][1:]
    padding = inputs["src_tokens"].eq(dictionary.pad())
    expected = plain.encoder.layers[1](before, padding)
    real = ~padding.T
    assert_same(after[real], expected[real])


@pytest.mark.parametrize("chosen", ["1", "2-2"])
def test_layers_that_are_dropped_leave_the_nodes_right(dictionary, chosen):
    torch.manual_seed(1)
    model = build_model(NAME, dictionary, phrase_layers=chosen, encoder_layerdrop=0.5).train()
    inputs = make_batch(dictionary, LENGTHS)
    for _ in range(12):
        assert encode(model, inputs).shape[:2] == inputs["src_tokens"].shape


def test_the_decoder_attends_to_phrases_if_asked_to(dictionary):
    model = build_model(NAME, dictionary, phrase_to_decoder=True)
    inputs = make_batch(dictionary, LENGTHS)
    encoded = model.encoder(**inputs)
    structure, _ = model.encoder.attention_maps(**inputs)
    assert torch.equal(encoded["encoder_padding_mask"][0], structure.padding_mask)
    assert encoded["encoder_out"][0].shape[:2] == structure.padding_mask.T.shape
    without = build_model(NAME, dictionary)
    without.load_state_dict(model.state_dict())
    tokens = inputs["src_tokens"].size(1)
    real = inputs["src_tokens"].ne(dictionary.pad())
    assert_same(encode(model, inputs)[:, :tokens][real], encode(without, inputs)[real])


def test_the_tuned_preset_is_the_papers_form_but_for_its_start():
    paper, tuned = (MODEL_DATACLASS_REGISTRY[name] for name in (NAME, f"{NAME}_tuned"))
    ours = ("gate", "init", "layers", "relative_clip", "to_decoder")
    settings = [
        [getattr(options, f"phrase_{name}") for name in ours] for options in (paper(), tuned())
    ]
    assert settings == [["none", "zero", "all", 0, False], ["zero", "mean", "all", 0, False]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"phrase_layers": "3"}, "--phrase-layers 3: expected 'all'"),
        ({"phrase_layers": "2-1"}, "--phrase-layers 2-1: expected 'all'"),
        ({"phrase_layers": "0-1"}, "--phrase-layers 0-1: expected 'all'"),
        ({"phrase_layers": "first"}, "--phrase-layers first: expected 'all'"),
        ({"phrase_layers": "0"}, "--phrase-layers 0: expected 'all'"),
        (
            {"phrase_layers": "1", "phrase_to_decoder": True},
            "--phrase-to-decoder needs phrases in the last layer, but --phrase-layers is 1",
        ),
        ({"phrase_relative_clip": -1}, "--phrase-relative-clip -1: expected 0 or more"),
        (
            {"phrase_relative_clip": 2, "phrase_mask": "hadamard"},
            "--phrase-relative-clip needs --phrase-mask subset",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(dictionary, options, message):
    with pytest.raises(UserError) as error:
        build_model(NAME, dictionary, **options)
    assert message in str(error.value)
