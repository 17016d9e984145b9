"""The recurrent translation model: padding, incremental decoding, beams, encoders, bad options."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator
from fairseq.sequence_scorer import SequenceScorer

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.encoder_method import ENCODERS
from fairseq_phrase.testing import make_batch, random_sentence
from tests.support.recurrent_models import build_recurrent

LENGTHS = [7, 1, 4, 5]
KINDS = {
    "none": {"attention": "none"},
    "dot": {"attention": "dot", "encoder_bidirectional": True, "decoder_hidden_size": 24},
    "bilinear": {"attention": "bilinear", "cell": "gru"},
    "additive": {"attention": "additive", "decoder_layers": 3},
    "concat": {"attention": "concat"},
    "bahdanau": {
        "attention": "additive",
        "attention_time": "before",
        "encoder_bidirectional": True,
    },
    "luong": {"input_feeding": True, "attention_window": "local-p"},
    "local-m": {"attention_window": "local-m", "cell": "gru"},
    "shared embeddings": {"share_all_embeddings": True},
    "plain self-attention": {"self_attention": "plain"},
    "bilinear self-attention": {"self_attention": "bilinear", "encoder_layers": 0},
    "transformer encoder": {"encoder": "transformer", "input_feeding": True},
    "tree encoder": {"encoder": "tree_transformer", "attention_time": "before"},
}
ATTENTIONS = [*KINDS]
#: Every registered encoder, as in its paper.
KINDS |= {
    f"--encoder {name}": {"encoder": name, **next(iter(method.variants.values()))}
    for name, method in ENCODERS.items()
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def copying(copy: str) -> pytest.MarkDecorator:
    """Every kind without copying; copying reads no more of an encoder than its states and padding."""
    kinds = [*((kind, "none") for kind in KINDS), *((kind, copy) for kind in ATTENTIONS)]
    return pytest.mark.parametrize(("kind", "copy"), kinds)


def prepared(dictionary, lengths=LENGTHS, **options):
    inputs = make_batch(dictionary, lengths, **options)
    inputs["src_lengths"] = inputs["src_tokens"].ne(dictionary.pad()).sum(1)
    return inputs


def targets(dictionary, rows=4, length=6):
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(dictionary.nspecial, len(dictionary), (rows, length), generator=generator)
    words[:, 0] = dictionary.eos()
    return words


def alone(dictionary, index):
    sentence = random_sentence(dictionary, LENGTHS[index], seed=7 + index)
    inputs = {name: values.unsqueeze(0) for name, values in sentence.items()}
    return {**inputs, "src_lengths": torch.tensor([LENGTHS[index] + 1])}


@every_kind
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_a_sentence_in_a_padded_batch_is_translated_as_if_alone(dictionary, kind, left):
    model = build_recurrent(dictionary, **KINDS[kind])
    previous = targets(dictionary)
    together, extra = model(**prepared(dictionary, left=left, extra=2), prev_output_tokens=previous)
    for index in range(len(LENGTHS)):
        logits, own_extra = model(
            **alone(dictionary, index), prev_output_tokens=previous[index : index + 1]
        )
        torch.testing.assert_close(together[index], logits[0], rtol=1e-9, atol=1e-9)
        if kind != "none":
            weights = extra["attn"][0][index]
            real = weights[:, -LENGTHS[index] - 1 :] if left else weights[:, : LENGTHS[index] + 1]
            torch.testing.assert_close(real, own_extra["attn"][0][0], rtol=1e-9, atol=1e-9)


@every_kind
def test_decoding_word_by_word_is_that_of_the_whole_target(dictionary, kind):
    model = build_recurrent(dictionary, **KINDS[kind])
    inputs, previous = prepared(dictionary), targets(dictionary)
    expected, extra_of_all = model(**inputs, prev_output_tokens=previous)
    encoded = model.encoder(**inputs)
    state: dict = {}
    for step in range(previous.size(1)):
        logits, extra = model.decoder(previous[:, : step + 1], encoded, incremental_state=state)
        torch.testing.assert_close(logits[:, -1], expected[:, step], rtol=1e-9, atol=1e-9)
        if kind != "none":
            weights = extra_of_all["attn"][0][:, step]
            torch.testing.assert_close(extra["attn"][0][:, -1], weights, rtol=1e-9, atol=1e-9)


@every_kind
def test_reordered_beams_go_on_from_their_own_past(dictionary, kind):
    model = build_recurrent(dictionary, **KINDS[kind])
    inputs, previous = prepared(dictionary), targets(dictionary)
    # As beam search does: two rows for each sentence, which then change places.
    twice = torch.arange(len(LENGTHS)).repeat_interleave(2)
    encoded = model.encoder.reorder_encoder_out(model.encoder(**inputs), twice)
    rows = targets(dictionary, len(twice))
    state: dict = {}
    for step in range(3):
        model.decoder(rows[:, : step + 1], encoded, incremental_state=state)
    order = torch.tensor([1, 1, 2, 3, 5, 4, 6, 6])
    model.decoder.reorder_incremental_state_scripting(state, order)
    encoded = model.encoder.reorder_encoder_out(encoded, order)
    logits, _ = model.decoder(rows[order][:, :4], encoded, incremental_state=state)
    sentences = {name: values[twice[order]] for name, values in inputs.items()}
    expected, _ = model(**sentences, prev_output_tokens=rows[order][:, :4])
    torch.testing.assert_close(logits[:, -1], expected[:, -1], rtol=1e-9, atol=1e-9)
    assert previous.shape[0] == len(LENGTHS)


@copying("joint")
def test_beam_search_over_a_batch_is_that_of_single_sentences(dictionary, kind, copy):
    model = build_recurrent(dictionary, copy=copy, **KINDS[kind])
    generator = SequenceGenerator([model], dictionary, beam_size=3, max_len_b=9)

    def generate(inputs):
        generated = generator.generate([model], {"net_input": inputs})
        return [hypotheses[0]["tokens"].tolist() for hypotheses in generated]

    single = [generate(alone(dictionary, index))[0] for index in range(len(LENGTHS))]
    assert generate(prepared(dictionary)) == single


@copying("pointer")
def test_every_parameter_is_trained(dictionary, kind, copy):
    model = build_recurrent(dictionary, copy=copy, **KINDS[kind]).train()
    scores, _ = model(**prepared(dictionary), prev_output_tokens=targets(dictionary))
    scores.log_softmax(-1).square().sum().backward()
    unused = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not [name for name in unused if not name.startswith("encoder.layers")]
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_an_ensemble_with_a_transformer_averages_their_probabilities(dictionary):
    models = [build_recurrent(dictionary, **KINDS[kind]) for kind in ("luong", "none", "dot")]
    inputs = prepared(dictionary)
    ensemble = EnsembleModel(models)
    encoded = ensemble.forward_encoder({k: v for k, v in inputs.items() if k != "src_lengths"})
    previous = targets(dictionary)[:, :1]
    log_probs, attention = ensemble.forward_decoder(previous, encoded, [{} for _ in models])
    single = [
        model.decoder(previous, encoder_out=encoder_out)[0][:, -1].softmax(-1)
        for model, encoder_out in zip(models, encoded, strict=True)
    ]
    torch.testing.assert_close(
        log_probs.double().exp(), torch.stack(single).mean(0), rtol=1e-4, atol=1e-7
    )
    assert attention.shape == (len(LENGTHS), inputs["src_tokens"].size(1))


def test_an_ensemble_scores_references_also_where_a_later_model_does_not_attend(dictionary):
    models = [build_recurrent(dictionary, **KINDS[kind]) for kind in ("luong", "none", "dot")]
    target = targets(dictionary)
    inputs = {**prepared(dictionary), "prev_output_tokens": target}
    sample = {"net_input": inputs, "target": target.roll(-1, 1)}
    scored = SequenceScorer(dictionary).generate(models, sample)
    scores = torch.stack([model(**inputs)[0].softmax(-1) for model in models]).mean(0).log()
    expected = scores.gather(-1, sample["target"].unsqueeze(-1)).squeeze(-1)
    for row, (hypothesis,) in enumerate(scored):
        torch.testing.assert_close(
            hypothesis["positional_scores"].double(), expected[row], rtol=1e-5, atol=1e-5
        )


def test_references_are_scored_as_generated(dictionary):
    model = build_recurrent(dictionary, **KINDS["luong"])
    inputs, target = prepared(dictionary), targets(dictionary)
    sample = {"net_input": {**inputs, "prev_output_tokens": target}, "target": target.roll(-1, 1)}
    scored = SequenceScorer(dictionary).generate([model], sample)
    scores, _ = model(**sample["net_input"])
    expected = scores.log_softmax(-1).gather(-1, sample["target"].unsqueeze(-1)).squeeze(-1)
    for row, (hypothesis,) in enumerate(scored):
        torch.testing.assert_close(
            hypothesis["positional_scores"].double(), expected[row], rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["luong", "bahdanau", "none"])
def test_half_precision_keeps_to_the_result(dictionary, kind, dtype):
    model = build_recurrent(dictionary, **KINDS[kind])
    inputs, previous = prepared(dictionary), targets(dictionary)
    exact, _ = model(**inputs, prev_output_tokens=previous)
    half, _ = model.to(dtype)(**inputs, prev_output_tokens=previous)
    assert half.dtype == dtype
    assert (half.double() - exact).abs().mean() < 0.05 * exact.abs().mean()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"attention": "dot", "encoder_bidirectional": True},
            r"--attention dot needs .* have 24 \(2 × --encoder-hidden-size 12\) and the decoder's "
            "10: set --decoder-hidden-size 24",
        ),
        (
            {"attention": "dot", "encoder": "transformer"},
            r"have 16 \(--encoder-embed-dim 16\) .* set --decoder-hidden-size 16",
        ),
        ({"attention": "none", "input_feeding": True}, "--input-feeding needs attention"),
        ({"attention": "none", "attention_window": "local-m"}, "--attention-window local-m needs"),
        ({"attention_time": "before", "input_feeding": True}, "needs --attention-time after"),
        (
            {"encoder": "transformer", "encoder_bidirectional": True},
            "needs --encoder recurrent",
        ),
        ({"encoder": "transformer", "self_attention": "plain"}, "--self-attention plain needs"),
        (
            {"attention": "none", "self_attention": "plain"},
            "which nothing reads with --attention none",
        ),
        ({"encoder": "cnn"}, "--encoder cnn: expected one of"),
        ({"encoder_layers": 0}, "--encoder-layers 0 needs --self-attention"),
        ({"decoder_layers": 0}, "--decoder-layers 0: expected at least 1"),
        (
            {"self_attention": "bilinear", "encoder_attention_heads": 5},
            "--encoder-attention-heads 5 does not divide the width 12",
        ),
        ({"adaptive_softmax_cutoff": "5"}, "one softmax over all words"),
        (
            {"attention": "none", "share_all_embeddings": True},
            "width 16 cannot be the output layer of states of width 10: set --decoder-embed-dim 10, or "
            "leave --share-all-embeddings out",
        ),
        ({"share_all_embeddings": True, "decoder_embed_dim": 12}, "needs one width"),
    ],
)
def test_options_that_contradict_are_named(dictionary, options, message):
    with pytest.raises(UserError, match=message):
        build_recurrent(dictionary, **options)


@pytest.mark.parametrize(
    "options", [{"encoder_layers": 0}, {"copy": "joint"}], ids=["mean", "copy"]
)
def test_without_attention_something_else_may_read_self_attention(dictionary, options):
    options = {"attention": "none", "self_attention": "bilinear", **options}
    model = build_recurrent(dictionary, **options).train()
    scores, _ = model(**prepared(dictionary), prev_output_tokens=targets(dictionary))
    scores.log_softmax(-1).square().sum().backward()
    assert model.encoder.self_attention.weight.grad.any()


def test_an_encoder_that_needs_parses_asks_the_task(dictionary):
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    cfg = ARCH_MODEL_REGISTRY["seq2seq"].__dict__["__dataclass"](encoder="tree_transformer")
    with pytest.raises(UserError, match=r"needs the source's .*: use --task syntax_translation"):
        ARCH_MODEL_REGISTRY["seq2seq"].build_model(cfg, task)


def test_presets_are_architectures():
    assert {"seq2seq", "seq2seq_tiny", "seq2seq_luong_wmt_en_de"} <= set(ARCH_MODEL_REGISTRY)
    assert "recurrent" not in ENCODERS
