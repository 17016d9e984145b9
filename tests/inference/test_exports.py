"""Models in CTranslate2's format: the scores that this package computes, or a refusal by name."""

from __future__ import annotations

import math

import ctranslate2
import pytest

import fairseq_phrase
from fairseq_phrase.cli.export import main as export
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.exports import export_obstacle, save_ctranslate2
from tests.support.small_checkpoints import make_checkpoint, make_data

PLAIN = ["--arch", "transformer"]
STRUCTURAL = ["--arch", "structural_transformer"]
RELATIVE = [*STRUCTURAL, "--no-sequential-absolute", "--sequential-relative"]
NORMALIZED = ["--encoder-normalize-before", "--decoder-normalize-before"]
EXPORTED = {
    "fairseq's Transformer": PLAIN,
    "without options": [*STRUCTURAL, *NORMALIZED],
    "relations without biases": ["--arch", "relation_transformer", "--relation-bias", "none"],
    "relative positions": RELATIVE,
    "a small clip": [*RELATIVE, "--relative-clip", "2"],
    "only keys": [*RELATIVE, "--relative-keys-only", *NORMALIZED],
    "normalized": [*RELATIVE, "--encoder-normalize-before", "--layernorm-embedding"],
    "factors, added": [*PLAIN, "--source-factors", "tags,subwords"],
    "relative positions and factors": [*RELATIVE, "--source-factors", "tags,deprels,subwords"],
}
REFUSED = {
    "the encoder relation_transformer": ["--arch", "relation_transformer"],
    "the encoder phrase_transformer": ["--arch", "phrase_transformer"],
    "--structural-absolute, positions in a tree": [*STRUCTURAL, "--structural-absolute"],
    "--structural-relative, positions in a tree": [*RELATIVE, "--structural-relative"],
    "--sequential-relative without --no-sequential-absolute, and CTranslate2 has either": [
        *STRUCTURAL, "--sequential-relative",
    ],
    "--no-sequential-absolute without --sequential-relative": [
        *STRUCTURAL, "--no-sequential-absolute",
    ],
    "--attention-gate": [*STRUCTURAL, "--attention-gate"],
    "--copy gate": [*RELATIVE, "--copy", "gate"],
    "--no-token-positional-embeddings": [*RELATIVE, "--no-token-positional-embeddings"],
    "a Seq2SeqModel, which is not fairseq's Transformer": ["--arch", "seq2seq"],
}  # fmt: skip
LINES = ["der Hund schläft der Hund schläft der Hund", "Hund", "the dog sleeps unknown"]
TARGETS = ["the dog sleeps", "dog dog dog dog dog dog der", "sleeps"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("small") / "data")


def loaded(data, tmp_path, options):
    path = make_checkpoint(tmp_path / "a.pt", data, *options)
    return fairseq_phrase.load(path, data, device="cpu")


@pytest.mark.parametrize("title", EXPORTED)
def test_ctranslate2_computes_the_scores_of_this_package(title, data, tmp_path):
    translator = loaded(data, tmp_path, EXPORTED[title])
    assert export_obstacle(translator.models[0]) is None
    save_ctranslate2(translator.models[0], translator.task, tmp_path)
    converted = ctranslate2.Translator(str(tmp_path), device="cpu")
    scored = converted.score_batch(translator.tokens(LINES), [target.split() for target in TARGETS])
    for line, target, score in zip(LINES, TARGETS, scored, strict=True):
        mean = sum(score.log_probs) / len(score.log_probs) / math.log(2)
        assert translator.score(line, target) == pytest.approx(mean, abs=1e-5)


def test_tokens_have_their_labels_in_the_order_of_the_factors(data, tmp_path):
    translator = loaded(data, tmp_path, EXPORTED["relative positions and factors"])
    labelled = ["der￨DET￨det￨O", "Hund￨NOUN￨nsubj￨O", "<unk>￨VERB￨root￨O"]
    assert translator.tokens(["der Hund bellt", "der"]) == [labelled, ["der￨DET￨det￨O"]]
    assert translator.texts([["the", "dog"], []]) == ["the dog", ""]


def test_a_label_with_ctranslate2s_separator_is_refused(data, tmp_path):
    translator = loaded(data, tmp_path, EXPORTED["factors, added"])
    symbols = translator.task.label_dictionary("tags").symbols
    symbols[symbols.index("DET")] = "D￨T"
    with pytest.raises(UserError, match="'D￨T' contains ￨"):
        translator.tokens(["der"])


@pytest.mark.parametrize("reason", REFUSED)
def test_a_part_that_ctranslate2_lacks_is_named(reason, data, tmp_path):
    reason_given = export_obstacle(loaded(data, tmp_path, REFUSED[reason]).models[0])
    assert reason_given is not None
    assert reason_given.startswith(reason)


def test_the_command_refuses_a_model_that_ctranslate2_lacks(data, tmp_path, capsys):
    path = make_checkpoint(tmp_path / "a.pt", data, "--arch", "relation_transformer_tiny")
    with pytest.raises(SystemExit):
        export([str(path), str(data), str(tmp_path / "out"), "--to", "ctranslate2"])
    assert (
        f"CTranslate2 cannot run {path}: it has the encoder relation_transformer; use a bundle or --to "
        "transformers"
    ) in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
