"""The model: its layers against the equations in loops, its options, and its place in fairseq."""

from __future__ import annotations

import math
from argparse import Namespace
from dataclasses import fields

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.models.transformer import TransformerConfig
from fairseq.sequence_generator import SequenceGenerator

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.methods.config import nested_config
from fairseq_phrase.methods.encoder_method import ENCODERS
from fairseq_phrase.methods.phrases.phrase_sources import phrase_source, registered_sources
from fairseq_phrase.models.syntax_transformer import SyntaxTransformerModel
from fairseq_phrase.testing import (
    build_model,
    make_batch,
    the_collaters_structure_is_that_of_the_encoder,
)
from tests.support.phrase_models import PhraseTransformerConfig, batch, build, encode
from tests.twins.phrase_encoder import twin_encoder, twin_members

KINDS = {
    "token bigrams": {"phrase_max_length": 2},
    "token trigrams, hadamard": {"phrase_max_length": 3, "phrase_mask": "hadamard"},
    "word bigrams, tanh": {"phrase_unit": "word", "phrase_activation": "tanh"},
    "dependency chains": {"phrase_source": "dependency", "phrase_max_length": 3},
    "mean start, linear": {"phrase_init": "mean", "phrase_activation": "identity"},
    "no phrases, A = 1": {"phrase_source": "none", "phrase_mask": "all"},
    "pre-norm": {"encoder_normalize_before": True},
    "two residuals": {"phrase_residual": "each"},
    "two residuals, pre-norm": {"phrase_residual": "each", "encoder_normalize_before": True},
    "gated": {"attention_gate": True},
    "gated, two residuals, linear": {
        "attention_gate": True,
        "phrase_residual": "each",
        "phrase_activation": "identity",
    },
}
each_kind = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS.keys())


@each_kind
def test_the_encoder_is_the_equations_in_value_and_gradient(dictionary, options):
    model = build(dictionary, **options)
    cfg = PhraseTransformerConfig(**options)
    inputs = batch(dictionary, [6])
    # (the phrases' order among themselves does not matter: only tokens' states are compared)
    members = twin_members(
        cfg, inputs["src_tokens"][0], inputs["src_words"][0], inputs["src_heads"][0]
    )
    parameters = dict(model.encoder.named_parameters())
    direction = torch.randn(1, 7, 8, dtype=torch.double)

    def gradients(states):
        return torch.autograd.grad(
            (states * direction).sum(), parameters.values(), allow_unused=True
        )

    actual = encode(model, inputs)
    expected = twin_encoder(model, cfg, inputs["src_tokens"][0], members).unsqueeze(0)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    for name, gradient, expected_gradient in zip(
        parameters, gradients(actual), gradients(expected), strict=True
    ):
        assert gradient is not None, f"{name} is in no equation"
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-7, atol=1e-9, msg=name)


@each_kind
def test_the_collater_finds_the_phrases_that_the_encoder_finds(options, monkeypatch):
    monkeypatch.setitem(ENCODERS["phrase_transformer"].variants, "kind", options)
    the_collaters_structure_is_that_of_the_encoder("phrase_transformer", "kind")


@each_kind
def test_a_sentence_in_a_padded_batch_is_encoded_as_if_alone(dictionary, options):
    model = build(dictionary, **options)
    lengths = [7, 1, 4, 5]
    inputs = batch(dictionary, lengths, extra=2)
    together = encode(model, inputs)
    for row, length in enumerate(lengths):
        alone = {
            "src_tokens": inputs["src_tokens"][row : row + 1, : length + 1],
            "src_words": inputs["src_words"][row : row + 1, : length + 1],
            "src_heads": inputs["src_heads"][row : row + 1, : max(1, length - 2)],
        }
        torch.testing.assert_close(encode(model, alone)[0], together[row, : length + 1])


def test_padding_on_the_left_changes_nothing(dictionary):
    for options in KINDS.values():
        model = build(dictionary, **options)
        right, left = (batch(dictionary, [5, 2], left=side) for side in (False, True))
        torch.testing.assert_close(encode(model, left)[1, -3:], encode(model, right)[1, :3])


@each_kind
def test_training_mode_with_checkpointed_activations_has_the_same_gradients(dictionary, options):
    inputs = batch(dictionary, [5, 3])
    gradients_of_models = []
    for checkpointed in (False, True):
        model = build(dictionary, checkpoint_activations=checkpointed, **options).train()
        encode(model, inputs).square().sum().backward()
        gradients_of_models.append(
            [p.grad for p in model.encoder.parameters() if p.grad is not None]
        )
    assert len(gradients_of_models[0]) == len(gradients_of_models[1]) > 20
    torch.testing.assert_close(gradients_of_models[0], gradients_of_models[1])


def test_attention_maps_are_distributions_and_keep_within_phrases(dictionary):
    model = build(dictionary, phrase_max_length=3)
    inputs = batch(dictionary, [5, 3])
    phrases, maps = model.encoder.attention_maps(**inputs)
    assert len(maps) == 2
    real = ~phrases.padding_mask
    for layer in maps:
        for weights in layer.values():
            sums = weights.sum(-1)[:, 0][real]
            torch.testing.assert_close(sums, torch.ones_like(sums))
        outside = layer["within phrases"].masked_select(~phrases.adjacency.unsqueeze(1))
        assert (outside == 0).all()
        to_padding = layer["all nodes"].masked_select(phrases.padding_mask[:, None, None])
        assert (to_padding == 0).all()


