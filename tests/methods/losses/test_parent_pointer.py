"""The parse loss: its equation in loops, for every encoder and criterion, either way of norms."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
)
from fairseq.criterions.label_smoothed_cross_entropy_with_rdrop import (
    RdropLabelSmoothedCrossEntropyCriterion,
)
from fairseq.logging import metrics

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.encoder_method import translation_encoders
from fairseq_phrase.methods.losses.parent_pointer import ParentPointer
from fairseq_phrase.methods.losses.tree_losses import ParseLossCriterion, attention_layer
from fairseq_phrase.testing import build_model, make_batch, make_dictionary
from tests.support.tolerance import assert_same
from tests.support.tree_losses import make_criterion, make_sample, own_inputs, with_loss

LENGTHS = [7, 1, 4, 5]
#: All with self-attention of their own.
NAMES = ["transformer", *(name for name in translation_encoders() if name != "huggingface")]


@pytest.fixture(scope="module")
def dictionary():
    return make_dictionary()


def twin_loss(query, key, weight, words, heads):
    """-log p of each word's parent, word by word; and whether it points at the parent."""
    losses, correct = [], 0
    for row in range(len(words)):
        of_token = words[row].tolist()
        for word, head in enumerate(heads[row].tolist()):
            if head < 0:
                continue
            t, parent = of_token.index(word), of_token.index(head)
            tokens = [j for j, token_word in enumerate(of_token) if token_word >= 0]
            scores = torch.stack([query[row, t] @ weight @ key[row, j] for j in tokens])
            losses.append(-scores.log_softmax(0)[tokens.index(parent)])
            correct += of_token[tokens[int(scores.argmax())]] == head
    return torch.stack(losses), correct


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_the_pointer_is_the_equation_in_loops(dictionary, left):
    torch.manual_seed(1)
    inputs = make_batch(dictionary, LENGTHS, left=left, extra=1)
    words, heads = inputs["src_words"], inputs["src_heads"]
    pointer = ParentPointer(4).double()
    torch.nn.init.normal_(pointer.weight)
    query, key = (
        torch.randn(*words.shape, 4, dtype=torch.double, requires_grad=True) for _ in range(2)
    )
    losses, correct = twin_loss(query, key, pointer.weight, words, heads)
    pointed = pointer(query, key, words, heads)
    assert_same(pointed.loss, losses.sum())
    assert (pointed.correct, pointed.words) == (correct, len(losses))
    parameters = [query, key, pointer.weight]
    expected_gradients = torch.autograd.grad(losses.sum(), parameters)
    for gradient, expected in zip(
        torch.autograd.grad(pointed.loss, parameters), expected_gradients, strict=True
    ):
        assert_same(gradient, expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pre_norm", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("checkpointed", [False, True], ids=["", "checkpointed"])
def test_the_loss_is_added_for_every_encoder(dictionary, name, pre_norm, checkpointed):
    model = build_model(
        name,
        dictionary,
        encoder_normalize_before=pre_norm,
        checkpoint_activations=checkpointed,
    ).train()
    inputs = make_batch(dictionary, LENGTHS)
    sample = make_sample(dictionary, inputs)
    sample["net_input"] |= own_inputs(name, model, inputs)
    plain = make_criterion(LabelSmoothedCrossEntropyCriterion, dictionary)
    wrapped = with_loss(ParseLossCriterion, plain, model, 0.5)
    inputs_of_layer = []
    layer = model.encoder.layers[0]
    handle = layer.register_forward_pre_hook(lambda _, given: inputs_of_layer.append(given[0]))
    expected, size, _ = plain(model, sample)
    handle.remove()
    states = (
        inputs_of_layer[0].transpose(0, 1)
        if getattr(layer, "time_first", True)
        else inputs_of_layer[0]
    )
    states = states[:, : sample["target"].size(1)]
    states = layer.self_attn_layer_norm(states) if pre_norm else states
    query, key = (
        (states @ projection.weight.T + projection.bias)[..., :8]
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj)
    )
    words, heads = inputs["src_words"], inputs["src_heads"]
    losses, correct = twin_loss(query, key, wrapped.pointer.weight, words, heads)
    loss, found_size, logged = wrapped(model, sample)
    assert found_size == size
    assert_same(loss, expected + 0.5 * size * losses.mean())
    assert (int(logged["parse_correct"]), int(logged["parse_count"])) == (correct, len(losses))
    loss.backward()
    assert wrapped.pointer.weight.grad.any()
    projection = layer.self_attn.q_proj.weight.grad
    assert projection.isfinite().all()
    assert projection.any()


