"""Trees learned in training, by fairseq's own Transformer and ours; translation without parses."""

from __future__ import annotations

import re
import shutil
from statistics import mean

import pytest
from fairseq_cli import generate as fairseq_generate
from fairseq_cli import train as fairseq_train

from fairseq_phrase.cli import preprocess as preprocess_command
from fairseq_phrase.errors import UserError
from fairseq_phrase.tasks import syntax_translation  # noqa: F401 - registers the task
from tests.support.commands import SIZES, TRAINING


@pytest.fixture
def train(data_directory, command, tmp_path):
    def trained(updates, *options, data=data_directory):
        return command(
            fairseq_train, data, "--user-dir", "fairseq_phrase", "--task", "syntax_translation",
            *TRAINING, *SIZES, "--arch", "transformer", "--save-dir", tmp_path / "run",
            "--max-tokens", "1000", "--max-update", updates, *options,
        )  # fmt: skip

    return trained


def accuracies(printed, prefix=""):
    return [float(value) for value in re.findall(rf"\b{prefix}uas=?:?\s*([\d.]+)", printed)]


def plain_copy(data_directory, folder):
    """The data as stock fairseq knows them: without any parse."""
    folder.mkdir()
    for path in data_directory.iterdir():
        if re.fullmatch(r"dict\.(de|en)\.txt|\w+\.de-en\.(de|en)\.(bin|idx)", path.name):
            shutil.copy(path, folder)
    return folder


def translates_without_parses(data_directory, command, tmp_path):
    """Translate with a checkpoint by stock fairseq and this plugin, from data without parses."""
    flags = ("--path", tmp_path / "run" / "checkpoint_last.pt", "--beam", "1", "--max-len-b", "5")
    plain = plain_copy(data_directory, tmp_path / "plain")
    stock = command(fairseq_generate, plain, "--task", "translation", *flags)
    ours = command(
        fairseq_generate, plain, "--user-dir", "fairseq_phrase", "--task", "syntax_translation",
        *flags,
    )  # fmt: skip

    def translations(text):
        lines = (line.split("\t") for line in text.splitlines() if line.startswith("H-"))
        return {number: tokens for number, _, tokens in lines}

    # Stock fairseq leaves the last few sentences out.
    assert len(translations(ours)) == 100
    assert len(translations(stock)) > 90
    assert translations(stock).items() <= translations(ours).items()


def test_states_and_attention_learn_trees_and_translation_needs_no_parser(
    train, data_directory, command, tmp_path
):
    options = ("--tree-regularization", "1", "--tree-planting", "1")
    printed = train(60, *options, "--parse-loss", "1")
    # A single batch tells little: the mean of 15.
    logged = accuracies(printed)
    assert mean(logged[-15:]) > mean(logged[:15]) + 5
    assert re.search(r"valid.*uas", printed)
    assert re.search(r"valid.*treereg_accuracy.*", printed)
    for name in ("treereg_loss", "planting_loss", "parse_loss"):
        losses = [float(loss) for loss in re.findall(rf"\b{name}=([\d.]+),", printed)]
        assert mean(losses[-15:]) < 0.9 * mean(losses[:15]), name
    # Both have no parameters, so training goes on without them.
    resumed = train(61, "--parse-loss", "1", "--disable-validation")
    assert "Loaded checkpoint" in resumed
    assert accuracies(resumed)
    assert not re.search(r"planting_loss=\d", resumed)
    translates_without_parses(data_directory, command, tmp_path)


def test_a_checkpoint_without_the_loss_may_begin_with_it(train):
    train(2, "--disable-validation")
    printed = train(4, "--disable-validation", "--parse-loss", "1", "--reset-optimizer")
    assert "Loaded checkpoint" in printed
    assert accuracies(printed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--parse-loss", "-1"), "--parse-loss -1.0: expected 0 or more"),
        (("--tree-planting", "-1"), "--tree-planting -1.0: expected 0 or more"),
        (("--coverage", "-1"), "--coverage -1.0: expected 0 or more"),
        (
            ("--tree-regularization", "1", "--tree-source", "linear"),
            "--tree-source linear makes only dependency heads, and --tree-regularization reads constit",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(train, options, message):
    with pytest.raises(UserError, match=re.escape(message)):
        train(1, *options)


def test_data_without_constituents_are_refused_for_the_loss(train, synthetic_corpus, tmp_path):
    files = [f"--{name}pref={synthetic_corpus / 'valid'}" for name in ("train", "valid", "test")]
    data = tmp_path / "heads"
    preprocess_command.main([
        *("-s", "de", "-t", "en", "--destdir", str(data), "--parser", "conllu"),
        *("--vocab-size", "200", "--joined-dictionary", *files),
    ])  # fmt: skip
    option = "--tree-regularization"
    message = rf"has no spans for 'de', which {option} needs: .*--constituents from-dependencies"
    with pytest.raises(UserError, match=message):
        train(1, option, "1", data=data)


def test_data_without_parses_are_refused(train, data_directory, tmp_path):
    with pytest.raises(UserError, match=r"syntax\.de\.json is missing"):
        train(1, "--parse-loss", "1", data=plain_copy(data_directory, tmp_path / "plain"))
