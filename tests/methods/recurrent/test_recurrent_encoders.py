"""The recurrent encoders, chosen by ``--encoder``, with each variant that they are registered with."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import MODEL_DATACLASS_REGISTRY

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.methods.encoder_method import ENCODERS
from fairseq_phrase.models.named_encoder import build_named_encoder
from fairseq_phrase.testing import SIZES, any_label_dictionary, make_batch, make_dictionary

NAMES = ("lstm", "tree_lstm", "han")
VARIANTS = [(name, variant) for name in NAMES for variant in ENCODERS[name].variants]
every_variant = pytest.mark.parametrize(
    ("name", "variant"), VARIANTS, ids=[variant for _, variant in VARIANTS]
)
LENGTHS = [7, 1, 4, 5]


@pytest.fixture
def dictionary():
    return make_dictionary()


def build(dictionary: Dictionary, name: str, **options):
    torch.manual_seed(0)
    sizes = {f"encoder_{key}": value for key, value in SIZES.items()}
    cfg = MODEL_DATACLASS_REGISTRY["labeller"](
        **{"encoder": name, **sizes, "dropout": 0.0, **options}
    )
    task = Namespace(
        source_dictionary=dictionary,
        target_dictionary=dictionary,
        label_dictionary=any_label_dictionary,
        require_parses=lambda fields: None,
        require_structure=lambda key, make: None,
    )
    return build_named_encoder(cfg, task, dictionary).double().eval()


@pytest.fixture
def encoder(request, dictionary):
    parameters = request.node.callspec.params
    name, variant = parameters["name"], parameters["variant"]
    return build(dictionary, name, **ENCODERS[name].variants[variant])


def states_of(encoder, inputs):
    """The states and padding of all nodes, batch-first, and the root's state."""
    output = encoder(**inputs)
    states = output["encoder_out"][0].transpose(0, 1)
    parse = ParseBatch.from_net_input({k: v for k, v in inputs.items() if k != "src_tokens"})
    roots = encoder.root_nodes(output, parse)
    at_root = None if roots is None else states[torch.arange(len(states)), roots]
    return states, output["encoder_padding_mask"][0], at_root


def one_of(inputs, index, encoder):
    """A sentence of a batch as a batch of one, without padding."""
    sentence = {name: values[index : index + 1] for name, values in inputs.items()}
    real = sentence["src_tokens"][0].ne(encoder.padding_idx)
    for name in ("src_tokens", "src_words"):
        sentence[name] = sentence[name][:, real]
    for name in sentence.keys() - {"src_tokens", "src_words"}:
        values = sentence[name][0]
        sentence[name] = sentence[name][:, (values if values.dim() == 1 else values[:, 0]) >= 0]
    return sentence


@every_variant
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_a_sentence_in_a_padded_batch_is_encoded_as_if_alone(
    encoder, dictionary, name, variant, left
):
    inputs = make_batch(dictionary, LENGTHS, extra=2, left=left)
    together, padding, roots = states_of(encoder, inputs)
    assert not together[padding].any()
    for index in range(len(LENGTHS)):
        alone, _, root = states_of(encoder, one_of(inputs, index, encoder))
        torch.testing.assert_close(together[index][~padding[index]], alone[0], rtol=0, atol=1e-12)
        if roots is not None:
            torch.testing.assert_close(roots[index], root[0], rtol=0, atol=1e-12)


@every_variant
def test_reordering_the_output_is_encoding_the_reordered_batch(encoder, dictionary, name, variant):
    """All of it, also the states of every layer and the roots."""
    inputs = make_batch(dictionary, LENGTHS)
    order = torch.tensor([2, 0, 0, 3, 1])
    actual = encoder.reorder_encoder_out(encoder(**inputs, return_all_hiddens=True), order)
    reordered = {key: value[order] for key, value in inputs.items()}
    expected = encoder(**reordered, return_all_hiddens=True)
    assert actual.keys() == expected.keys()
    for key, values in expected.items():
        torch.testing.assert_close(actual[key], values, rtol=0, atol=1e-12, msg=key)


@every_variant
def test_a_missing_parse_is_named(encoder, dictionary, name, variant):
    inputs = make_batch(dictionary, LENGTHS)
    for field in ENCODERS[name].parse_fields(encoder.cfg):
        fewer = {key: value for key, value in inputs.items() if key != f"src_{field}"}
        with pytest.raises(ValueError, match=f"the batch carries no {field}: use --task"):
            encoder(**fewer)


@every_variant
def test_every_parameter_has_a_finite_gradient(encoder, dictionary, name, variant):
    states, *_ = states_of(encoder.train(), make_batch(dictionary, LENGTHS))
    states.square().sum().backward()
    for parameter_name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        # These documents may have one sentence each: nothing to choose from, and no step before it.
        assert parameter.grad.any() or ".sentence_" in parameter_name, parameter_name


@every_variant
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_keeps_to_the_result(encoder, dictionary, name, variant, dtype):
    inputs = make_batch(dictionary, LENGTHS)
    exact, padding, _ = states_of(encoder, inputs)
    half, *_ = states_of(encoder.to(dtype), inputs)
    assert half.dtype == dtype
    error = (half.double() - exact)[~padding].abs().mean() / exact[~padding].abs().mean()
    assert error < 0.05


@every_variant
def test_the_states_of_every_layer_can_be_asked_for(encoder, dictionary, name, variant):
    encoded = encoder(**make_batch(dictionary, LENGTHS), return_all_hiddens=True)
    assert len(encoded["encoder_states"]) == 3
    assert {states.shape for states in encoded["encoder_states"]} == {
        encoded["encoder_out"][0].shape
    }
    assert torch.equal(encoded["encoder_states"][-1], encoded["encoder_out"][0])


def test_the_root_of_a_document_is_its_last_node(dictionary):
    inputs = make_batch(dictionary, [3, 2])
    encoder = build(dictionary, "han")
    output = encoder(**inputs)
    nodes = output["encoder_out"][0].size(0)
    assert encoder.root_nodes(output, ParseBatch({})).tolist() == [nodes - 1] * 2


@pytest.mark.parametrize("name", ["lstm", "han"])
def test_an_odd_width_is_refused(dictionary, name):
    with pytest.raises(UserError, match="--encoder-embed-dim 15: the two directions"):
        build(dictionary, name, encoder_embed_dim=15)
