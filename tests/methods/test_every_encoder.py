"""What every registered encoder must do, with each variant that it is registered with."""

import sys
from argparse import Namespace

import pytest
import torch
from fairseq.sequence_generator import EnsembleModel

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.encoder_method import translation_encoders
from fairseq_phrase.testing import (
    CHECKS,
    LENGTHS,
    SIZES,
    a_sentence_in_a_padded_batch_is_encoded_as_if_alone,
    any_label_dictionary,
    attention_maps_are_those_of_the_encoder,
    build_model,
    build_variant,
    encode,
    make_batch,
)
from tests.support.repository import REPOSITORY
from tests.support.selection import first_of_each

sys.path.append(str(REPOSITORY / "examples" / "encoder_plugin"))
import label_transformer  # noqa: F401 - the example goes through the same tests

VARIANTS = [
    (name, variant)
    for name, method in translation_encoders().items()
    for variant in method.variants
]


@pytest.mark.parametrize(
    ("name", "variant"), first_of_each(VARIANTS), ids=[variant for _, variant in VARIANTS]
)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_encoder(check, name, variant):
    check(name, variant)


#: Values of options that name a second layer.
SECOND = {"2-2", "1,all"}


@pytest.mark.fast(4)
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("name", translation_encoders())
def test_every_encoder_of_other_sizes(name, layers, monkeypatch):
    """One layer and one head, and three: others have two."""
    for size, value in {"layers": layers, "attention_heads": layers, "embed_dim": 24}.items():
        monkeypatch.setitem(SIZES, size, value)
    for variant, options in translation_encoders()[name].variants.items():
        if layers == 3 or SECOND.isdisjoint(map(str, options.values())):
            a_sentence_in_a_padded_batch_is_encoded_as_if_alone(name, variant)
            attention_maps_are_those_of_the_encoder(name, variant)


def test_an_ensemble_of_all_encoders_averages_their_probabilities(dictionary):
    models = [
        build_model(name, dictionary, **next(iter(method.variants.values())))
        for name, method in translation_encoders().items()
    ]
    inputs = make_batch(dictionary, LENGTHS)
    inputs["src_lengths"] = inputs["src_tokens"].ne(dictionary.pad()).sum(1)
    ensemble = EnsembleModel(models)
    encoded = ensemble.forward_encoder(inputs)
    previous = torch.full((len(LENGTHS), 1), dictionary.eos())
    log_probs, _ = ensemble.forward_decoder(previous, encoded, [{} for _ in models])
    single = [
        model.decoder(previous, encoder_out=encoder_out)[0][:, -1].softmax(-1)
        for model, encoder_out in zip(models, encoded, strict=True)
    ]
    # fairseq takes the logarithms of probabilities in single precision.
    expected = torch.stack(single).mean(0)
    torch.testing.assert_close(log_probs.double().exp(), expected, rtol=1e-4, atol=1e-7)


def test_an_encoder_without_options_shows_the_attention_of_fairseqs_layers(dictionary):
    model = build_model("structural_transformer", dictionary)
    inputs = make_batch(dictionary, LENGTHS)
    weights = []
    for layer in model.encoder.layers:
        layer.self_attn.register_forward_hook(
            lambda module, args, output: weights.append(output[1])
        )
    _, maps = model.encoder.attention_maps(**inputs)
    assert [layer["all nodes"].shape for layer in maps] == [(len(LENGTHS), 2, 8, 8)] * 2
    # fairseq's own forward asks for no weights; attention_maps' calls come after it.
    torch.testing.assert_close(maps[1]["all nodes"], weights[-1].transpose(0, 1))


@pytest.mark.parametrize("name", translation_encoders())
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_a_width_that_the_heads_do_not_divide_is_named(dictionary, side, name):
    sizes = {f"{side}_attention_heads": 3, f"{side}_embed_dim": 8}
    with pytest.raises(UserError, match=f"--{side}-embed-dim 8 is not divisible into .*3"):
        build_model(name, dictionary, **sizes)


