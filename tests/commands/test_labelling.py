"""Labelling by fairseq's commands: train, validate, resume, average, hydra, low precision."""

from __future__ import annotations

import io
import re
import shutil
import sys
from contextlib import nullcontext

import pytest
import torch
import yaml
from fairseq_cli import train as train_command
from fairseq_cli import validate as validate_command

from fairseq_phrase.cli.average import main as average
from fairseq_phrase.cli.label import main as label_command
from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.encoder_method import ENCODERS
from fairseq_phrase.text import read_lines
from tests.support.attaching import write_lines
from tests.support.commands import run
from tests.support.labelled_corpora import make_data, write_corpus
from tests.support.repository import REPOSITORY

#: Each encoder of this package with its first row: its paper's form.
FIRST_ROWS = {
    name: next(iter(method.variants))
    for name, method in ENCODERS.items()
    if method.encoder.__module__.startswith("fairseq_phrase.")
}
TREES = ["--parser", "conllu", "--constituents", "from-dependencies"]
USER = ["--user-dir", "fairseq_phrase", "--task", "syntax_labelling"]
MODEL = [
    *USER, "--arch", "labeller",
    "--encoder-layers", "1", "--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "32",
    "--encoder-attention-heads", "2",
]  # fmt: skip
TRAINING = [
    "--optimizer", "adam", "--lr", "0.01", "--seed", "1", "--num-workers", "0", "--max-tokens", "400",
    "--no-progress-bar", "--log-format", "simple", "--log-interval", "1", "--cpu",
]  # fmt: skip
ACCURACY = [
    "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", "--report-accuracy",
    "--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric",
]  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("labelled") / "corpus")


@pytest.fixture(scope="module")
def words(corpus, tmp_path_factory):
    """Labels of whole words, with gold trees."""
    return make_data(
        corpus, tmp_path_factory.mktemp("words") / "data", "word", "--bpe", "none", *TREES
    )


@pytest.fixture(scope="module")
def sentences(corpus, tmp_path_factory):
    """Labels of sentences of subwords, with gold trees."""
    out = tmp_path_factory.mktemp("sentences") / "data"
    return make_data(corpus, out, "sentence", "--vocab-size", "36", *TREES)


def train(command, data, save, updates, *arguments, criterion=("--criterion", "cross_entropy")):
    return command(
        train_command, data, *MODEL, *TRAINING, *criterion, "--save-dir", save,
        "--max-update", updates, *arguments,
    )  # fmt: skip


@pytest.mark.parametrize("name", list(FIRST_ROWS))
def test_every_encoder_is_trained(words, tmp_path, command, name):
    flags = ENCODERS[name].option_flags(FIRST_ROWS[name])
    log = train(
        command, words, tmp_path, 1, "--encoder", name, *flags, "--no-save", "--disable-validation"
    )
    assert "num_updates" in log
    assert re.search(r"loss=[\d.]+|loss [\d.]+", log)


@pytest.fixture(scope="module")
def tagger(words, tmp_path_factory):
    """A tagger's checkpoints, and what training printed."""
    save = tmp_path_factory.mktemp("tagger")
    log = run(
        "fairseq-train", words, *MODEL, *TRAINING, *ACCURACY, "--save-dir", save,
        "--max-epoch", "8", "--encoder", "structural_transformer", "--structural-absolute",
    )  # fmt: skip
    return save, log


def test_a_tagger_learns_its_labels_and_is_validated(words, tagger, command):
    save, log = tagger
    assert float(re.findall(r"valid on 'valid' subset.* accuracy ([\d.]+)", log)[-1]) > 95
    printed = command(
        validate_command, words, *USER, "--path",
        save / "checkpoint_best.pt", "--valid-subset", "test", "--max-tokens", "400", "--cpu",
    )  # fmt: skip
    assert re.search(r"test.*loss [\d.]+", printed)


