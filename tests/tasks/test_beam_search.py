"""The search by few operations, compared with fairseq's own."""

from __future__ import annotations

import logging
import math
from argparse import Namespace

import pytest
import torch
from fairseq.search import BeamSearch
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.tasks.fairseq_task import FairseqTask
from fairseq.token_generation_constraints import pack_constraints
from hypothesis import given
from hypothesis import strategies as st

import fairseq_phrase
from fairseq_phrase.methods.copying.copy_scores import COPIES
from fairseq_phrase.methods.encoder_method import translation_encoders
from fairseq_phrase.tasks.beam_search import (
    BestWords,
    FastGenerator,
    FastGeneratorWithAlignment,
    log_search,
    obstacle,
)
from fairseq_phrase.testing import build_model, make_batch, make_dictionary
from tests.support.small_checkpoints import make_checkpoint, make_data
from tests.support.tree_losses import own_inputs

VARIANTS = [("transformer", "")] + [
    (name, variant)
    for name, method in translation_encoders().items()
    for variant in method.variants
]
#: Options of decoders.
DECODERS: list[tuple[str, dict]] = [
    ("transformer", {}),
    ("transformer", {"decoder_normalize_before": True, "share_decoder_input_output_embed": True}),
    ("transformer", {"decoder_normalize_before": True, "no_decoder_final_norm": True}),
    ("transformer", {"decoder_layerdrop": 0.3, "share_all_embeddings": True}),
    ("transformer", {"decoder_learned_pos": True, "layernorm_embedding": True}),
    ("transformer", {"no_token_positional_embeddings": True, "activation_fn": "gelu"}),
    ("transformer", {"decoder_input_dim": 12, "decoder_output_dim": 20, "decoder_layers": 1}),
    ("transformer", {"adaptive_softmax_cutoff": "10,20", "checkpoint_activations": True}),
    ("phrase_transformer", {}),
    ("tree_transformer", {}),
    ("tree_transformer", {"neutral_start": True, "decoder_normalize_before": True}),
    *(("relation_transformer", {"copy": kind}) for kind in COPIES),
    *(("tree_transformer", {"copy": kind}) for kind in COPIES),
]
LENGTHS = (7, 1, 4, 5, 0, 9)


def eager_to_end(model, dictionary, seed=0):
    """Make a random model end its sentences at different steps, so that they leave the batch."""
    torch.manual_seed(seed)
    if (projection := model.decoder.output_projection) is not None:
        projection.weight.data = torch.randn_like(projection.weight)
        projection.weight.data[dictionary.eos()] *= 4
    return model


def sample_of(dictionary, names_and_models, lengths=LENGTHS):
    inputs = make_batch(dictionary, lengths)
    tokens = inputs["src_tokens"]
    net_input = {"src_tokens": tokens, "src_lengths": tokens.ne(dictionary.pad()).sum(1)}
    for name, model in names_and_models:
        net_input |= own_inputs(name, model, inputs)
    return {"net_input": net_input}


def generate(models, dictionary, sample, arguments=None, *, search=None, fast=True, **options):
    """Hypotheses of this generator or of fairseq's, from one random state."""
    kind, extra = SequenceGenerator, {}
    if options.get("print_alignment"):
        kind = FastGeneratorWithAlignment if fast else SequenceGeneratorWithAlignment
        extra = {"print_alignment": options["print_alignment"]}
    elif fast:
        kind, extra = FastGenerator, {"needs_attention": True}
    task = Namespace(target_dictionary=dictionary)
    generator = FairseqTask.build_generator(task, models, Namespace(**options), kind, extra)
    if search is not None:
        generator.search = search()
    torch.manual_seed(1)
    return generator.generate(models, sample, **(arguments or {}))


def both(*arguments, **options):
    return [generate(*arguments, fast=fast, **options) for fast in (False, True)]


def check_same(expected, results, tolerance=1e-4):
    for hypotheses, others in zip(expected, results, strict=True):
        for hypothesis, other in zip(hypotheses, others, strict=True):
            assert hypothesis.keys() == other.keys()
            if not hypothesis["tokens"].equal(
                other["tokens"]
            ):  # words as probable, such as impossible
                torch.testing.assert_close(
                    other["score"], hypothesis["score"], rtol=1e-6, atol=1e-6, check_dtype=False
                )
                continue
            for name in ("score", "positional_scores", "attention"):
                torch.testing.assert_close(
                    other[name], hypothesis[name], rtol=tolerance, atol=tolerance, check_dtype=False
                )
            assert [*other["alignment"]] == [*hypothesis["alignment"]]


