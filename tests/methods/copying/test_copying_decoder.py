"""Copying decoders: recurrent and Transformer, with every encoder; beams, ensembles, references."""

from __future__ import annotations

import itertools
from argparse import Namespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.copying.copy_scores import COPIES
from fairseq_phrase.methods.copying.copying_decoder import source_words
from fairseq_phrase.methods.encoder_method import translation_encoders
from fairseq_phrase.testing import build_model, make_batch, random_sentence
from tests.support.recurrent_models import build_recurrent
from tests.support.stores import write_arrays
from tests.twins import copying as twin

LENGTHS = [7, 1, 4, 5]
ENCODERS = [*translation_encoders()]
NAMES = ["seq2seq", *ENCODERS]
every_model = pytest.mark.parametrize(
    ("name", "kind"), [*itertools.product(NAMES[:2], COPIES), *((n, "joint") for n in NAMES[2:])]
)


def build(name, dictionary, kind, **options):
    if name == "seq2seq":
        return build_recurrent(dictionary, copy=kind, **options)
    first = dict(next(iter(translation_encoders()[name].variants.values())))
    return build_model(name, dictionary, copy=kind, **first, **options)


def prepared(dictionary, **options):
    inputs = make_batch(dictionary, LENGTHS, **options)
    # A word twice in its sentence.
    inputs["src_tokens"][0, 2] = inputs["src_tokens"][0, 4] if not options else 5
    inputs["src_lengths"] = inputs["src_tokens"].ne(dictionary.pad()).sum(1)
    return inputs


def targets(dictionary, rows=4, length=6):
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(dictionary.nspecial, len(dictionary), (rows, length), generator=generator)
    words[:, 0] = dictionary.eos()
    return words


@every_model
def test_probabilities_sum_to_one_and_train_everything(dictionary, name, kind):
    model = build(name, dictionary, kind).train()
    scores, _ = model(**prepared(dictionary), prev_output_tokens=targets(dictionary))
    assert scores.dtype == torch.float64
    probabilities = model.get_normalized_probs((scores, None), log_probs=False)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(4, 6))
    scores.log_softmax(-1)[..., 4:].square().sum().backward()
    for parameter_name, parameter in model.decoder.copy_scores.named_parameters():
        assert parameter.grad.any(), parameter_name
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    # Training by several processes waits for every gradient, also for one of zero.
    assert not [name for name, p in model.decoder.named_parameters() if p.grad is None]


@pytest.mark.parametrize("name", NAMES[:2])
def test_joint_copying_is_the_enumeration_of_the_models_own_scores(dictionary, name):
    model = build(name, dictionary, "joint")
    inputs, previous = prepared(dictionary), targets(dictionary)
    encoded = model.encoder(**inputs)
    features, _ = model.decoder(previous, encoder_out=encoded, features_only=True)
    words = model.decoder.output_layer(features)
    scores, _ = model.decoder(previous, encoder_out=encoded)
    for index, length in enumerate(inputs["src_lengths"].tolist()):
        keys = encoded["encoder_out"][0][:length, index]
        positions = features[index] @ (keys @ model.decoder.copy_scores.weight).T
        source = inputs["src_tokens"][index, :length].tolist()
        for step in range(previous.size(1)):
            expected = twin.joint(words[index, step], positions[step], source)
            torch.testing.assert_close(scores[index, step].softmax(-1), expected)


@pytest.mark.parametrize("name", ["seq2seq", "tree_transformer"])
def test_a_gate_mixes_and_reads_tokens_only_where_constituents_are_attended_to(dictionary, name):
    options = {"encoder": "tree_transformer"} if name == "seq2seq" else {}
    model = build(name, dictionary, "gate", **options)
    inputs, previous = prepared(dictionary), targets(dictionary)
    encoded = model.encoder(**inputs)
    features, extra = model.decoder(previous, encoder_out=encoded, features_only=True)
    words = model.decoder.output_layer(features)
    scores, _ = model.decoder(previous, encoder_out=encoded)
    for index, length in enumerate(inputs["src_lengths"].tolist()):
        source = inputs["src_tokens"][index, :length].tolist()
        states = encoded["encoder_out"][0][:length, index]
        for step in range(previous.size(1)):
            weights = extra["attn"][0][index, step, :length]
            # Constituents have the rest. One subword has no constituent.
            assert length == 2 or weights.sum() < 0.99
            inputs_of_gate = torch.cat([weights @ states, features[index, step]])
            p = model.decoder.copy_scores.gate(inputs_of_gate).sigmoid()
            expected = twin.gate(words[index, step], weights / weights.sum(), p[0], source)
            torch.testing.assert_close(scores[index, step].softmax(-1), expected)


@every_model
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_a_sentence_in_a_padded_batch_copies_as_if_alone(dictionary, name, kind, left):
    model = build(name, dictionary, kind)
    previous = targets(dictionary)
    inputs = make_batch(dictionary, LENGTHS, left=left, extra=2)
    inputs["src_lengths"] = inputs["src_tokens"].ne(dictionary.pad()).sum(1)
    together, _ = model(**inputs, prev_output_tokens=previous)
    for index, length in enumerate(LENGTHS):
        sentence = random_sentence(dictionary, length, seed=7 + index)
        alone = {key: values.unsqueeze(0) for key, values in sentence.items()}
        alone["src_lengths"] = torch.tensor([length + 1])
        logits, _ = model(**alone, prev_output_tokens=previous[index : index + 1])
        torch.testing.assert_close(
            together[index].softmax(-1), logits[0].softmax(-1), rtol=1e-5, atol=1e-7
        )


