"""Structural positions in the PhraseTransformer: where phrases stand, and the encoder in loops."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from hypothesis import given
from torch import Tensor

from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.methods.common.tree_positions import TreePositions, sinusoids
from fairseq_phrase.methods.encoder_method import ENCODERS
from fairseq_phrase.methods.phrases.phrase_attention import PhraseAttention
from fairseq_phrase.methods.phrases.phrase_nodes import PositionedPhrases
from fairseq_phrase.methods.phrases.phrase_transformer import NodeAttention
from fairseq_phrase.methods.positions.relative_positions import sequential_positions
from fairseq_phrase.syntax.dependency import DependencyTree
from tests.support.padded_sentences import all_kinds, batches, pad, pad_heads
from tests.support.structural_models import HEADS, SUBWORDS, batch, encode
from tests.support.tolerance import assert_same
from tests.twins.phrase_encoder import twin_attention as twin_phrase_attention
from tests.twins.phrase_encoder import twin_layer_norm, twin_members
from tests.twins.structural_encoder import twin_attention, twin_embedding, twin_positions

ALL = {"sequential_relative": True, "structural_absolute": True, "structural_relative": True}
KINDS = {
    "dependency chains, everything": {
        **ALL, "phrase_source": "dependency", "phrase_max_length": 3, "structural_relation": "path",
    },
    "token bigrams, depths alone": {"structural_absolute": True, "structural_fusion": "add"},
    "token trigrams, tree alone": {
        **ALL, "no_sequential_absolute": True, "sequential_relative": False, "phrase_max_length": 3,
        "phrase_init": "mean",
    },
    "word bigrams, keys only, pre-norm": {
        **ALL, "phrase_unit": "word", "relative_keys_only": True, "encoder_normalize_before": True,
        "structural_relation": "distance", "relative_clip": 2,
    },
    "no phrases": {**ALL, "phrase_source": "none", "phrase_mask": "all"},
    "order alone": {"sequential_relative": True},
}  # fmt: skip
each_kind = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS.keys())


def place(members, depths: list[int]) -> int:
    """The token at whose place a node stands: the leftmost of its highest."""
    return min(members, key=lambda token: (depths[token], token))


@given(batches())
def test_a_phrase_stands_where_its_highest_word_stands(drawn):
    heads, subwords, left = drawn
    words, padding = pad(subwords, left)
    tree = TreePositions(words, pad_heads(heads), padding)
    tokens = {"structural": tree.relative(), "sequential": sequential_positions(words.size(1))}
    clips = {"structural": 4, "sequential": 3}
    for phrases in all_kinds(words, pad_heads(heads), padding, 3).values():
        nodes = PositionedPhrases(phrases, tree.depths, tokens, clips)
        assert nodes.members() == phrases.members()
        for row, members in enumerate(phrases.members()):
            depths = tree.depths[row].tolist()
            real = [node for node, of in enumerate(members) if of]
            places = [place(members[node], depths) for node in real]
            assert nodes.depths[row, real].tolist() == [
                min(depths[token] for token in members[node]) for node in real
            ]
            assert nodes.relative is not None
            structural, sequential = (rows[row][real][:, real] for rows in nodes.relative.rows)
            between = tree.relative()[row][places][:, places].clamp(-4, 4)
            assert (structural - 4).tolist() == between.tolist()
            order = torch.tensor(places)
            expected = (order[:, None] - order).clamp(-3, 3)
            assert (sequential - 3 - 9).tolist() == expected.tolist()


def config(**options):
    sizes = {"embed_dim": 8, "ffn_embed_dim": 16, "attention_heads": 2, "layers": 2}
    small = {
        f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sizes.items()
    }
    return MODEL_DATACLASS_REGISTRY["phrase_transformer"](**{**small, "dropout": 0.0, **options})


@pytest.fixture
def build(dictionary):
    def made(**options):
        torch.manual_seed(0)
        task = Namespace(
            source_dictionary=dictionary,
            target_dictionary=dictionary,
            label_dictionary=lambda field: range(10),
            require_parses=lambda _: None,
            require_structure=lambda key, make: None,
        )
        architecture = ARCH_MODEL_REGISTRY["phrase_transformer"]
        return architecture.build_model(config(**options), task).double().eval()

    return made


def twin_encoder(model, cfg, tokens: Tensor, members: list[set[int]], row: int) -> Tensor:
    """Algorithm 1 with eq. 5-7 and Shaw et al.'s attention in phase 1; one sentence."""
    encoder, n = model.encoder, len(tokens)
    depths, relative = twin_positions(cfg, row)
    if not (cfg.structural_absolute or cfg.structural_relative):
        depths = [0] * n  # without a tree a phrase stands where it begins
    states = twin_embedding(encoder, cfg, tokens, depths, row)
    places = [place(of, depths) for of in members]
    for phrase in members[n:]:
        first = torch.zeros(8, dtype=torch.double)
        if cfg.phrase_init == "mean":
            first = torch.stack([states[token] for token in phrase]).mean(0)
        if cfg.structural_absolute:
            depth = min(depths[token] for token in phrase)
            position = sinusoids(depth + 1, 8)[depth].double()
            fusion = encoder.depth_encoding.structural
            if fusion is not None:
                position = torch.tanh(fusion.weight @ position + fusion.bias)
            first = first + position
        states.append(first)
    between = [[relative[i][j] for j in places] for i in places]

    def related(i, j):
        return cfg.phrase_mask == "all" or members[i] <= members[j] or members[j] <= members[i]

    def over_all_nodes(layer, inputs):
        if cfg.sequential_relative or cfg.structural_relative:
            return twin_attention(layer.self_attn, cfg, inputs, between)
        everything = (layer.self_attn, torch.stack(inputs), lambda i, j: True, lambda h: h, "")
        return list(twin_phrase_attention(*everything))

    def within_phrases(layer, inputs):
        stacked = torch.stack(inputs)
        return list(
            twin_phrase_attention(
                layer.phrase_attn, stacked, related, torch.sigmoid, cfg.phrase_mask
            )
        )

    def both_phases(layer, inputs):
        return within_phrases(layer, over_all_nodes(layer, inputs))

    def feed_forward(layer, inputs):
        return [layer.fc2(torch.relu(layer.fc1(state))) for state in inputs]

    for layer in encoder.layers:
        for norm, block in (
            (layer.self_attn_layer_norm, both_phases),
            (layer.final_layer_norm, feed_forward),
        ):
            pre = cfg.encoder_normalize_before
            inputs = [twin_layer_norm(norm, state) for state in states] if pre else states
            pairs = zip(states, block(layer, inputs), strict=True)
            states = [state + update for state, update in pairs]
            if not pre:
                states = [twin_layer_norm(norm, state) for state in states]
    if encoder.layer_norm is not None:
        states = [twin_layer_norm(encoder.layer_norm, state) for state in states]
    return torch.stack(states[:n])