@pytest.mark.fast(10)
@pytest.mark.parametrize(("name", "variant"), VARIANTS, ids=[variant for _, variant in VARIANTS])
def test_every_encoder_has_the_hypotheses_of_fairseqs_search(name, variant):
    dictionary = make_dictionary(150)
    options = translation_encoders()[name].variants[variant] if variant else {}
    model, sizes = build_model(name, dictionary, **options), set()
    assert obstacle([model], {}) is None
    sample = sample_of(dictionary, [(name, model)])
    for seed in range(3):
        eager_to_end(model, dictionary, seed)
        expected, results = both([model], dictionary, sample, beam=4, max_len_b=30)
        check_same(expected, results)
        sizes |= {len(h["tokens"]) for hypotheses in expected for h in hypotheses}
    assert len(sizes) > 1


@given(st.data())
def test_options_have_the_hypotheses_of_fairseqs_search(data):
    draw = data.draw
    dictionary = make_dictionary(draw(st.sampled_from([6, 30, 61, 150])))
    kinds = draw(st.lists(st.sampled_from(DECODERS), min_size=1, max_size=2))
    if len({"adaptive_softmax_cutoff" in options for _, options in kinds}) > 1:
        kinds = kinds[:1]
    if len(dictionary) < 25:
        kinds = [
            (n, {k: v for k, v in o.items() if k != "adaptive_softmax_cutoff"}) for n, o in kinds
        ]
    models = [
        eager_to_end(build_model(name, dictionary, **options), dictionary, draw(st.integers(0, 9)))
        for name, options in kinds
    ]
    names = [name for name, _ in kinds]
    if len(set(names)) > 1:  # fairseq's encoder takes no parses
        models, names = models[:1], names[:1]
    sample = sample_of(dictionary, zip(names, models, strict=True), draw(st.permutations(LENGTHS)))
    if draw(st.booleans()):
        sample["id"] = torch.randperm(len(LENGTHS))
    options = {
        "beam": draw(st.integers(1, 7)),
        "max_len_a": draw(st.sampled_from([0, 1.5])),
        "max_len_b": draw(st.integers(2, 25)),
        "min_len": draw(st.integers(0, 2)),
        "unnormalized": draw(st.booleans()),
        "lenpen": draw(st.sampled_from([0, 1, 2.5])),
        "unkpen": draw(st.sampled_from([0, -3.0, math.inf])),
        "temperature": draw(st.sampled_from([1.0, 0.4])),
        "no_repeat_ngram_size": draw(st.sampled_from([0, 2])),
        "print_alignment": draw(st.sampled_from([None, "hard"])),
    }
    search = draw(
        st.sampled_from(
            [
                {},
                {"sampling": True},
                {"sampling": True, "sampling_topk": 3},
                {"sampling": True, "sampling_topp": 0.6},
                {"diverse_beam_groups": options["beam"]},
                {"diversity_rate": 0.5},
                {"match_source_len": True, "min_len": 1},
                {"constraints": "ordered"},
                {"prefix_allowed_tokens_fn": lambda _, tokens: [2, *range(4, 9)]},
            ]
        )
    )
    arguments: dict = {}
    if "constraints" in search:
        rows = [[torch.tensor([5, 6]), torch.tensor([7])] if n % 2 else [] for n in range(6)]
        arguments["constraints"] = pack_constraints(rows)
    elif draw(st.booleans()) and search.keys() <= {"sampling"}:
        prefix = torch.randint(4, len(dictionary), (len(LENGTHS), 3))
        lengths = torch.tensor(draw(st.lists(st.integers(0, 3), min_size=6, max_size=6)))
        prefix[torch.arange(3) >= lengths[:, None]] = dictionary.pad()
        arguments["prefix_tokens"] = prefix
    if draw(st.booleans()):
        arguments["bos_token"] = 5
    options |= search
    try:
        expected = generate(models, dictionary, sample, arguments, fast=False, **options)
    except (AssertionError, IndexError, RuntimeError, ValueError) as error:
        with pytest.raises(type(error)):
            generate(models, dictionary, sample, arguments, **options)
    else:
        check_same(expected, generate(models, dictionary, sample, arguments, **options))


def test_a_model_with_layerdrop_draws_the_words_of_fairseqs_search():
    dictionary = make_dictionary(40)
    model = build_model("transformer", dictionary, decoder_layerdrop=0.3)
    sample = sample_of(dictionary, [("transformer", model)])
    check_same(*both([model], dictionary, sample, beam=3, max_len_b=9, sampling=True))


@pytest.mark.parametrize(
    "search", [{}, {"diversity_rate": 0.5}, {"diverse_beam_groups": 5}], ids=str
)
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_hypothesis_without_a_number_leaves_the_others_of_its_sentence_as_they_are(
    number, search
):
    dictionary = make_dictionary(40)
    model = eager_to_end(build_model("transformer", dictionary), dictionary)
    model.decoder.embed_tokens.weight.data[9] = number  # as by an overflow in 16 bits
    model.decoder.output_projection.weight.data[9] *= 2  # a frequent word
    sample = sample_of(dictionary, [("transformer", model)])
    check_same(*both([model], dictionary, sample, beam=5, max_len_b=15, **search))


