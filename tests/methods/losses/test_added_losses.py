"""The coverage loss, added to any criterion for any decoder with attention."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy_with_rdrop import (
    RdropLabelSmoothedCrossEntropyCriterion,
)
from fairseq.logging import metrics

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.losses.added_losses import CoverageCriterion
from fairseq_phrase.tasks.syntax_translation import SyntaxTranslationConfig, SyntaxTranslationTask
from fairseq_phrase.testing import build_model, make_batch
from tests.support.recurrent_models import build_recurrent
from tests.twins import recurrent_attention as twin

LENGTHS = [7, 1, 4, 5]


def make_sample(dictionary):
    tokens = make_batch(dictionary, LENGTHS)["src_tokens"]
    lengths = tokens.ne(dictionary.pad()).sum(1)
    return {
        "net_input": {"src_tokens": tokens, "src_lengths": lengths, "prev_output_tokens": tokens},
        "target": tokens,
        "ntokens": int(lengths.sum()),
    }


def make_criterion(kind, dictionary, **options):
    task = Namespace(target_dictionary=dictionary)
    return kind(task, sentence_avg=False, label_smoothing=0.1, **options)


@pytest.mark.parametrize("name", ["seq2seq", "transformer"])
def test_the_loss_is_added_for_every_decoder(dictionary, name):
    model = build_recurrent(dictionary) if name == "seq2seq" else build_model(name, dictionary)
    sample = make_sample(dictionary)
    plain = make_criterion(LabelSmoothedCrossEntropyCriterion, dictionary)
    expected, size, _ = plain(model, sample)
    weights = model(**sample["net_input"])[1]["attn"][0]
    coverage = sum(
        twin.coverage(rows[: length + 1].tolist())
        for rows, length in zip(weights, LENGTHS, strict=True)
    )
    loss, found_size, logged = CoverageCriterion.over(plain, 0.5)(model, sample)
    assert found_size == size
    assert coverage > 0
    assert loss.item() == pytest.approx(expected.item() + 0.5 * coverage, rel=1e-6)
    assert logged["coverage_loss"].item() == pytest.approx(coverage, rel=1e-5)
    loss.backward()
    attending = model.decoder.layers[-1].encoder_attn if name == "transformer" else None
    trained = attending.q_proj.weight if attending else model.decoder.layers.attention.score.weight
    assert trained.grad.any()


def test_r_drop_covers_both_copies_of_the_batch(dictionary):
    model = build_recurrent(dictionary).train()
    sample = make_sample(dictionary)
    plain = make_criterion(LabelSmoothedCrossEntropyCriterion, dictionary)
    rdrop = make_criterion(RdropLabelSmoothedCrossEntropyCriterion, dictionary, rdrop_alpha=1.0)
    _, _, once = CoverageCriterion.over(plain, 1.0)(model, sample)
    _, _, twice = CoverageCriterion.over(rdrop, 1.0)(model, sample)
    torch.testing.assert_close(twice["coverage_loss"], 2 * once["coverage_loss"])


def test_a_decoder_without_attention_has_nothing_to_cover(dictionary):
    model = build_recurrent(dictionary, attention="none")
    criterion = make_criterion(LabelSmoothedCrossEntropyCriterion, dictionary)
    with pytest.raises(UserError, match="--coverage needs a decoder with attention"):
        CoverageCriterion.over(criterion, 1.0)(model, make_sample(dictionary))
    assert not model.decoder._forward_hooks


def translation_task(dictionary, folder, **options):
    options |= {"source_lang": "de", "target_lang": "en"}
    return SyntaxTranslationTask(
        SyntaxTranslationConfig(data=str(folder), **options), dictionary, dictionary
    )


@pytest.mark.parametrize("name", ["transformer", "structural_transformer"])
def test_layers_that_are_dropped_do_not_always_have_attention(dictionary, tmp_path, name):
    task = translation_task(dictionary, tmp_path, coverage=1.0)
    task.build_model(Namespace(arch=name, decoder_layers=2))
    dropping = Namespace(arch=name, decoder_layers=2, decoder_layerdrop=0.2)
    with pytest.raises(UserError, match=r"--coverage .* --decoder-layerdrop 0\.2 .*: leave"):
        task.build_model(dropping)
    translation_task(dictionary, tmp_path).build_model(dropping)


def test_recurrent_decoders_drop_no_layers(dictionary, tmp_path):
    task = translation_task(dictionary, tmp_path, coverage=1.0)
    task.build_model(Namespace(arch="seq2seq", decoder_layerdrop=0.2))


def test_the_loss_is_logged_for_each_word(dictionary):
    model = build_recurrent(dictionary)
    criterion = CoverageCriterion.over(
        make_criterion(LabelSmoothedCrossEntropyCriterion, dictionary), 1.0
    )
    _, _, logged = criterion(model, make_sample(dictionary))
    with metrics.aggregate() as aggregated:
        criterion.reduce_metrics([logged, logged])
    bits = logged["coverage_loss"].item() / logged["ntokens"] / 0.6931471805599453
    assert aggregated.get_smoothed_values()["coverage_loss"] == pytest.approx(bits, abs=1e-3)
    assert "nll_loss" in aggregated.get_smoothed_values()
