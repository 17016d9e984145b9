"""TreeReg and tree-planting: their equations in loops, for every encoder."""

from __future__ import annotations

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion

from fairseq_phrase.methods.encoder_method import translation_encoders
from fairseq_phrase.methods.losses.added_losses import calls_of
from fairseq_phrase.methods.losses.tree_losses import (
    ParseLossCriterion,
    TreePlantingCriterion,
    TreeRegularizationCriterion,
)
from fairseq_phrase.methods.losses.tree_planting import tree_distances, tree_planting
from fairseq_phrase.methods.losses.tree_regularization import tree_regularization
from fairseq_phrase.testing import build_model, make_batch, make_dictionary
from tests.support.tolerance import assert_same
from tests.support.tree_losses import make_criterion, make_sample, own_inputs, with_loss
from tests.twins import tree_losses as twins

LENGTHS = [9, 1, 4, 12]


@pytest.fixture(scope="module")
def dictionary():
    return make_dictionary()


def random_states(*shape):
    return torch.randn(*shape, dtype=torch.double, requires_grad=True)


def assert_same_with_gradients(found, expected, states):
    assert_same(found, expected)
    expected_gradients = torch.autograd.grad(expected, states)
    assert_same(*torch.autograd.grad(found, states), *expected_gradients)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("seed", range(6))
def test_tree_regularization_is_the_equation_in_loops(dictionary, left, seed):
    inputs = make_batch(dictionary, LENGTHS, left=left, extra=1, seed=seed)
    words, spans = inputs["src_words"], inputs["src_spans"]
    torch.manual_seed(seed)
    states = random_states(*words.shape, 5)
    loss, *counts = twins.regularization(states, words, spans)
    actual, *found_counts = tree_regularization(states, words, spans)
    assert found_counts == counts
    assert_same_with_gradients(actual, loss, states)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_tree_planting_is_the_equation_in_loops(dictionary, left):
    torch.manual_seed(1)
    inputs = make_batch(dictionary, LENGTHS, left=left, extra=1)
    words, tree = inputs["src_words"], inputs["src_heads"]
    # Two nodes after the tokens.
    nodes = words.size(1) + 2
    weights = random_states(len(words), 2, nodes, nodes).softmax(3).detach().requires_grad_()
    loss, count = twins.planting(weights, words, tree)
    actual, found_count = tree_planting(weights, words, tree_distances(words, tree))
    assert found_count == count
    assert_same_with_gradients(actual, loss, weights)


def test_a_sentence_without_constituents_or_with_flat_ones_divides_as_they_do():
    words = torch.tensor([[0, 1, 2, 3, -1]])
    states = random_states(1, 5, 3)
    loss, _, count = tree_regularization(states, words, torch.empty(1, 0, 3, dtype=torch.long))
    assert (float(loss), int(count)) == (0, 0)
    # A flat one divides into 0 and 1 2 3, then 1 and 2 3. Two words have one division: nothing to learn.
    for spans, expected in ([(0, 2), (2, 4)], 0), ([(0, 4)], 2), ([(0, 2), (2, 4), (0, 4)], 1):
        tree = torch.tensor([[(*span, 0) for span in spans]])
        assert tree_regularization(states, words, tree)[2] == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_parallel_states_have_finite_gradients(dictionary, dtype):
    inputs = make_batch(dictionary, LENGTHS)
    words, spans, heads = (inputs[f"src_{name}"] for name in ("words", "spans", "heads"))
    states = torch.zeros(*words.shape, 4, dtype=dtype)
    states[:, 1:] = 1.0
    states.requires_grad_()
    tree_regularization(states, words, spans)[0].backward()
    assert states.grad.isfinite().all()
    weights = torch.eye(words.size(1), dtype=dtype).expand(len(words), 1, -1, -1).clone()
    weights.requires_grad_()
    loss, _ = tree_planting(weights, words, tree_distances(words, heads))
    loss.backward()
    assert loss.isfinite()
    assert weights.grad.isfinite().all()


def expected_states(layer, call, words):
    """The columns of the first head."""
    states = call.output[0] if isinstance(call.output, tuple) else call.output
    states = states.transpose(0, 1) if getattr(layer, "time_first", True) else states
    return states[:, : words.size(1), :8]


