"""Source factors: embeddings of words' labels, in every encoder and at inference."""

from __future__ import annotations

import copy
from argparse import Namespace

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.encoder_maps import attention_maps
from fairseq_phrase.methods.encoder_method import translation_encoders
from fairseq_phrase.models.source_factors import HookedEnsemble, SourceFactors, reading
from fairseq_phrase.testing import build_model, make_batch
from tests.support.data_tasks import make_task
from tests.support.recurrent_models import build_recurrent

LENGTHS = [7, 1, 4, 5]
#: Of the fields that random batches have, 8 labels each.
COUNT = 8
ENCODERS = ["transformer", *translation_encoders()]


def with_factors(model, names="tags,deprels,subwords"):
    torch.manual_seed(3)
    SourceFactors.of(names).add_to(model, lambda field: COUNT)
    for table in model.encoder.embed_tokens.factors.values():
        torch.nn.init.normal_(table.weight)
    return model.double()


def twin_labels(inputs):
    """The label of each factor at each token, by loops; 1 at a token of no word."""
    labels = {
        name: torch.ones_like(inputs["src_words"]) for name in ("tags", "deprels", "subwords")
    }
    for row, words in enumerate(inputs["src_words"].tolist()):
        for token, word in enumerate(words):
            if word < 0:
                continue
            for name in ("tags", "deprels"):
                labels[name][row, token] = inputs[f"src_{name}"][row, word]
            first = token == 0 or words[token - 1] != word
            last = token == len(words) - 1 or words[token + 1] != word
            letter = {(1, 0): "B", (0, 0): "I", (0, 1): "E", (1, 1): "O"}[first, last]
            labels["subwords"][row, token] = 2 + "IBEO".index(letter)
    return labels


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_embeddings_are_those_of_the_definition(dictionary, left):
    model = with_factors(build_model("transformer", dictionary))
    table = model.encoder.embed_tokens
    inputs = make_batch(dictionary, LENGTHS, extra=1, left=left)
    labels = twin_labels(inputs)
    parts = [table.weight[inputs["src_tokens"]]]
    parts += [table.factors[name].weight[labels[name]] for name in labels]
    expected = sum(parts)
    with reading(model.encoder, inputs):
        embedded = table(inputs["src_tokens"])
    torch.testing.assert_close(embedded, expected)
    parameters = list(table.parameters())
    assert len(parameters) == 4
    noise = torch.randn_like(embedded)
    for gradient, expected_gradient, name in zip(
        torch.autograd.grad((embedded * noise).sum(), parameters),
        torch.autograd.grad((expected * noise).sum(), parameters),
        ["tokens", *labels],
        strict=True,
    ):
        # Padding gets no gradient.
        gradient[1], expected_gradient[1] = 0, 0
        torch.testing.assert_close(gradient, expected_gradient, msg=name)


def build(name, dictionary, **options):
    return (
        build_recurrent(dictionary, **options)
        if name == "seq2seq"
        else build_model(name, dictionary, **options)
    )