def test_a_resumed_training_ends_where_an_uninterrupted_one_does(sentences, tmp_path, command):
    def go(folder, updates):
        return train(command, sentences, tmp_path / folder, updates, "--pooling", "attention",
                     "--encoder", "tree_transformer", "--disable-validation")  # fmt: skip

    go("once", 4)
    go("twice", 2)
    assert "Loaded checkpoint" in go("twice", 4)
    once, twice = (
        torch.load(tmp_path / folder / "checkpoint_last.pt", weights_only=True)["model"]
        for folder in ("once", "twice")
    )
    assert not any(name.startswith("decoder") for name in once)
    for parameter, value in once.items():
        torch.testing.assert_close(twice[parameter], value, rtol=1e-5, atol=1e-7, msg=parameter)


def test_hydra_trains_from_a_file(words, tmp_path):
    config = yaml.safe_load((REPOSITORY / "configs" / "labelling.yaml").read_text())
    config["common"]["user_dir"] = str(REPOSITORY / "fairseq_phrase")
    config["common"]["cpu"] = True
    config["task"]["data"] = str(words)
    config["task"]["target_lang"] = "tag"
    config["model"] |= {
        "encoder": "relation_transformer", "relation_bias": "both", "encoder_layers": 1,
        "encoder_embed_dim": 12, "encoder_ffn_embed_dim": 8, "encoder_attention_heads": 2,
    }  # fmt: skip
    config["optimization"]["max_update"] = 1
    config["checkpoint"]["save_dir"] = str(tmp_path / "out")
    (tmp_path / "mine.yaml").write_text(f"# @package _group_\n{yaml.safe_dump(config)}")
    run(
        "fairseq-hydra-train", "--config-dir", tmp_path, "--config-name", "mine",
        f"hydra.run.dir={tmp_path}",
    )  # fmt: skip
    saved = torch.load(tmp_path / "out" / "checkpoint_last.pt", weights_only=True)
    assert saved["cfg"]["model"]["encoder"] == "relation_transformer"
    assert saved["cfg"]["model"]["relation_bias"] == "both"


def test_pretrained_encoders_are_loaded_and_frozen(sentences, tmp_path, command):
    train(command, sentences, tmp_path / "first", 1, "--disable-validation")
    path = tmp_path / "first" / "checkpoint_last.pt"
    log = train(command, sentences, tmp_path / "second", 2, "--disable-validation",
                "--pretrained", path, "--freeze-encoder")  # fmt: skip
    assert f"--pretrained {path}: loaded" in log
    first, second = (
        torch.load(tmp_path / folder / "checkpoint_last.pt", weights_only=True)["model"]
        for folder in ("first", "second")
    )
    for name in first:
        assert torch.equal(first[name], second[name]) == name.startswith("encoder."), name


def test_a_training_is_resumed_without_the_checkpoint_that_it_started_from(
    sentences, tmp_path, command
):
    last = tmp_path / "second" / "checkpoint_last.pt"

    def go(updates, *options):
        return train(command, sentences, last.parent, updates, "--disable-validation", *options)

    train(command, sentences, tmp_path / "first", 1, "--disable-validation")
    path = tmp_path / "first" / "checkpoint_last.pt"
    go(1, "--pretrained", path)
    first_checkpoint = shutil.copyfile(last, tmp_path / "one.pt")
    moved = path.rename(tmp_path / "moved.pt")
    with pytest.raises(UserError, match=f"--pretrained {path} is not there; .*without this option"):
        go(2, "--pretrained", path)
    assert "Loaded checkpoint" in go(2)
    assert "Loaded checkpoint" in go(3, "--pretrained", moved)
    average([str(first_checkpoint), str(last), "--out", str(tmp_path / "average.pt")])


# fairseq-phrase-label