def test_beam_search_over_a_batch_is_that_of_single_sentences_and_beam_one_is_greedy(dictionary):
    model = build(dictionary, phrase_source="dependency", phrase_max_length=3).float()
    inputs = batch(dictionary, [7, 4, 2, 1])
    generators = {
        beam: SequenceGenerator([model], dictionary, beam_size=beam, max_len_b=12)
        for beam in (1, 4)
    }

    def generate(beam, rows):
        net_input = {name: value[rows] for name, value in inputs.items()}
        net_input["src_lengths"] = net_input["src_tokens"].ne(dictionary.pad()).sum(1)
        generated = generators[beam].generate([model], {"net_input": net_input})
        return [hypotheses[0]["tokens"].tolist() for hypotheses in generated]

    for beam in (1, 4):
        alone = [generate(beam, slice(row, row + 1))[0] for row in range(4)]
        assert generate(beam, slice(0, 4)) == alone
    for row, tokens in enumerate(generate(1, slice(0, 4))):
        net_input = {name: value[row : row + 1] for name, value in inputs.items()}
        encoded = model.encoder(**net_input)
        previous = [dictionary.eos()]
        while len(previous) <= 12:
            logits = model.decoder(torch.tensor([previous]), encoder_out=encoded)[0][0, -1]
            logits[[dictionary.pad(), dictionary.bos()]] = -math.inf
            if len(previous) == 1:
                logits[dictionary.eos()] = -math.inf  # fairseq's minimal length is 1
            previous.append(int(logits.argmax()))
            if previous[-1] == dictionary.eos():
                break
        assert tokens[: len(previous) - 1] == previous[1:]


# Options and registration.


def test_every_preset_is_registered_with_its_own_defaults():
    sizes = {
        "phrase_transformer": (512, 2048, 8, 6),
        "phrase_transformer_tiny": (128, 256, 4, 3),
        "phrase_transformer_iwslt_de_en": (512, 1024, 4, 6),
        "phrase_transformer_wmt_en_de": (512, 2048, 8, 6),
        "phrase_transformer_wmt_en_de_big": (1024, 4096, 16, 6),
        "phrase_transformer_multi30k": (512, 2048, 8, 6),
    }
    for name, expected in sizes.items():
        assert issubclass(ARCH_MODEL_REGISTRY[name], SyntaxTransformerModel)
        assert ARCH_MODEL_REGISTRY[name].method is ENCODERS["phrase_transformer"]
        cfg = MODEL_DATACLASS_REGISTRY[name]()
        for side in ("encoder", "decoder"):
            options = ("embed_dim", "ffn_embed_dim", "attention_heads", "layers")
            assert tuple(getattr(cfg, f"{side}_{option}") for option in options) == expected


def test_flat_options_nest_into_what_fairseq_itself_defaults_to():
    nested = nested_config(PhraseTransformerConfig())
    expected = TransformerConfig.from_namespace(Namespace())
    for part in (None, "encoder", "decoder", "quant_noise"):
        ours, theirs = (getattr(cfg, part) if part else cfg for cfg in (nested, expected))
        for option in fields(theirs):
            if option.name not in ("_name", "encoder", "decoder", "quant_noise"):
                assert getattr(ours, option.name) == getattr(theirs, option.name), option.name


def test_phrases_of_fewer_than_two_units_are_refused(dictionary):
    with pytest.raises(UserError, match="--phrase-max-length 1: a phrase has at least 2"):
        build(dictionary, phrase_max_length=1)


def test_phrases_longer_than_the_longest_source_are_refused(dictionary):
    with pytest.raises(UserError, match="--phrase-max-length 11 is more than any sentence has"):
        build(dictionary, phrase_max_length=11, max_source_positions=10)
    assert build(dictionary, phrase_max_length=10, max_source_positions=10) is not None


def test_a_task_without_parses_is_refused_with_the_one_to_use(dictionary):
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    assert build(dictionary, task=task) is not None  # token n-grams need none
    for options in ({"phrase_source": "dependency"}, {"phrase_unit": "word"}):
        with pytest.raises(UserError, match="use --task syntax_translation"):
            build(dictionary, task=task, **options)


def test_a_batch_without_its_parse_is_refused(dictionary):
    model = build(dictionary, phrase_source="dependency")
    with pytest.raises(ValueError, match="carries no words"):
        model.encoder(batch(dictionary, [4])["src_tokens"])


def test_phrases_longer_than_any_sentence_are_no_phrases_too_many(dictionary):
    inputs = batch(dictionary, [3, 2])
    all_spans = build(dictionary, phrase_max_length=3)
    longer = build(dictionary, phrase_max_length=9)
    torch.testing.assert_close(encode(longer, inputs), encode(all_spans, inputs))


def test_a_source_sees_tokens_dictionary_and_an_argument(dictionary):
    @phrase_source("starting")
    def starting(tokens, parse, options, argument="w1"):
        starts = torch.tensor([symbol.startswith(argument) for symbol in tokens.dictionary.symbols])
        return (starts[tokens.indices] & tokens.is_unit)[:, None]

    try:
        inputs = make_batch(dictionary, [9, 9])
        model = build_model("phrase_transformer", dictionary, phrase_source="starting:w2")
        members_of_sentences = model.encoder.structure(
            inputs["src_tokens"], ParseBatch({})
        ).members()
        for members, indices in zip(
            members_of_sentences, inputs["src_tokens"].tolist(), strict=True
        ):
            expected = [i for i, index in enumerate(indices) if dictionary[index].startswith("w2")]
            assert [tokens for tokens in members if len(tokens) > 1] == [tuple(expected)]
        with pytest.raises(ValueError, match="a phrase source 'starting' is registered already"):
            phrase_source("starting")(make_batch)
    finally:
        del registered_sources["starting"]
    with pytest.raises(UserError, match="the phrase source 'ngram' takes no argument, and '3' is"):
        build_model("phrase_transformer", dictionary, phrase_source="ngram:3")