@pytest.mark.parametrize("beam", [63, 130])
def test_many_hypotheses_have_slots(beam):
    dictionary = make_dictionary(150)
    model = eager_to_end(build_model("transformer", dictionary), dictionary)
    sample = sample_of(dictionary, [("transformer", model)], (4, 7))
    check_same(*both([model], dictionary, sample, beam=beam, max_len_b=5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["transformer", "phrase_transformer", "tree_transformer"])
def test_scores_of_words_in_every_precision_are_as_exact_as_fairseqs(name, dtype):
    dictionary = make_dictionary(40)
    model = build_model(name, dictionary)
    sample = sample_of(dictionary, [(name, model)])
    torch.manual_seed(2)
    words = torch.randint(4, 40, (len(LENGTHS), 12))
    arguments = {"prefix_tokens": words}
    (exact, _), exact_scores = (
        both([model], dictionary, sample, arguments, beam=3, max_len_b=12),
        [],
    )
    for hypotheses in exact:
        exact_scores.append(hypotheses[0]["positional_scores"][:12])
    errors = []
    for generated in both([model.to(dtype)], dictionary, sample, arguments, beam=3, max_len_b=12):
        scores = [hypotheses[0]["positional_scores"][:12] for hypotheses in generated]
        errors.append((torch.stack(scores) - torch.stack(exact_scores)).square().mean().sqrt())
    stock, ours = errors
    assert ours <= 2 * stock + 1e-6


@given(st.data())
def test_best_words_are_those_of_fairseqs_search(data):
    dictionary = make_dictionary(data.draw(st.integers(1, 300)))
    beams, step = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 2))
    words = len(dictionary)
    beams = min(beams, words - 1)
    torch.manual_seed(data.draw(st.integers(0, 99)))
    lprobs = torch.randn(3, beams, words, dtype=torch.float64).log_softmax(-1)
    scores = torch.randn(3, beams, step)
    expected = BeamSearch(dictionary).step(step, lprobs, scores)
    for results, target in zip(
        BestWords(dictionary).step(step, lprobs, scores), expected, strict=True
    ):
        torch.testing.assert_close(results, target, check_dtype=False)
    # A hypothesis without a number, one that has been ruled out, and words without a number.
    lprobs[0, -1], lprobs[1, 0, 1:], lprobs[2, :, ::50] = math.nan, -math.inf, math.nan
    totals, indices, _ = BestWords(dictionary).step(step, lprobs, scores)
    expected = BeamSearch(dictionary).step(
        step, lprobs.nan_to_num(-math.inf, neginf=-math.inf), scores
    )
    torch.testing.assert_close(totals, expected[0])
    finite = totals.isfinite()
    assert torch.equal(indices[finite], expected[1][finite])


def test_a_task_chooses_the_search_and_logs_it(tmp_path, caplog):
    data = make_data(tmp_path / "data")
    log_search.cache_clear()
    caplog.set_level(logging.INFO)
    loaded = fairseq_phrase.load(
        make_checkpoint(tmp_path / "a.pt", data, "--arch", "transformer"), data, device="cpu"
    )

    def kind(models=loaded.models, extra=None, **options):
        return type(loaded.task.build_generator(models, Namespace(**options), None, extra))

    assert kind() is kind(beam=2) is FastGenerator
    assert kind(print_alignment="hard") is FastGeneratorWithAlignment
    assert kind(beam=51) is SequenceGenerator
    handle = loaded.models[0].decoder.layers[0].register_forward_hook(lambda *_: None)
    assert kind() is SequenceGenerator
    handle.remove()
    assert kind(extra={"lm_model": loaded.models[0]}) is SequenceGenerator
    recurrent = make_checkpoint(tmp_path / "b.pt", data, "--arch", "seq2seq")
    assert kind(fairseq_phrase.load(recurrent, data, device="cpu").models) is SequenceGenerator
    loaded.models[0].make_generation_fast_(retain_dropout=True)
    assert kind() is SequenceGenerator
    logged = [record.message for record in caplog.records if record.message.startswith("search: ")]
    assert logged == [
        "search: by few operations, with the hypotheses of fairseq's",
        "search: fairseq's own (more than 50 hypotheses of a sentence)",
        "search: fairseq's own (TransformerDecoderBase has hooks)",
        "search: fairseq's own (a language model is added)",
        "search: fairseq's own (Seq2SeqDecoder is not a known Transformer decoder)",
        "search: fairseq's own (dropout is retained)",
    ]