@pytest.mark.parametrize("name", [*(name for name in ENCODERS if name != "huggingface"), "seq2seq"])
def test_every_encoder_has_factors(dictionary, name):
    """It is the encoder whose token embeddings have the factors' added: here by another token each."""
    inputs = make_batch(dictionary, LENGTHS)
    plain = build(name, dictionary)
    factored = with_factors(copy.deepcopy(plain), "tags")
    lengths = inputs["src_tokens"].ne(dictionary.pad()).sum(1)
    plain_inputs = {
        key: inputs[key] for key in inputs if name != "transformer" or key == "src_tokens"
    }
    expected = plain.encoder(**plain_inputs, src_lengths=lengths)["encoder_out"][0]
    states = factored.encoder(**inputs, src_lengths=lengths)["encoder_out"][0]
    assert not torch.allclose(states, expected)
    # Factors of 0 change nothing.
    factored.encoder.embed_tokens.factors["tags"].weight.data.zero_()
    unchanged = factored.encoder(**inputs, src_lengths=lengths)["encoder_out"][0]
    assert torch.equal(unchanged, expected)
    # A factor that is the difference of two tokens' embeddings makes one the other.
    if name == "seq2seq":
        return
    weight = plain.encoder.embed_tokens.weight
    a, b = 10, 11
    swapped = {
        **inputs,
        "src_tokens": torch.where(inputs["src_words"] >= 0, b, inputs["src_tokens"]),
    }
    constant = {
        **inputs,
        "src_tokens": torch.where(inputs["src_words"] >= 0, a, inputs["src_tokens"]),
    }
    table = factored.encoder.embed_tokens.factors["tags"].weight.data
    table[2:] = (weight[b] - weight[a]).detach()
    plain_inputs = {key: swapped[key] for key in plain_inputs}
    torch.testing.assert_close(
        factored.encoder(**constant, src_lengths=lengths)["encoder_out"][0],
        plain.encoder(**plain_inputs, src_lengths=lengths)["encoder_out"][0],
    )


@pytest.mark.parametrize("name", ["transformer", "phrase_transformer"])
def test_training_and_search_read_the_batchs_labels(dictionary, name):
    model = with_factors(build_model(name, dictionary))
    inputs = make_batch(dictionary, LENGTHS)
    lengths = inputs["src_tokens"].ne(dictionary.pad()).sum(1)
    previous = torch.full((len(LENGTHS), 1), dictionary.eos())
    net_input = {**inputs, "src_lengths": lengths}
    trained, _ = model(**net_input, prev_output_tokens=previous)
    encoded = model.encoder(**net_input)
    torch.testing.assert_close(model.decoder(previous, encoder_out=encoded)[0], trained)
    ensemble = HookedEnsemble([model])
    generator = SequenceGenerator(ensemble, dictionary, beam_size=2, max_len_b=5)
    first = generator.generate([model], {"net_input": net_input})[0][0]
    scores = trained[0, -1].log_softmax(-1)
    torch.testing.assert_close(
        first["positional_scores"][0].double(), scores[first["tokens"][0]], rtol=1e-5, atol=1e-5
    )
    # A batch does not get the labels of the one before.
    with pytest.raises(ValueError, match="the batch carries no tags"):
        model.encoder(**{key: value for key, value in net_input.items() if key != "src_tags"})


def test_attention_is_drawn_with_factors(dictionary):
    model = build_model("phrase_transformer", dictionary)
    inputs = make_batch(dictionary, [5])
    _, before = attention_maps(model, inputs)
    _, after = attention_maps(with_factors(model), inputs)
    assert not torch.allclose(before[0]["all nodes"], after[0]["all nodes"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": "heads"}, "'heads' is not a field of labels of words: expected some of deprels, tags"),
        ({"names": "tags,tags"}, "name each factor once"),
    ],
)  # fmt: skip
def test_options_that_contradict_one_another_are_refused(dictionary, options, message):
    with pytest.raises(UserError, match=message):
        with_factors(build_model("transformer", dictionary), **options)


def test_shared_embeddings_stay_shared(dictionary):
    model = build_model("phrase_transformer", dictionary, share_all_embeddings=True)
    with_factors(model)
    assert model.encoder.embed_tokens.weight is model.decoder.embed_tokens.weight


def test_a_model_without_embeddings_is_refused():
    with pytest.raises(UserError, match="Namespace has no embeddings of tokens"):
        SourceFactors.of("tags").add_to(Namespace(encoder=Namespace()), len)


def test_a_factor_whose_field_the_data_lack_is_named(data_directory, dictionary):
    task = make_task(data_directory, source_factors="subwords,factor1")
    with pytest.raises(UserError, match=r"has no factor1.* again with --parser factored"):
        task.extend(build_model("transformer", dictionary), None)
