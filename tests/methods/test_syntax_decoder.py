"""Every encoder's variant under every decoder: copying, alignments, coverage, ensembles.

Encoders return more nodes than tokens (phrases, constituents). What a decoder reports as ``attn`` has one
column for each source token, and everything that reads it works for every variant.
"""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy_with_alignment import (
    LabelSmoothedCrossEntropyCriterionWithAlignment,
)
from fairseq.sequence_generator import (
    EnsembleModel,
    SequenceGenerator,
    SequenceGeneratorWithAlignment,
)
from fairseq.sequence_scorer import SequenceScorer

from fairseq_phrase.inference.source_sentence import SourceSentence
from fairseq_phrase.lab.pictures import heat_maps
from fairseq_phrase.methods.copying.copy_scores import COPIES
from fairseq_phrase.methods.encoder_method import ENCODERS
from fairseq_phrase.methods.losses.added_losses import CoverageCriterion
from fairseq_phrase.testing import any_label_dictionary, build_model, make_batch
from tests.support.recurrent_models import build_recurrent
from tests.support.selection import first_of_each
from tests.twins import recurrent_attention as twin

LENGTHS = [7, 1, 4, 5]
#: Every variant with the Transformer's decoder, and with the recurrent one.
VARIANTS = [
    (decoder, name, variant)
    for name, method in ENCODERS.items()
    for variant in method.variants
    for decoder in (["transformer", "recurrent"] if method.translation else ["recurrent"])
]
every_variant = pytest.mark.parametrize(
    ("decoder", "name", "variant"),
    VARIANTS,
    ids=[f"{variant}-{decoder}" for decoder, _, variant in VARIANTS],
)
#: A decoder sees tokens alone, tokens and phrases, or a tree with its own decoder; one variant for each.
#: Encoders of recurrent models give it tokens or a tree's nodes.
KINDS = {
    "relation bias, both", "phrase, constituents", "phrase, ends, parts, to decoder",
    "tree", "tree, neutral", "Tree-LSTM, constituents", "HAN",
}  # fmt: skip
of_each_kind = pytest.mark.parametrize(
    ("decoder", "name", "variant"),
    [each for each in VARIANTS if each[2] in KINDS],
    ids=[f"{variant}-{decoder}" for decoder, _, variant in VARIANTS if variant in KINDS],
)


def test_every_kind_is_the_row_of_an_encoder():
    assert {variant for _, _, variant in VARIANTS} >= KINDS


def build(dictionary, decoder, name, variant, **options):
    options |= ENCODERS[name].variants[variant]
    if decoder == "recurrent":
        return build_recurrent(dictionary, encoder=name, **options)
    return build_model(name, dictionary, **options)


def make_sample(dictionary, left=False):
    inputs = make_batch(dictionary, LENGTHS, left=left, extra=1)
    inputs["src_lengths"] = inputs["src_tokens"].ne(dictionary.pad()).sum(1)
    rng = torch.Generator().manual_seed(3)
    target = torch.randint(dictionary.nspecial, len(dictionary), (4, 6), generator=rng)
    target[:, -1] = dictionary.eos()
    inputs["prev_output_tokens"] = target.roll(1, 1)
    return {"net_input": inputs, "target": target, "ntokens": target.numel()}


def attention_to_nodes(model, sample):
    """The weights that the last layer's cross-attention returns. Batch-first, mean over heads."""
    weights = []
    attention = model.decoder.layers[-1].encoder_attn
    handle = attention.register_forward_hook(
        lambda module, inputs, output: weights.append(output[1])
    )
    model(**sample["net_input"])
    handle.remove()
    return weights[0].mean(0)  # (heads, batch, target, nodes)


@pytest.mark.parametrize(
    ("name", "decoder", "variant"), first_of_each((n, d, v) for d, n, v in VARIANTS)
)
def test_attention_is_reported_over_tokens_and_learns_from_coverage(
    dictionary, decoder, name, variant
):
    model = build(dictionary, decoder, name, variant)
    sample = make_sample(dictionary, left=len(variant) % 2 == 0)
    tokens = sample["net_input"]["src_tokens"]
    (weights,) = model(**sample["net_input"])[1]["attn"]
    assert weights.shape == (*sample["target"].shape, tokens.size(1))
    if decoder == "transformer":
        of_tokens = attention_to_nodes(model, sample)[..., : tokens.size(1)]
        torch.testing.assert_close(weights, of_tokens.to(weights))
    assert not weights.masked_select(tokens.eq(dictionary.pad()).unsqueeze(1)).any()
    sum(twin.coverage(list(rows)) for rows in weights).backward()
    expected = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert expected
    model.zero_grad()
    task = Namespace(target_dictionary=dictionary)
    plain = LabelSmoothedCrossEntropyCriterion(task, sentence_avg=False, label_smoothing=0.1)
    plain(model, sample)[0].backward()
    without = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    loss, _, logged = CoverageCriterion.over(plain, 1.0)(model, sample)
    loss.backward()
    coverage = sum(twin.coverage(list(rows)) for rows in weights.detach())
    torch.testing.assert_close(logged["coverage_loss"], coverage)
    for parameter_name, parameter in model.named_parameters():
        if parameter_name in expected:
            gradient = parameter.grad - without[parameter_name]
            torch.testing.assert_close(gradient, expected[parameter_name], rtol=1e-4, atol=1e-6)