@pytest.fixture
def labelled(monkeypatch, capsys):
    """A function that runs the command in this process; it returns output lines and messages."""

    def called(*arguments, stdin="", status=None):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        capsys.readouterr()
        with pytest.raises(SystemExit) if status else nullcontext():
            label_command([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return printed.out.splitlines(), printed.err

    return called


def test_the_splits_labels_and_their_scores(corpus, words, tagger, labelled):
    path = tagger[0] / "checkpoint_best.pt"
    lines, messages = labelled(words, "--path", path, "--subset", "test", "--scores")
    expected = (corpus / "test.tag").read_text().splitlines()
    pairs = [(a, b) for x, y in zip(lines, expected, strict=True)
             for a, b in zip(x.split(), y.split(), strict=True)]  # fmt: skip
    accuracy = 100 * sum(a == b for a, b in pairs) / len(pairs)
    assert accuracy > 90
    assert f"accuracy: {accuracy:.2f}%" in messages
    assert re.search(r"^NOUN +\d+ +[\d.]+ +[\d.]+ +[\d.]+$", messages, re.MULTILINE)


def test_validation_has_the_f1_of_spans_that_chooses_the_best_checkpoint(
    corpus, tmp_path, labelled, command
):
    chunks = {"DET": "B-NP", "ADJ": "I-NP", "NOUN": "I-NP", "VERB": "B-VP"}
    changed = shutil.copytree(corpus, tmp_path / "corpus")
    for file in changed.glob("*.tag"):
        lines = file.read_text().splitlines()
        file.write_text("".join(f"{' '.join(map(chunks.get, line.split()))}\n" for line in lines))
    data = make_data(changed, tmp_path / "data", "word", "--bpe", "none", "--parser", "none")
    metric = ["--best-checkpoint-metric", "f1", "--maximize-best-checkpoint-metric"]
    log = train(
        command, data, tmp_path / "out", 12, "--encoder", "lstm", "--eval-spans", *metric
    )  # fmt: skip
    scores = [float(f1) for f1 in re.findall(r"valid on 'valid' subset.* \| f1 ([\d.]+)", log)]
    assert len(scores) > 2
    assert 0 < scores[0] < max(scores)
    path = tmp_path / "out" / "checkpoint_best.pt"
    _, messages = labelled(data, "--path", path, "--subset", "valid", "--scores")
    assert f"F1: {max(scores):.2f}%" in messages


def test_raw_text_is_labelled_in_order_as_the_split(corpus, tmp_path, labelled, command):
    data = make_data(corpus, tmp_path / "data", "word", "--vocab-size", "36")
    train(command, data, tmp_path / "save", 20, "--disable-validation")
    path = tmp_path / "save" / "checkpoint_last.pt"
    split, _ = labelled(data, "--path", path, "--subset", "test")
    text = (corpus / "test.en").read_text().splitlines()
    raw = [*text[:5], "", " ", *text[5:]]
    lines, _ = labelled(data, "--path", path, stdin="".join(f"{line}\n" for line in raw))
    assert lines == [*split[:5], "", "", *split[5:]]
    ensemble, _ = labelled(data, "--path", f"{path}:{path}", stdin=text[0])
    assert ensemble == split[:1]
    write_lines(tmp_path / "raw", raw)
    for shard in ("2/2", "1/2"):
        part = ("--path", path, tmp_path / "raw", "--out", tmp_path / "out", "--shard", shard)
        assert not (tmp_path / "out").exists()
        labelled(data, *part)
    assert [*read_lines(tmp_path / "out")] == lines


@pytest.mark.fast(1)
@pytest.mark.parametrize("per", ["sentence", "word"])
def test_source_factors_label_raw_text_as_the_split(per, corpus, tmp_path, labelled, command):
    text = tmp_path / "corpus"
    shutil.copytree(corpus, text)
    for path in text.glob("*.en"):
        lines = [[f"{word}￨{word[-1]}" for word in line.split()] for line in read_lines(path)]
        write_lines(path, map(" ".join, lines))
    options = ["--parser", "factored:factor1", "--vocab-size", "36"]
    data = make_data(text, tmp_path / "data", per, *options)
    factors = ["--source-factors", "factor1,subwords", "--encoder", "phrase_transformer"]
    log = train(command, data, tmp_path / "save", 20, *factors)
    assert "valid on 'valid' subset" in log
    path = tmp_path / "save" / "checkpoint_last.pt"
    saved = torch.load(path, weights_only=True)["model"]
    for name in ("factor1", "subwords"):
        assert saved[f"encoder.embed_tokens.factors.{name}.weight"].any()
    split, _ = labelled(data, "--path", path, "--subset", "test")
    assert labelled(data, "--path", path, stdin=(text / "test.en").read_text())[0] == split


def test_gold_trees_are_not_needed_for_labels_of_tokenized_sentences(
    corpus, tmp_path, labelled, command
):
    parser = ("--bpe", "none", "--parser", "ptb", "--source-tokenized")
    data = make_data(corpus, tmp_path / "data", "sentence", *parser)
    train(command, data, tmp_path, 5, "--disable-validation")
    path = tmp_path / "checkpoint_last.pt"
    expected, _ = labelled(data, "--path", path, "--subset", "test")
    assert labelled(data, "--path", path, stdin=(corpus / "test.en").read_text())[0] == expected


def test_a_text_longer_than_a_batch_is_labelled(corpus, words, tmp_path, labelled, command):
    """Also without the gold trees beside the data, as this encoder reads none."""
    train(command, words, tmp_path, 1, "--disable-validation")
    path = tmp_path / "checkpoint_last.pt"
    expected, _ = labelled(words, "--path", path, "--subset", "test")
    small = (words, "--path", path, "--max-tokens", "3")
    assert labelled(*small, "--subset", "test")[0] == expected
    assert labelled(*small, stdin=(corpus / "test.en").read_text())[0] == expected


def test_an_encoder_of_trees_needs_a_parser_for_raw_text(words, tagger, labelled):
    path = tagger[0] / "checkpoint_best.pt"
    _, messages = labelled(words, "--path", path, stdin="the dog\n", status=2)
    assert "name a parser for it, " in messages


def test_a_file_of_text_is_labelled_with_the_trees_next_to_it(
    corpus, words, tagger, tmp_path, labelled
):
    path = tagger[0] / "checkpoint_best.pt"
    split, _ = labelled(words, "--path", path, "--subset", "test")
    text = tmp_path / "new"
    text.write_text("\n" + (corpus / "test.en").read_text())
    _, messages = labelled(words, text, "--path", path, status=2)
    assert f"{text}.conllu" in messages
    shutil.copy(corpus / "test.en.conllu", f"{text}.conllu")
    assert labelled(words, text, "--path", path)[0] == ["", *split]
    _, messages = labelled(words, text, "--path", path, "--subset", "test", status=2)
    assert "leave FILE or --subset out" in messages


def test_a_model_of_linear_trees_labels_raw_text_as_the_split_without_a_parser(
    corpus, words, tmp_path, labelled, command
):
    train(
        command, words, tmp_path, 20, "--disable-validation", "--encoder", "structural_transformer",
        "--structural-absolute", "--tree-source", "linear",
    )  # fmt: skip
    path = tmp_path / "checkpoint_last.pt"
    split, _ = labelled(words, "--path", path, "--subset", "test")
    assert len(set(split)) > 1
    text = (corpus / "test.en").read_text()
    assert labelled(words, "--path", path, stdin=text)[0] == split


def test_documents_are_labelled_and_long_ones_refused(sentences, tmp_path, labelled, command):
    train(command, sentences, tmp_path, 1, "--disable-validation", "--max-source-positions", "60")
    path = tmp_path / "checkpoint_last.pt"
    split, _ = labelled(sentences, "--path", path, "--subset", "valid")
    assert len(split) == 24
    _, messages = labelled(
        sentences, "--path", path, "--source-parser", "none", stdin=f"dog\n{'dog ' * 80}\n",
        status=2,
    )  # fmt: skip
    assert re.search(r"line 2 has \d+ tokens, and the model has 60 positions", messages)


def test_a_split_with_a_text_that_is_too_long_is_refused_without_options_of_other_commands(
    sentences, tmp_path, labelled, command
):
    train(command, sentences, tmp_path, 1, "--disable-validation", "--max-source-positions", "9")
    path = tmp_path / "checkpoint_last.pt"
    _, messages = labelled(sentences, "--path", path, "--subset", "valid", status=2)
    assert re.search(r"texts have more tokens than the model has positions \(9\)", messages)
    assert "--skip-invalid-size-inputs-valid-test" not in messages


@pytest.mark.fast(1)
@pytest.mark.parametrize("encoder", ["transformer", "tree_transformer"])
def test_a_long_text_is_truncated_as_in_a_split(
    corpus, sentences, tmp_path, labelled, command, caplog, encoder
):
    train(
        command, sentences, tmp_path, 20, "--disable-validation", "--encoder", encoder,
        "--max-source-positions", "9", "--truncate-source",
    )  # fmt: skip
    path = tmp_path / "checkpoint_last.pt"
    split, _ = labelled(sentences, "--path", path, "--subset", "test")
    assert len(set(split)) > 1
    text = (corpus / "test.en").read_text()
    raw, _ = labelled(
        sentences, "--path", path, "--source-parser", f"gold:{corpus}/test.en", stdin=text
    )
    assert raw == split
    assert re.search(r"\d+ texts are truncated to 8 subwords", caplog.text)


def test_scores_need_a_split(words, tagger, labelled):
    _, messages = labelled(words, "--path", tagger[0] / "checkpoint_best.pt", "--scores", status=2)
    assert "--scores needs --subset" in messages


def test_a_device_that_is_not_there_is_named(words, tagger, labelled):
    options = ["--path", tagger[0] / "checkpoint_best.pt", "--subset", "test"]
    _, messages = labelled(words, *options, "--device", "cuda:77", status=2)
    assert "fairseq-phrase-label: error: device cuda:77: " in messages
    assert "Traceback" not in messages


# What cannot be used.


def test_an_encoder_of_trees_needs_data_with_trees(corpus, tmp_path, command):
    data = make_data(corpus, tmp_path / "data", "word", "--bpe", "none")
    with pytest.raises(
        UserError, match=r"--parser none and has no spans for 'en', which this model"
    ):
        train(command, data, tmp_path / "out", 1, "--encoder", "tree_transformer")


def test_data_of_a_translation_are_refused(data_directory, tmp_path, command):
    with pytest.raises(UserError, match="has a translation and no labels: make data"):
        train(command, data_directory, tmp_path, 1)


def test_a_text_with_more_labels_than_the_limit_is_named(corpus, words, tmp_path, command):
    lengths = [len(line.split()) for line in (corpus / "valid.tag").read_text().splitlines()]
    long = sum(length > 5 for length in lengths)
    message = (
        rf"{long} texts have more labels than the model allows \(5\); the longest, .* has "
        rf"{max(lengths)}: train with a larger --max-target-positions;"
    )
    with pytest.raises(UserError, match=message):
        train(command, words, tmp_path, 1, "--max-target-positions", "5")


def test_labels_unknown_in_training_are_warned_about(corpus, tmp_path, command):
    changed = shutil.copytree(corpus, tmp_path / "corpus")
    (changed / "valid.class").write_text("many\n" * 24)
    data = make_data(changed, tmp_path / "data", "sentence", "--bpe", "none")
    log = train(command, data, tmp_path / "out", 1, "--no-save", criterion=ACCURACY)
    assert "24 of the 24 labels of valid are unknown in training" in log
    assert re.search(r"valid on 'valid' subset.* accuracy 0\b", log)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--left-pad-source"], "pads on the right"),
        (["--truncate-source"], "every word has a label"),
        (["--eval-spans"], "--eval-spans: the labels mark no spans"),
        (["--head-layers", "3"], "--head-layers 3: expected 1 or 2"),
        (["--encoder", "gru"], "--encoder gru: expected one of"),
    ],
)
def test_options_without_meaning_are_refused(words, tmp_path, command, option, message):
    with pytest.raises(UserError, match=message):
        train(command, words, tmp_path, 1, *option)