@each_kind
def test_the_encoder_is_the_equations_in_value_and_gradient(build, dictionary, options):
    model, cfg, inputs = build(**options), config(**options), batch(dictionary)
    actual = encode(model, inputs)
    expected, direction = torch.zeros_like(actual), torch.randn_like(actual)
    for row, counts in enumerate(SUBWORDS):
        length = sum(counts) + 1
        tokens, words = (inputs[name][row, :length] for name in ("src_tokens", "src_words"))
        members = twin_members(cfg, tokens, words, torch.tensor(HEADS[row]))
        expected[row, :length] = twin_encoder(model, cfg, tokens, members, row)
        direction[row, length:] = 0
        assert_same(actual[row, :length], expected[row, :length])
    parameters = dict(model.encoder.named_parameters())
    gradients, expected_gradients = (
        torch.autograd.grad((x * direction).sum(), parameters.values(), allow_unused=True)
        for x in (actual, expected)
    )
    for name, gradient, expected_gradient in zip(
        parameters, gradients, expected_gradients, strict=True
    ):
        # A parameter that only phrases use has no part where there are none.
        gradient, expected_gradient = (
            torch.zeros(()) if x is None else x for x in (gradient, expected_gradient)
        )
        torch.testing.assert_close(
            gradient + 0 * expected_gradient,
            expected_gradient + 0 * gradient,
            rtol=1e-8,
            atol=1e-10,
            msg=name,
        )