@every_model
def test_beam_search_is_that_of_whole_targets(dictionary, name, kind):
    """The scores of hypotheses, found word by word in reordered beams, are those of their targets."""
    model = build(name, dictionary, kind)
    inputs = prepared(dictionary)
    generator = SequenceGenerator([model], dictionary, beam_size=4, max_len_b=5)
    generated = generator.generate([model], {"net_input": inputs})
    for index, hypotheses in enumerate(generated):
        for hypothesis in hypotheses[:2]:
            tokens = hypothesis["tokens"]
            previous = tokens.roll(1).unsqueeze(0)
            sentence = {key: values[index : index + 1] for key, values in inputs.items()}
            scores, _ = model(**sentence, prev_output_tokens=previous)
            expected = scores[0].log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
            if kind == "pointer" and expected.min() < -90:
                continue
            torch.testing.assert_close(
                hypothesis["positional_scores"].double(), expected, rtol=1e-4, atol=1e-4
            )


def test_an_ensemble_mixes_models_that_copy_and_do_not(dictionary):
    models = [
        build("seq2seq", dictionary, "joint"),
        build("phrase_transformer", dictionary, "gate"),
        build("tree_transformer", dictionary, "pointer"),
        build_recurrent(dictionary),
    ]
    inputs, previous = prepared(dictionary), targets(dictionary)[:, :1]
    ensemble = EnsembleModel(models)
    encoded = [model.encoder(**inputs) for model in models]
    log_probabilities, _ = ensemble.forward_decoder(previous, encoded, [{} for _ in models])
    single = [
        model.decoder(previous, encoder_out=encoder_out)[0][:, -1].softmax(-1)
        for model, encoder_out in zip(models, encoded, strict=True)
    ]
    torch.testing.assert_close(
        log_probabilities.double().exp(), torch.stack(single).mean(0), rtol=1e-4, atol=1e-7
    )


@pytest.mark.parametrize("softmax_batch", [None, 5])
@every_model
def test_references_are_scored_with_their_copies(dictionary, name, kind, softmax_batch):
    model = build(name, dictionary, kind)
    inputs, previous = prepared(dictionary), targets(dictionary)
    target = previous.roll(-1, 1)
    sample = {"net_input": {**inputs, "prev_output_tokens": previous}, "target": target}
    scored = SequenceScorer(dictionary, softmax_batch=softmax_batch).generate([model], sample)
    scores, _ = model(**sample["net_input"])
    expected = scores.log_softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    for row, (hypothesis,) in enumerate(scored):
        torch.testing.assert_close(
            hypothesis["positional_scores"].double(), expected[row], rtol=1e-4, atol=1e-4
        )


def test_words_that_the_target_lacks_are_its_unknown_word():
    source, target = Dictionary(), Dictionary()
    for word in ("a", "b", "c"):
        source.add_symbol(word)
    for word in ("c", "a"):
        target.add_symbol(word)
    indices = source_words(source, target).tolist()
    assert [target[index] for index in indices] == [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        "a",
        "<unk>",
        "c",
    ]


@pytest.mark.parametrize("split", ["train.de-en", "train.en-de", "train1.de-en", "train1.en-de"])
def test_fairseqs_own_task_finds_unknown_words_in_every_part_of_the_training_data(
    dictionary, tmp_path, split
):
    def write(name, word):
        for language in ("de", "en"):
            write_arrays(tmp_path / f"{name}.{language}", [[word, dictionary.eos()]])

    cfg = TranslationConfig(data=str(tmp_path), source_lang="de", target_lang="en")
    cfg.train_subset, cfg.dataset_impl = "train", None
    task = TranslationTask(cfg, dictionary, dictionary)
    arch = Namespace(arch="seq2seq", copy="joint")
    write("train.de-en", dictionary.nspecial)
    write("valid.de-en", dictionary.unk())
    task.build_model(arch)
    if split == "train.en-de":
        for path in tmp_path.glob("train.*"):
            path.unlink()
    write(split, dictionary.unk())
    with pytest.raises(UserError, match=rf"{split}\.en has an unknown word"):
        task.build_model(arch)


def test_a_checkpoint_has_no_table_of_words(dictionary):
    model = build("seq2seq", dictionary, "joint")
    assert not [name for name in model.state_dict() if "source_words" in name]
    model.load_state_dict(build("seq2seq", dictionary, "joint").state_dict())


@pytest.mark.parametrize(
    ("name", "kind", "options", "message"),
    [
        ("seq2seq", "gate", {"attention": "none"}, "--copy gate copies what the decoder attends to"),
        ("phrase_transformer", "gate", {"no_cross_attention": True}, "but it does not attend"),
        (
            "phrase_transformer", "joint", {"adaptive_softmax_cutoff": "5"},
            "leave --adaptive-softmax-cutoff out",
        ),
        (
            "phrase_transformer", "gate", {"decoder_layerdrop": 0.2},
            "--copy gate .* with --decoder-layerdrop 0.2 .*: leave --decoder-layerdrop out",
        ),
    ],
)  # fmt: skip
def test_options_that_do_not_go_with_copying_are_named(dictionary, name, kind, options, message):
    with pytest.raises(UserError, match=message):
        build(name, dictionary, kind, **options)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("phrase_transformer", "joint"), ("phrase_transformer", "pointer"), ("seq2seq", "gate")],
)
def test_where_no_layers_attention_is_needed_layers_may_be_dropped(dictionary, name, kind):
    model = build(name, dictionary, kind, decoder_layerdrop=0.999).train()
    scores, _ = model(**prepared(dictionary), prev_output_tokens=targets(dictionary))
    assert scores.isfinite().all()


def test_without_attention_words_are_still_copied_from_positions(dictionary):
    model = build("seq2seq", dictionary, "joint", attention="none")
    scores, extra = model(**prepared(dictionary), prev_output_tokens=targets(dictionary))
    assert extra["attn"] is None
    assert scores.isfinite().all()
