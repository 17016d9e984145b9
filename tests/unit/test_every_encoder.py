"""What every registered encoder must do, with each row that it is registered with."""

from __future__ import annotations

import copy
import sys
from argparse import Namespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator

from fairseq_phrase.attention.encoder_maps import attention_picture
from fairseq_phrase.batch.source_sentence import SourceSentence
from fairseq_phrase.models.encoder_method import ENCODERS, translation_encoders
from tests.support.parsed_batches import build_model, encode, make_batch, random_sentence
from tests.support.repository import REPOSITORY

sys.path.append(str(REPOSITORY / "examples" / "encoder_plugin"))
import label_transformer  # noqa: F401 - the example goes through the same tests

ROWS = [(name, row) for name, method in translation_encoders().items() for row in method.rows]
DRAWN = [one for one in ROWS if hasattr(ENCODERS[one[0]].encoder, "attention_maps")]
every_drawn_row = pytest.mark.parametrize(("name", "row"), DRAWN, ids=[row for _, row in DRAWN])
every_row = pytest.mark.parametrize(("name", "row"), ROWS, ids=[row for _, row in ROWS])
LENGTHS = [7, 1, 4, 5]


@pytest.fixture
def model(request, dictionary):
    """The model of the row that the test asks for."""
    parameters = request.node.callspec.params
    return build_model(parameters["name"], dictionary, **rows_options(parameters))


def rows_options(parameters):
    method = ENCODERS[parameters["name"]]
    return dict(method.rows[parameters.get("row", next(iter(method.rows)))])


def alone_in_batch(dictionary, index):
    """A sentence of ``make_batch(dictionary, LENGTHS)`` as a batch of one, without padding."""
    sentence = random_sentence(dictionary, LENGTHS[index], seed=7 + index)
    return {name: values.unsqueeze(0) for name, values in sentence.items()}


@every_row
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_a_sentence_in_a_padded_batch_is_encoded_as_if_alone(model, dictionary, name, row, left):
    inputs = make_batch(dictionary, LENGTHS, extra=2, left=left)
    encoded = model.encoder(**inputs)
    together, padding = (
        encoded["encoder_out"][0].transpose(0, 1),
        encoded["encoder_padding_mask"][0],
    )
    for index in range(len(LENGTHS)):
        alone = encode(model, alone_in_batch(dictionary, index))[0]
        torch.testing.assert_close(together[index][~padding[index]], alone, rtol=1e-9, atol=1e-9)


@every_row
def test_permuting_the_batch_permutes_the_output(model, dictionary, name, row):
    inputs = make_batch(dictionary, LENGTHS)
    order = torch.tensor([2, 0, 3, 1])
    permuted = {key: value[order] for key, value in inputs.items()}
    expected = encode(model, inputs)[order]
    torch.testing.assert_close(encode(model, permuted), expected, rtol=1e-9, atol=1e-9)


@every_row
def test_a_parse_of_another_encoder_changes_nothing(model, dictionary, name, row):
    needed = {f"src_{field}" for field in ENCODERS[name].parse_fields(model.cfg)}
    inputs = make_batch(dictionary, LENGTHS)
    own = {key: inputs[key] for key in inputs if key in {"src_tokens", *needed}}
    assert torch.equal(encode(model, inputs), encode(model, own))


@every_row
def test_a_missing_parse_is_named(model, dictionary, name, row):
    inputs = make_batch(dictionary, LENGTHS)
    for field in ENCODERS[name].parse_fields(model.cfg):
        fewer = {key: value for key, value in inputs.items() if key != f"src_{field}"}
        with pytest.raises(ValueError, match=f"the batch carries no {field}: use --task"):
            model.encoder(**fewer)


@every_row
def test_the_parse_has_a_gradient_to_give(model, dictionary, name, row):
    """Every parameter of the encoder that training may change gets a finite gradient."""
    encode(model.train(), make_batch(dictionary, LENGTHS)).square().sum().backward()
    for parameter_name, parameter in model.encoder.named_parameters():
        if parameter.grad is not None:
            assert parameter.grad.isfinite().all(), parameter_name
    trained = [p for p in model.encoder.parameters() if p.grad is not None and p.grad.any()]
    assert len(trained) >= 0.8 * len(list(model.encoder.parameters()))