@each_kind
def test_a_sentence_in_a_batch_is_encoded_as_if_alone_padded_on_either_side(
    build,
    dictionary,
    options,
):
    model = build(**options)
    right, left = (batch(dictionary, extra=2, left=side) for side in (False, True))
    together, shifted = encode(model, right), encode(model, left)
    for row, counts in enumerate(SUBWORDS):
        length = sum(counts) + 1
        alone = encode(model, batch(dictionary, rows=[row]))[0]
        assert_same(together[row, :length], alone)
        assert_same(shifted[row, -length:], alone)


def test_constituents_stand_where_their_highest_words_stand(build, dictionary):
    model = build(phrase_source="constituency", phrase_max_length=5, **ALL)
    inputs = batch(dictionary)
    # Two constituents in the first sentence, one in the third: words 0-1, 2-4; 1-3.
    spans = [[[0, 2, 4], [2, 5, 4]], [[-1] * 3] * 2, [[1, 4, 4], [-1] * 3]]
    inputs["src_spans"] = torch.tensor(spans)
    parse = {name: value for name, value in inputs.items() if name != "src_tokens"}
    phrases = model.encoder.structure(inputs["src_tokens"], ParseBatch.from_net_input(parse))
    trees = [DependencyTree(heads).depths for heads in HEADS]
    expected = [[min(trees[0][:2]), min(trees[0][2:5])], [0, 0], [min(trees[2][1:4]), 0]]
    assert phrases.depths[:, inputs["src_tokens"].size(1) :].tolist() == expected
    encode(model, inputs).sum().backward()
    needed = ENCODERS["phrase_transformer"].parse_fields(
        _nested(phrase_source="constituency", **ALL)
    )
    assert sorted(needed) == ["heads", "spans", "words"]


def test_activations_can_be_checkpointed(build, dictionary):
    gradients = []
    for checkpointed in (False, True):
        model = build(checkpoint_activations=checkpointed, **KINDS["dependency chains, everything"])
        encode(model.train(), batch(dictionary)).square().sum().backward()
        gradients.append([p.grad for p in model.encoder.parameters() if p.grad is not None])
    assert len(gradients[0]) > 20
    torch.testing.assert_close(gradients[0], gradients[1])


def test_attention_maps_show_both_phases(build, dictionary):
    model = build(**KINDS["dependency chains, everything"])
    phrases, maps = model.encoder.attention_maps(**batch(dictionary))
    nodes = (3, 2, phrases.num_nodes, phrases.num_nodes)
    for layer in maps:
        assert layer["all nodes"].shape == layer["within phrases"].shape == nodes
        sums = layer["all nodes"].sum(-1)[:, 0][~phrases.padding_mask]
        assert_same(sums, torch.ones_like(sums))


def test_without_options_of_positions_the_encoder_is_the_phrase_transformers_own(build):
    for options, kind in (({}, PhraseAttention), ({"structural_relative": True}, NodeAttention)):
        model = build(**options)
        assert all(type(layer.self_attn) is kind for layer in model.encoder.layers)
        assert model.encoder.depth_encoding is None
    assert build(structural_absolute=True).encoder.depth_encoding is not None
    plain, positioned = build().state_dict(), build(structural_relative=True).state_dict()
    assert set(plain) < set(positioned)


def test_positions_in_the_tree_ask_for_parses_whatever_the_phrases_are():
    for options in ({"structural_absolute": True}, {"structural_relative": True}):
        needed = ENCODERS["phrase_transformer"].parse_fields(_nested(**options))
        assert needed == ["words", "heads"]
    assert ENCODERS["phrase_transformer"].parse_fields(_nested(sequential_relative=True)) == []


def _nested(**options):
    from fairseq_phrase.methods.config import nested_config

    return nested_config(config(**options))
