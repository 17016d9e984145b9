"""``--arch pretrainer`` with every registered encoder."""

from __future__ import annotations

import pytest
import torch
from fairseq.models import MODEL_REGISTRY

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.encoder_method import ENCODERS
from fairseq_phrase.testing import make_batch, make_dictionary, randomized
from tests.support.named_models import make_task, options

DICTIONARY = make_dictionary()
VARIANTS = [
    (name, variant)
    for name, method in ENCODERS.items()
    for variant in method.variants
    if method.encoder.__module__.startswith("fairseq_phrase.")
    and name != "huggingface"  # it embeds tokens itself; tests/models/test_huggingface_encoder.py
]
every_variant = pytest.mark.parametrize(
    ("name", "variant"), VARIANTS, ids=[variant for _, variant in VARIANTS]
)
FIRST = [variant for variant in VARIANTS if variant[1] == next(iter(ENCODERS[variant[0]].variants))]
every_encoder = pytest.mark.parametrize(
    ("name", "variant"), FIRST, ids=[variant for _, variant in FIRST]
)


def build(name="transformer", dictionary=DICTIONARY, **changed):
    torch.manual_seed(0)
    required = {}
    task = make_task(
        dictionary, require_objective=lambda objective: required.update(vars(objective))
    )
    cfg = options("pretrainer", encoder=name, **changed)
    model = randomized(MODEL_REGISTRY["pretrainer"].build_model(cfg, task))
    return model, required


def inputs(lengths=(5, 3)):
    return make_batch(DICTIONARY, list(lengths))


@every_encoder
def test_every_encoder_predicts_masked_tokens(name, variant):
    model, required = build(name, **ENCODERS[name].variants[variant])
    assert required["name"] == "masked"
    batch = inputs()
    tokens = batch["src_tokens"]
    masked = torch.zeros_like(tokens, dtype=torch.bool)
    masked[0, 1:3] = masked[1, 0] = True
    everything, _ = model(**batch)
    assert everything.shape == (*tokens.shape, len(DICTIONARY))
    logits, _ = model(**batch, masked_tokens=masked)
    torch.testing.assert_close(logits, everything[masked])
    logits.logsumexp(-1).sum().backward()
    gradient = model.encoder.embed_tokens.weight.grad
    # The output is tied, so every entry has a gradient.
    assert gradient.isfinite().all()
    assert gradient[DICTIONARY.nspecial :].ne(0).any(1).all()


@every_variant
def test_every_encoder_reads_pairs_of_segments(name, variant):
    model, required = build(name, next_sentence=True, **ENCODERS[name].variants[variant])
    assert required["next_sentence"]
    batch = inputs((6, 4))
    # <s>, the first segment, </s>, the second one, </s>
    tokens, words = batch["src_tokens"], batch["src_words"]
    count = len(tokens)
    begin = torch.full((count, 1), DICTIONARY.bos())
    middle = torch.full((count, 1), DICTIONARY.eos())
    none = torch.full((count, 1), -1)
    batch["src_tokens"] = torch.cat([begin, tokens[:, :2], middle, tokens[:, 2:]], 1)
    # A separator belongs to a word.
    batch["src_words"] = torch.cat([none, words[:, :2], words[:, 1:2], words[:, 2:]], 1)
    segments = (torch.arange(batch["src_tokens"].size(1)) > 3).long().expand(count, -1)
    logits, extra = model(**batch, segments=segments)
    assert extra["next_sentence"].shape == (count, 2)
    assert logits.isfinite().all()
    other_logits, _ = model(**batch, segments=torch.zeros_like(segments))
    assert not torch.allclose(logits, other_logits)


def test_the_output_is_tied_to_the_embeddings():
    for objective in ("masked", "causal"):
        model, _ = build(objective=objective)
        shapes = [tuple(parameter.shape) for parameter in model.parameters()]
        assert shapes.count((len(DICTIONARY), 16)) == 1


def test_a_causal_model_predicts_from_what_comes_before():
    model, _ = build("phrase_transformer", objective="causal", phrase_init="mean")
    batch = inputs((6,))
    changed = {**batch, "src_tokens": batch["src_tokens"].clone()}
    changed["src_tokens"][0, 4] = 7
    first, second = model(**batch)[0], model(**changed)[0]
    torch.testing.assert_close(first[:, :4], second[:, :4], rtol=0, atol=0)
    assert not torch.allclose(first[:, 4:], second[:, 4:])


@pytest.mark.parametrize("name", ["tree_transformer", "lstm", "han"])
def test_an_encoder_that_cannot_be_masked_causally_is_refused(name):
    with pytest.raises(UserError, match=f"the encoder {name} cannot be masked causally") as error:
        build(name, objective="causal")
    assert "transformer, xl_transformer, structural_transformer with" in str(error.value)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"context": 3}, "--context: only --objective causal has it"),
        ({"direction": "backward"}, "--direction backward: only --objective causal"),
        ({"objective": "causal", "context": -1}, "--context -1"),
        ({"objective": "causal", "next_sentence": True}, "--next-sentence: use --objective masked"),
        ({"encoder": "no_such"}, "--encoder no_such: expected one of"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(changed, message):
    with pytest.raises(UserError, match=message):
        build(**{"name": changed.pop("encoder", "transformer"), **changed})


def test_another_task_is_refused():
    with pytest.raises(UserError, match="use --task syntax_pretraining"):
        MODEL_REGISTRY["pretrainer"].build_model(options("pretrainer"), make_task(DICTIONARY))