@every_row
def test_reordered_beams_are_the_encoding_of_the_reordered_batch(model, dictionary, name, row):
    inputs = make_batch(dictionary, LENGTHS)
    order = torch.tensor([3, 3, 0, 1, 1, 1])
    before = model.encoder(**inputs)
    kept = copy.copy(before)
    reordered = model.encoder.reorder_encoder_out(before, order)
    expected = model.encoder(**{key: value[order] for key, value in inputs.items()})
    previous = torch.full((len(order), 1), dictionary.eos())
    outputs = [model.decoder(previous, encoder_out=each)[0] for each in (reordered, expected)]
    torch.testing.assert_close(*outputs, rtol=1e-9, atol=1e-9)
    assert before.keys() == kept.keys()
    assert torch.equal(before["encoder_out"][0], kept["encoder_out"][0])


@every_row
def test_beam_search_over_a_batch_is_that_of_single_sentences(model, dictionary, name, row):
    generator = SequenceGenerator([model], dictionary, beam_size=3, max_len_b=9)

    def generate(inputs):
        lengths = inputs["src_tokens"].ne(dictionary.pad()).sum(1)
        found = generator.generate([model], {"net_input": {**inputs, "src_lengths": lengths}})
        return [hypotheses[0]["tokens"].tolist() for hypotheses in found]

    inputs = make_batch(dictionary, LENGTHS)
    alone = [generate(alone_in_batch(dictionary, index))[0] for index in range(len(LENGTHS))]
    assert generate(inputs) == alone


def test_an_ensemble_of_all_encoders_averages_their_probabilities(dictionary):
    models = [
        build_model(name, dictionary, **next(iter(method.rows.values())))
        for name, method in translation_encoders().items()
    ]
    inputs = make_batch(dictionary, LENGTHS)
    inputs["src_lengths"] = inputs["src_tokens"].ne(dictionary.pad()).sum(1)
    ensemble = EnsembleModel(models)
    encoded = ensemble.forward_encoder(inputs)
    previous = torch.full((len(LENGTHS), 1), dictionary.eos())
    found, _ = ensemble.forward_decoder(previous, encoded, [{} for _ in models])
    single = [
        model.decoder(previous, encoder_out=own)[0][:, -1].softmax(-1)
        for model, own in zip(models, encoded, strict=True)
    ]
    # fairseq takes the logarithms of probabilities in single precision.
    expected = torch.stack(single).mean(0)
    torch.testing.assert_close(found.double().exp(), expected, rtol=1e-4, atol=1e-7)


@every_row
def test_checkpointed_activations_have_the_same_gradients(dictionary, name, row):
    inputs = make_batch(dictionary, LENGTHS)
    found = []
    for checkpointed in (False, True):
        options = {**ENCODERS[name].rows[row], "checkpoint_activations": checkpointed}
        model = build_model(name, dictionary, **options).train()
        encode(model, inputs).square().sum().backward()
        found.append({n: p.grad for n, p in model.encoder.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    torch.testing.assert_close(found[0], found[1])


@every_row
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_keeps_to_the_result(model, dictionary, name, row, dtype):
    inputs = make_batch(dictionary, LENGTHS)
    encoded = model.encoder(**inputs)
    exact, padding = encoded["encoder_out"][0], encoded["encoder_padding_mask"][0].T
    model = model.to(dtype)
    half = model.encoder(**inputs)["encoder_out"][0]
    assert half.dtype == dtype
    error = (half.double() - exact)[~padding].abs().mean() / exact[~padding].abs().mean()
    assert error < 0.05


@every_drawn_row
@pytest.mark.parametrize("pre_norm", [False, True], ids=["post-norm", "pre-norm"])
def test_attention_maps_are_those_of_the_encoder(dictionary, name, row, pre_norm):
    options = {**ENCODERS[name].rows[row], "encoder_normalize_before": pre_norm}
    model = build_model(name, dictionary, **options)
    inputs = make_batch(dictionary, LENGTHS)
    structure, maps = model.encoder.attention_maps(**inputs)
    members = model.encoder.node_members(inputs["src_tokens"], structure)
    assert len(maps) == 2
    for layer in maps:
        for block, weights in layer.items():
            nodes = len(members[0])
            assert weights.shape == (len(LENGTHS), 2, nodes, nodes)
            for index, sentence in enumerate(members):
                real = torch.tensor([bool(tokens) for tokens in sentence])
                rows = weights[index][:, real][:, :, real]
                if options.get("neutral_start"):  # what tokens see of other nodes is added
                    tokens = int(real[: inputs["src_tokens"].size(1)].sum())
                    rows = rows[:, :tokens, :tokens] if block == "all nodes" else rows
                torch.testing.assert_close(rows.sum(-1), torch.ones_like(rows.sum(-1)))
    for tokens, sentence in zip(inputs["src_tokens"], members, strict=True):
        unpadded = tokens.ne(dictionary.pad()).nonzero().flatten().tolist()
        assert sentence[: len(tokens)] == [
            (i,) if i in unpadded else () for i in range(len(tokens))
        ]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(
            (name, next(iter(method.rows.values())))
            for name, method in translation_encoders().items()
        ),
        ("phrase_transformer", {"phrase_source": "constituency"}),
    ],
    ids=str,
)
def test_compiled_it_computes_the_same(dictionary, name, options):
    model = build_model(name, dictionary, **options)
    inputs = make_batch(dictionary, LENGTHS)
    torch._dynamo.reset()
    compiled = torch.compile(model.encoder, backend="eager")(**inputs)["encoder_out"][0]
    torch.testing.assert_close(compiled, model.encoder(**inputs)["encoder_out"][0])