def expected_weights(model, layer, call, inputs):
    if hasattr(model.encoder, "attention_maps"):
        return model.encoder.attention_maps(**inputs)[1][0]["all nodes"]
    states = call.inputs[0]
    states = layer.self_attn_layer_norm(states) if layer.normalize_before else states
    padding = call.options["encoder_padding_mask"]
    _, weights = layer.self_attn(
        states, states, states, padding, need_head_weights=True, static_kv=True
    )
    return weights.transpose(0, 1)


def check_loss(kind, name, options, dictionary):
    """Compare the loss of an encoder's middle layer with the equations; return the model and the loss."""
    model = build_model(name, dictionary, **options)
    layer = model.encoder.layers[0]
    inputs = make_batch(dictionary, LENGTHS)
    sample = make_sample(dictionary, inputs)
    inputs_of_model = own_inputs(name, model, inputs)
    sample["net_input"] |= inputs_of_model
    plain = make_criterion(LabelSmoothedCrossEntropyCriterion, dictionary)
    wrapped = with_loss(kind, plain, model, 0.5)
    with calls_of(layer) as calls:
        expected, size, _ = plain(model, sample)
    words = inputs["src_words"]
    if kind is TreeRegularizationCriterion:
        states = expected_states(layer, calls[0], words)
        taught, _, count = twins.regularization(states, words, inputs["src_spans"])
    else:
        inputs = {"src_tokens": inputs["src_tokens"], **inputs_of_model}
        weights = expected_weights(model, layer, calls[0], inputs)[:, :1]
        taught, count = twins.planting(weights, words, sample["parse"]["heads"])
    loss, found_size, logged = wrapped(model, sample)
    assert found_size == size
    assert logged[f"{kind.logged}_count"] == count
    assert_close(loss.double(), (expected + 0.5 * size * taught / count).double())
    return model, loss - expected


def assert_close(actual, expected):
    """Compare numbers from fairseq's own attention, which computes weights in single precision."""
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-7)


LOSSES = [TreeRegularizationCriterion, TreePlantingCriterion]
ROWS = [("transformer", "fairseq's own", {})] + [
    (name, row, options)
    for name, method in translation_encoders().items()
    for row, options in method.variants.items()
    if name != "huggingface"
]
every_loss = pytest.mark.parametrize("kind", LOSSES, ids=lambda kind: kind.option)


@pytest.mark.fast(20)
@every_loss
@pytest.mark.parametrize(("name", "row", "options"), ROWS, ids=[row for _, row, _ in ROWS])
def test_the_loss_is_added_for_every_encoder(dictionary, kind, name, row, options):
    check_loss(kind, name, options, dictionary)


@pytest.mark.parametrize("kind", [*LOSSES, ParseLossCriterion], ids=lambda kind: kind.option)
def test_a_batch_without_trees_adds_nothing(dictionary, kind):
    model = build_model("transformer", dictionary)
    sample = make_sample(dictionary, make_batch(dictionary, LENGTHS))
    sample["parse"] = {name: rows.fill_(-1) for name, rows in sample["parse"].items()}
    plain = make_criterion(LabelSmoothedCrossEntropyCriterion, dictionary)
    wrapped = with_loss(kind, plain, model, 0.5)
    assert_close(wrapped(model, sample)[0].double(), plain(model, sample)[0].double())


FIRST_ROWS = {name: (name, row, options) for name, row, options in reversed(ROWS)}.values()


@every_loss
@pytest.mark.parametrize(("name", "row", "options"), FIRST_ROWS, ids=lambda each: str(each)[:20])
def test_checkpointed_activations_and_pre_norm_teach_the_same(dictionary, kind, name, row, options):
    gradients = []
    for checkpointed in (False, True):
        variant = {
            **options,
            "checkpoint_activations": checkpointed,
            "encoder_normalize_before": True,
        }
        model, loss = check_loss(kind, name, variant, dictionary)
        loss.backward()
        gradients.append(model.encoder.layers[0].self_attn.q_proj.weight.grad)
    plain, checkpointed = gradients
    assert plain.any()
    assert_close(checkpointed, plain)
