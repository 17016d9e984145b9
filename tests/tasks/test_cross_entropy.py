"""The loss of an output projection by parts, compared with its definition and with fairseq's."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    label_smoothed_nll_loss,
)
from fairseq.distributed import ModuleProxyWrapper
from fairseq.models.transformer import TransformerDecoder, TransformerModelBase
from torch.nn.functional import linear
from torch.nn.parallel import DistributedDataParallel

from fairseq_phrase.methods.losses.added_losses import CoverageCriterion
from fairseq_phrase.tasks import cross_entropy
from fairseq_phrase.tasks.cross_entropy import (
    CRITERIA,
    by_parts,
    projection_of,
    smoothed_cross_entropy,
)
from fairseq_phrase.testing import build_model, make_batch
from tests.support.accumulations import Largest
from tests.support.recurrent_models import build_recurrent
from tests.support.tolerance import assert_same, error
from tests.support.tree_losses import make_criterion, make_sample
from tests.twins.cross_entropy import smoothed_cross_entropy as twin

PADDING, WORDS, WIDTH = 1, 23, 6
HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])


@pytest.fixture(params=[1, 40, 100, 2**20])
def size_of_parts(request, monkeypatch):
    """Parts of one token, of few tokens, and of all."""
    monkeypatch.setitem(cross_entropy.SCORES, "cpu", request.param)


def make_inputs(dtype=torch.float64, *, bias=False, words=WORDS, size=1.0):
    """Random states, weights and targets with padding."""
    rng = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    states, weight = draw(3, 5, WIDTH) * size, draw(words, WIDTH)
    target = torch.randint(2, words, (3, 5), generator=rng)
    target[0, 3:], target[2, 1:] = PADDING, PADDING
    tensors = [states, weight, draw(words) if bias else None]
    return [None if x is None else x.to(dtype).requires_grad_() for x in tensors], target


def gradients_of(loss, tensors):
    return torch.autograd.grad(loss, [x for x in tensors if x is not None])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_values_and_gradients_are_those_of_the_definition(size_of_parts, bias, smoothing):
    tensors, target = make_inputs(bias=bias)
    losses = smoothed_cross_entropy(*tensors, target, PADDING, smoothing)
    loss, nll_loss = twin(*tensors, target, PADDING, smoothing)
    assert_same(losses.loss, loss)
    assert_same(losses.nll_loss, nll_loss)
    gradients = gradients_of(3 * losses.loss, tensors)
    for gradient, expected in zip(gradients, gradients_of(3 * loss, tensors), strict=True):
        assert_same(gradient, expected)


@pytest.mark.parametrize("bias", [False, True])
def test_the_scale_of_gradients_inside_does_not_change_them(size_of_parts, bias):
    tensors, target = make_inputs(bias=bias)
    loss, _ = twin(*tensors, target, PADDING, 0.1)
    losses = smoothed_cross_entropy(*tensors, target, PADDING, 0.1, scale=8.0)
    assert_same(losses.loss, loss)
    gradients = gradients_of(8 * losses.loss, tensors)
    for gradient, expected in zip(gradients, gradients_of(8 * loss, tensors), strict=True):
        assert_same(gradient, expected)


@pytest.fixture
def on_a_gpu(monkeypatch):
    """There the host does not know the number of tokens, so all rows are computed."""
    monkeypatch.setattr(torch.Tensor, "index_select", lambda tensor, *_: tensor)


@pytest.mark.usefixtures("on_a_gpu")
def test_padding_on_a_gpu_is_masked(size_of_parts):
    tensors, target = make_inputs(bias=True)
    losses = smoothed_cross_entropy(*tensors, target, PADDING, 0.1)
    loss, nll_loss = twin(*tensors, target, PADDING, 0.1)
    assert_same(losses.loss, loss)
    assert_same(losses.nll_loss, nll_loss)
    gradients = gradients_of(losses.loss, tensors)
    for gradient, expected in zip(gradients, gradients_of(loss, tensors), strict=True):
        assert_same(gradient, expected)
    assert not gradients[0][target == PADDING].any()


@pytest.mark.usefixtures("on_a_gpu")
def test_padding_on_a_gpu_is_not_correct(size_of_parts):
    tensors, target = make_inputs(bias=True)
    with torch.no_grad():
        tensors[2][PADDING] = 100.0  # it has the best score of every token
    losses = smoothed_cross_entropy(*tensors, target, PADDING, 0.1, count_correct=True)
    assert losses.correct == 0
    assert losses.total == target.ne(PADDING).sum()


@HALF
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_half_precision_is_as_exact_as_fairseqs(size_of_parts, dtype, smoothing):
    tensors, target = make_inputs(dtype, bias=True, words=300)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    expected, _ = twin(*exact, target, PADDING, smoothing)
    scores = linear(*tensors).log_softmax(-1, dtype=torch.float32)
    stock, _ = label_smoothed_nll_loss(
        scores.flatten(0, 1), target.flatten(), smoothing, ignore_index=PADDING
    )
    losses = smoothed_cross_entropy(*tensors, target, PADDING, smoothing)
    assert losses.loss.dtype == torch.float32
    assert error(losses.loss, expected) <= 2 * error(stock, expected) + 1e-6 * expected.item()
    for gradient, fairseqs, right in zip(
        gradients_of(losses.loss, tensors),
        gradients_of(stock, tensors),
        gradients_of(expected, exact),
        strict=True,
    ):
        assert gradient.dtype == dtype
        assert error(gradient, right) <= 2 * error(fairseqs, right)


def test_the_loss_scale_keeps_small_gradients():
    # One word's probability is below the smallest number of float16, 6e-8.
    states = torch.tensor([[[1.0, 0.0]]], dtype=torch.float16)
    weight = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [-18.0, 0.0]], dtype=torch.float16)
    weight.requires_grad_()
    target, scale = torch.tensor([[2]]), 2.0**12
    for factor, expected in (
        (1.0, 0.0),
        (scale, linear(states, weight).double().softmax(-1)[0, 0, 3]),
    ):
        losses = smoothed_cross_entropy(states, weight, None, target, PADDING, scale=factor)
        (gradient,) = torch.autograd.grad(factor * losses.loss, [weight])
        assert gradient[3, 0] / factor == pytest.approx(float(expected), rel=0.01)


def test_an_overflow_of_scaled_gradients_is_infinite():
    tensors, target = make_inputs(torch.float16)
    losses = smoothed_cross_entropy(*tensors, target, PADDING, scale=2.0**16)
    gradients = gradients_of(losses.loss * 2.0**16, tensors)
    assert not all(gradient.isfinite().all() for gradient in gradients)


def test_no_tensor_has_a_score_for_every_token_and_word(monkeypatch):
    monkeypatch.setitem(cross_entropy.SCORES, "cpu", 3 * 300)
    tensors, target = make_inputs(words=300)
    with Largest() as largest:
        smoothed_cross_entropy(*tensors, target, PADDING, 0.1).loss.backward()
    assert largest.size == 300 * WIDTH < int(target.ne(PADDING).sum()) * 300


def test_tokens_with_the_best_score_are_counted(size_of_parts):
    tensors, target = make_inputs(words=4)
    best = linear(tensors[0], tensors[1]).argmax(-1)
    target[1] = best[1]
    losses = smoothed_cross_entropy(*tensors, target, PADDING, 0.1, count_correct=True)
    is_word = target.ne(PADDING)
    assert losses.correct == (best.eq(target) & is_word).sum() >= 4
    assert losses.total == is_word.sum()


def test_a_batch_of_padding_has_no_loss():
    tensors, target = make_inputs()
    losses = smoothed_cross_entropy(*tensors, torch.full_like(target, PADDING), PADDING, 0.1)
    assert losses.loss == losses.total == 0
    assert not any(gradient.any() for gradient in gradients_of(losses.loss, tensors))


MODELS = {
    "transformer": lambda d: build_model("transformer", d),
    "transformer, shared": lambda d: build_model("transformer", d, share_all_embeddings=True),
    "seq2seq": build_recurrent,
    "seq2seq, shared": lambda d: build_recurrent(
        d, share_decoder_input_output_embed=True, decoder_embed_dim=10
    ),
    "bart": lambda d: build_model("bart_base", d, encoder_learned_pos=True),
}


STOCK = LabelSmoothedCrossEntropyCriterion
BY_PARTS = CRITERIA[STOCK]


@pytest.mark.parametrize("name", MODELS)
def test_the_criterion_of_every_model_has_fairseqs_values_and_gradients(dictionary, name):
    model = MODELS[name](dictionary).train()
    sample = make_sample(dictionary, make_batch(dictionary, [7, 5, 4, 1]))  # fairseq's lstm: sorted
    for options in (
        {},
        {"report_accuracy": True},
        {"ignore_prefix_size": 1},
        {"ignore_prefix_size": 2},
    ):
        results = []
        for kind in (BY_PARTS, STOCK):
            criterion = make_criterion(kind, dictionary, **options)
            model.zero_grad()
            loss, size, logged = criterion(model, sample)
            loss.backward()
            gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
            results.append((loss, size, logged, gradients))
        # fairseq computes the logarithm of the softmax in single precision.
        for actual, expected in zip(*results, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6, check_dtype=False)


def test_the_loss_without_smoothing_has_fairseqs_values_and_gradients(dictionary):
    model = build_model("transformer", dictionary).train()
    sample = make_sample(dictionary, make_batch(dictionary, [7, 1, 4, 5]))
    results = []
    for kind in (CRITERIA[CrossEntropyCriterion], CrossEntropyCriterion):
        task = Namespace(target_dictionary=dictionary, loss_scale=1.0)
        model.zero_grad()
        loss, _, logged = kind(task, sentence_avg=False)(model, sample)
        loss.backward()
        results.append((loss, logged, [p.grad for p in model.parameters()]))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6, check_dtype=False)


def test_validation_computes_no_gradient(dictionary):
    model = build_model("transformer", dictionary)
    criterion = make_criterion(BY_PARTS, dictionary)
    sample = make_sample(dictionary, make_batch(dictionary, [7, 1, 4, 5]))
    trained, _, _ = criterion(model, sample)
    with torch.no_grad():
        loss, _, _ = criterion(model, sample)
    assert loss == trained
    assert trained.requires_grad
    assert not loss.requires_grad


def test_losses_of_single_tokens_are_fairseqs(dictionary):
    model = build_model("transformer", dictionary)
    sample = make_sample(dictionary, make_batch(dictionary, [7, 1, 4, 5]))
    loss, expected = (
        make_criterion(kind, dictionary)(model, sample, reduce=False)[0]
        for kind in (BY_PARTS, STOCK)
    )
    torch.testing.assert_close(loss, expected, rtol=0, atol=0)
    assert loss.numel() == sample["target"].numel()


def test_an_added_loss_is_added_to_it(dictionary):
    model = build_model("transformer", dictionary)
    sample = make_sample(dictionary, make_batch(dictionary, [7, 1, 4, 5]))
    values = []
    for kind in (BY_PARTS, STOCK):
        criterion = CoverageCriterion.over(make_criterion(kind, dictionary), 0.5)
        values.append(criterion(model, sample))
    torch.testing.assert_close(*values, rtol=1e-5, atol=1e-6, check_dtype=False)


def test_the_criterion_keeps_the_name_that_checkpoints_record():
    for kind, faster in CRITERIA.items():
        assert faster.__name__ == kind.__name__
        assert issubclass(faster, kind)


@pytest.mark.parametrize("finds", [False, True])
def test_several_processes_have_the_same_gradients(dictionary, tmp_path, finds):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1
    )
    try:
        model = build_model("transformer", dictionary).train()
        criterion = make_criterion(BY_PARTS, dictionary)
        sample = make_sample(dictionary, make_batch(dictionary, [7, 1, 4, 5]))
        criterion(model, sample)[0].backward()
        expected = [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        wrapped = DistributedDataParallel(model, find_unused_parameters=finds)
        # torch finds only parameters that the forward pass uses, such as the projection's in fairseq's.
        assert (projection_of(ModuleProxyWrapper(wrapped)) is None) == finds
        for _ in range(2):
            criterion(ModuleProxyWrapper(wrapped), sample)[0].backward()
        gradients = [parameter.grad / 2 for parameter in model.parameters()]
        torch.testing.assert_close(gradients, expected, rtol=1e-5, atol=1e-7)
    finally:
        torch.distributed.destroy_process_group()


class OwnDecoder(TransformerDecoder):
    """A user's decoder."""

    def output_layer(self, features):
        return super().output_layer(features) / 2