def test_r_drop_points_in_both_copies_of_the_batch(dictionary):
    model = build_model("transformer", dictionary, dropout=0.3).train()
    sample = make_sample(dictionary, make_batch(dictionary, LENGTHS))
    rdrop = make_criterion(RdropLabelSmoothedCrossEntropyCriterion, dictionary, rdrop_alpha=1.0)
    wrapped = with_loss(ParseLossCriterion, rdrop, model, 1.0)
    loss, _, logged = wrapped(model, sample)
    assert int(logged["parse_count"]) == 2 * int((sample["parse"]["heads"] >= 0).sum())
    loss.backward()
    assert wrapped.pointer.weight.grad.isfinite().all()


def test_lambda_weighs_the_same_with_r_drop_as_with_the_batch_given_twice(dictionary):
    model = build_model("transformer", dictionary)
    inputs = make_batch(dictionary, LENGTHS)
    plain = make_criterion(LabelSmoothedCrossEntropyCriterion, dictionary)
    rdrop = make_criterion(RdropLabelSmoothedCrossEntropyCriterion, dictionary, rdrop_alpha=1.0)
    added = []
    for criterion in (plain, rdrop):
        with_trees = with_loss(ParseLossCriterion, criterion, model, 0.5)
        loss, size, _ = with_trees(model, make_sample(dictionary, inputs))
        without, _, _ = criterion(model, make_sample(dictionary, inputs))
        # R-Drop divides the losses of two copies by the tokens of one.
        added.append((loss - without) / size / (without / size))
    twice, once = added[1], added[0]
    assert_same(twice, once)


def test_what_is_logged_is_the_criterions_and_the_accuracy_of_all_batches(dictionary):
    model = build_model("transformer", dictionary)
    plain = make_criterion(LabelSmoothedCrossEntropyCriterion, dictionary)
    wrapped = with_loss(ParseLossCriterion, plain, model, 1.0)
    logs = []
    for lengths in (LENGTHS, [3, 12]):
        sample = make_sample(dictionary, make_batch(dictionary, lengths))
        logs.append(wrapped(model, sample)[2])
    with metrics.aggregate() as logged:
        type(wrapped).reduce_metrics(logs)
    values = logged.get_smoothed_values()
    correct, words = (
        sum(int(log[name]) for log in logs) for name in ("parse_correct", "parse_count")
    )
    assert values["uas"] == round(100 * correct / words, 2)
    assert {"loss", "nll_loss", "ppl", "parse_loss"} <= values.keys()
    assert type(wrapped).__name__ == "LabelSmoothedCrossEntropyCriterionWithParseLoss"


def test_a_layer_that_was_dropped_teaches_nothing(dictionary):
    torch.manual_seed(1)
    model = build_model("transformer", dictionary, encoder_layerdrop=0.999).train()
    sample = make_sample(dictionary, make_batch(dictionary, LENGTHS))
    plain = make_criterion(LabelSmoothedCrossEntropyCriterion, dictionary)
    _, _, logged = with_loss(ParseLossCriterion, plain, model, 1.0)(model, sample)
    assert "parse_count" not in logged


def test_batches_without_trees_have_the_criterions_loss_alone(dictionary):
    model = build_model("transformer", dictionary)
    sample = make_sample(dictionary, make_batch(dictionary, LENGTHS))
    del sample["parse"]
    plain = make_criterion(LabelSmoothedCrossEntropyCriterion, dictionary)
    wrapped = with_loss(ParseLossCriterion, plain, model, 1.0)
    assert torch.equal(wrapped(model, sample)[0], plain(model, sample)[0])


def test_an_encoder_without_attention_is_refused():
    with pytest.raises(UserError, match="needs an encoder with layers of self-attention"):
        attention_layer(Namespace(encoder=torch.nn.LSTM(2, 2)), "--parse-loss")
    with pytest.raises(UserError, match="--parse-loss: Identity has no self-attention with quer"):
        attention_layer(Namespace(encoder=Namespace(layers=[torch.nn.Identity()])), "--parse-loss")