def test_an_encoder_without_options_shows_the_attention_of_fairseqs_layers(dictionary):
    model = build_model("structural_transformer", dictionary)
    inputs = make_batch(dictionary, LENGTHS)
    seen = []
    for layer in model.encoder.layers:
        layer.self_attn.register_forward_hook(lambda module, args, output: seen.append(output[1]))
    _, maps = model.encoder.attention_maps(**inputs)
    assert [layer["all nodes"].shape for layer in maps] == [(4, 2, 8, 8)] * 2
    # fairseq's own forward asks for no weights; attention_maps' calls come after it.
    torch.testing.assert_close(maps[1]["all nodes"], seen[-1].transpose(0, 1))


@every_row
def test_the_states_of_every_layer_can_be_asked_for(model, dictionary, name, row):
    inputs = make_batch(dictionary, LENGTHS)
    encoded = model.encoder(**inputs, return_all_hiddens=True)
    assert len(encoded["encoder_states"]) == 3
    assert {states.shape for states in encoded["encoder_states"]} == {
        encoded["encoder_out"][0].shape
    }
    assert torch.equal(encoded["encoder_states"][-1], encoded["encoder_out"][0])


@every_drawn_row
def test_its_attention_can_be_drawn(model, dictionary, name, row):
    labels = Dictionary()
    for number in range(30):
        labels.add_symbol(f"label{number}")
    task = Namespace(source_dictionary=dictionary, label_dictionary=lambda field: labels)
    inputs = make_batch(dictionary, [5], extra=1)
    picture = attention_picture(model, SourceSentence.from_batch(inputs, task))
    assert picture.num_tokens == int(inputs["src_tokens"].ne(dictionary.pad()).sum())
    for panel in picture.panels:
        assert panel.values.shape == (len(picture.labels),) * 2
        if panel.is_attention:
            weights = torch.from_numpy(panel.values)
            # Tokens of neutral starts see further nodes by a softmax and a gate beside this one.
            if "neutral" in row and "within" not in panel.title:
                weights[: picture.num_tokens, picture.num_tokens :] = 0
            torch.testing.assert_close(weights.sum(1), torch.ones(len(weights)))


def test_a_hook_after_the_last_layer_changes_what_the_decoder_gets(dictionary):
    for name in ("phrase_transformer", "tree_transformer"):
        model = build_model(name, dictionary, encoder_normalize_before=True)
        inputs = make_batch(dictionary, LENGTHS)
        before, norm = encode(model, inputs), model.encoder.layer_norm
        seen = []
        model.encoder.after_layers = lambda states, structure, s=seen: (
            s.append(states) or states * 3
        )
        encode(model, inputs)
        shown = seen[0].transpose(0, 1) if model.encoder.layer_class.time_first else seen[0]
        torch.testing.assert_close(norm(shown), before)
        model.encoder.layer_norm = None
        torch.testing.assert_close(encode(model, inputs), 3 * shown)