class OwnModel(TransformerModelBase):
    """A user's model."""

    def get_normalized_probs(self, net_output, log_probs, sample=None):
        return super().get_normalized_probs(net_output, log_probs, sample)


def with_part(dictionary, model=TransformerModelBase, decoder=TransformerDecoder):
    built = build_model("transformer", dictionary)
    decoder = decoder(built.cfg, dictionary, built.decoder.embed_tokens)
    return model(built.cfg, built.encoder, decoder).double()


OTHERS = {
    "decoder": lambda d: with_part(d, decoder=OwnDecoder),
    "model": lambda d: with_part(d, model=OwnModel),
    "adaptive softmax": lambda d: build_model(
        "transformer", d, adaptive_softmax_cutoff="10", adaptive_softmax_dropout=0.0
    ),
    "copies": lambda d: build_model("structural_transformer", d, copy="gate"),
    "no decoder": lambda d: Namespace(encoder=build_model("transformer", d).encoder),
}


@pytest.mark.parametrize("name", OTHERS)
def test_scores_that_may_not_be_a_projections_stay_fairseqs(dictionary, name):
    assert projection_of(with_part(dictionary)) is not None
    assert projection_of(OTHERS[name](dictionary)) is None


def test_the_loss_of_other_scores_is_fairseqs(dictionary):
    model = OTHERS["decoder"](dictionary)
    sample = make_sample(dictionary, make_batch(dictionary, [7, 1, 4, 5]))
    values = [make_criterion(kind, dictionary)(model, sample) for kind in (BY_PARTS, STOCK)]
    torch.testing.assert_close(*values, rtol=0, atol=0)


def test_fairseq_builds_the_criterion_only_in_the_block():
    with by_parts():
        assert CRITERION_REGISTRY["label_smoothed_cross_entropy"] is BY_PARTS
    assert CRITERION_REGISTRY["label_smoothed_cross_entropy"] is STOCK
    assert CRITERION_REGISTRY["label_smoothed_cross_entropy_with_rdrop"] not in CRITERIA.values()