@of_each_kind
def test_attention_learns_from_given_alignments(dictionary, decoder, name, variant):
    """Fairseq's loss of guided alignment, and its gradient, are those of a loop."""
    model = build(dictionary, decoder, name, variant)
    sample = make_sample(dictionary)
    columns = sample["target"].size(1)
    sample["alignments"] = torch.tensor([[0, 0], [3, 2], [1, 2], [2, 2 * columns + 1]])
    sample["align_weights"] = torch.tensor([1, 0.5, 0.5, 1])
    (weights,) = model(**sample["net_input"])[1]["attn"]
    expected = -sum(
        weight * weights[target // columns, target % columns, source].log()
        for (source, target), weight in zip(
            sample["alignments"].tolist(), sample["align_weights"].tolist(), strict=True
        )
    )
    expected.backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert gradients
    losses = {}
    for factor in (0.0, 1.0):
        model.zero_grad()
        criterion = LabelSmoothedCrossEntropyCriterionWithAlignment(
            Namespace(target_dictionary=dictionary), False, 0.1, factor
        )
        loss, _, logged = criterion(model, sample)
        loss.backward()
        losses[factor] = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert logged["alignment_loss"] == pytest.approx(expected.item(), rel=1e-5)
    for parameter_name, gradient in gradients.items():
        difference = losses[1.0][parameter_name] - losses[0.0][parameter_name]
        torch.testing.assert_close(difference, gradient, rtol=1e-4, atol=1e-5)


@of_each_kind
@pytest.mark.parametrize("kind", COPIES)
def test_every_kind_of_copying_trains_and_is_scored(dictionary, decoder, name, variant, kind):
    model = build(dictionary, decoder, name, variant, copy=kind).train()
    sample = make_sample(dictionary)
    scores, extra = model(**sample["net_input"])
    assert extra["attn"][0].size(-1) == sample["net_input"]["src_tokens"].size(1)
    probabilities = scores.softmax(-1)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(4, 6, dtype=torch.float64))
    targets = sample["target"].unsqueeze(-1)
    probabilities.log().gather(-1, targets).sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    for parameter_name, parameter in model.decoder.copy_scores.named_parameters():
        assert parameter.grad.any(), parameter_name
    scores, _ = model.eval()(**sample["net_input"])
    expected = scores.log_softmax(-1).gather(-1, targets).squeeze(-1)
    scored = SequenceScorer(dictionary).generate([model], sample)
    for (hypothesis,), expected_scores in zip(scored, expected, strict=True):
        torch.testing.assert_close(
            hypothesis["positional_scores"].double(), expected_scores, rtol=1e-4, atol=1e-4
        )


@of_each_kind
def test_a_translation_is_aligned_with_source_tokens(
    dictionary, monkeypatch, decoder, name, variant
):
    monkeypatch.setattr(heat_maps, "MAX_TOKENS", 12)  # the model has not learned to end
    model = build(dictionary, decoder, name, variant)
    sample = make_sample(dictionary)
    generator = SequenceGeneratorWithAlignment(
        [model], dictionary, beam_size=3, max_len_b=5, print_alignment="hard"
    )
    for length, hypotheses in zip(LENGTHS, generator.generate([model], sample), strict=True):
        for hypothesis in hypotheses:
            assert all(source <= length for source, _ in hypothesis["alignment"])
    task = Namespace(
        source_dictionary=dictionary,
        target_dictionary=dictionary,
        label_dictionary=any_label_dictionary,
    )
    inputs_of_first = {k: v[:1] for k, v in sample["net_input"].items() if k.startswith("src_")}
    del inputs_of_first["src_lengths"]
    sentence = SourceSentence.from_batch(inputs_of_first, task)
    picture = heat_maps.alignment_picture(model, task, sentence)
    assert picture.weights.shape == (len(picture.target), len(sentence.tokens))


@of_each_kind
def test_it_joins_an_ensemble_with_others(dictionary, decoder, name, variant):
    models = [
        build(dictionary, decoder, name, variant, copy="gate"),
        build_model("structural_transformer", dictionary),
        build_recurrent(dictionary),
    ]
    sample = make_sample(dictionary)
    inputs = {k: v for k, v in sample["net_input"].items() if k != "prev_output_tokens"}
    generator = SequenceGenerator(models, dictionary, beam_size=3, max_len_b=5)
    tokens = inputs["src_tokens"].size(1)
    for hypotheses in generator.generate(models, {"net_input": inputs}):
        assert hypotheses[0]["attention"].size(0) == tokens
    ensemble = EnsembleModel(models)
    encoded = ensemble.forward_encoder(inputs)
    previous = sample["net_input"]["prev_output_tokens"][:, :1]
    log_probs, attention = ensemble.forward_decoder(previous, encoded, [{} for _ in models])
    single = [
        model.decoder(previous, encoder_out=encoder_out)
        for model, encoder_out in zip(models, encoded, strict=True)
    ]
    mean = torch.stack([scores[:, -1].softmax(-1) for scores, _ in single]).mean(0)
    torch.testing.assert_close(log_probs.double().exp(), mean, rtol=1e-4, atol=1e-7)
    mean = torch.stack([extra["attn"][0][:, -1].double() for _, extra in single]).mean(0)
    torch.testing.assert_close(attention.double(), mean, rtol=1e-4, atol=1e-7)