def test_a_hook_after_the_last_layer_changes_what_the_decoder_gets(dictionary):
    for name in ("phrase_transformer", "tree_transformer"):
        model = build_model(name, dictionary, encoder_normalize_before=True)
        inputs = make_batch(dictionary, LENGTHS)
        before, norm = encode(model, inputs), model.encoder.layer_norm
        states = []
        model.encoder.after_layers = lambda states, structure, s=states: (
            s.append(states) or states * 3
        )
        encode(model, inputs)
        last_states = (
            states[0].transpose(0, 1) if model.encoder.layer_class.time_first else states[0]
        )
        torch.testing.assert_close(norm(last_states), before)
        model.encoder.layer_norm = None
        torch.testing.assert_close(encode(model, inputs), 3 * last_states)


@pytest.mark.parametrize("kept", ["0,1", "1,2", "0,2"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("parent_scaled_transformer", {}),
        ("parent_scaled_transformer", {"neutral_start": True}),
        ("phrase_transformer", {"phrase_layers": "1"}),
        ("phrase_transformer", {"phrase_layers": "2-2"}),
        (
            "phrase_transformer",
            {"phrase_layers": "3-3", "phrase_residual": "each", "neutral_start": True},
        ),
        ("relation_transformer", {}),
    ],
)
def test_a_pruned_encoder_has_the_layers_that_are_kept(dictionary, name, options, kept):
    options = {**options, "encoder_layers": 3}
    full = build_model(name, dictionary, **options)
    keep = {"encoder_layers_to_keep": kept, "decoder_layers_to_keep": "0,1"}
    pruned = build_model(name, dictionary, **options, **keep)
    pruned.load_state_dict(full.state_dict(), model_cfg=Namespace(arch=name, **keep))
    layers = [full.encoder.layers[int(number)] for number in kept.split(",")]
    del full.encoder.layers[:]
    full.encoder.layers.extend(layers)
    inputs = make_batch(dictionary, LENGTHS)
    assert torch.equal(encode(pruned, inputs), encode(full, inputs))
    assert len(pruned.encoder.attention_maps(**inputs)[1]) == 2


def test_layers_of_transformers_are_not_pruned(dictionary):
    """The layers that are kept are found by fairseq's names of them."""
    with pytest.raises(
        UserError, match=r"--encoder-layers-to-keep 1 prunes .* --encoder huggingface"
    ):
        build_model("huggingface", dictionary, encoder_layers=2, encoder_layers_to_keep="1")


def test_pruning_away_the_phrases_that_the_decoder_reads_is_refused(dictionary):
    options = {"phrase_layers": "2-3", "phrase_to_decoder": True, "encoder_layers": 3}
    build_model("phrase_transformer", dictionary, **options, encoder_layers_to_keep="0,2")
    with pytest.raises(UserError, match="--phrase-to-decoder needs phrases in the last layer"):
        build_model("phrase_transformer", dictionary, **options, encoder_layers_to_keep="0")


@pytest.mark.parametrize(("name", "variant"), VARIANTS, ids=[variant for _, variant in VARIANTS])
@pytest.mark.parametrize("beyond", [0, 1, 500])
def test_labels_that_no_dictionary_has_are_named(name, variant, beyond):
    """One label beyond the last reads the parameter of another label, and 500 beyond read none."""
    model, dictionary = build_variant(name, variant)
    for field in model.encoder.cfg.labels.fields:
        count = len(any_label_dictionary(field))
        for label in (count + beyond, -2 - beyond):
            inputs = make_batch(dictionary, LENGTHS)
            labels = inputs[f"src_{field}"]
            labels = labels[..., -1] if labels.dim() > 2 else labels
            labels[1, 0] = label
            message = (
                f"src_{field}: sentence 1 of the batch has the label {label}, .* {count} labels"
            )
            with pytest.raises(ValueError, match=message):
                encode(model, inputs)
        labels[1, 0] = count - 1
        encode(model, inputs)


def test_some_encoders_read_labels():
    read = [build_variant(*each)[0].encoder.cfg.labels.fields for each in VARIANTS]
    assert {"spans", "deprels", "enhanced"} <= set().union(*read)


def test_a_word_of_a_graph_that_the_sentence_lacks_is_named():
    model, dictionary = build_variant("relation_transformer", "relation bias, graph, labels")
    inputs = make_batch(dictionary, LENGTHS)
    inputs["src_words"][0, 0] = 500
    with pytest.raises(ValueError, match="word index is out of range"):
        encode(model, inputs)
