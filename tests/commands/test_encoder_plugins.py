"""Encoders and phrase sources of other packages: found by their entry points, and as good as ours."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fairseq_cli import train as fairseq_train

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.phrases.phrase_sources import load_source
from tests.support.commands import SIZES, TRAINING, run, train
from tests.support.packages import install_package
from tests.support.repository import REPOSITORY
from tests.support.warm_start import python

EXAMPLE = REPOSITORY / "examples" / "encoder_plugin"
USER = ["--user-dir", "fairseq_phrase", "--task", "syntax_translation"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder as pip would leave it behind: the example's modules and the metadata of its build."""
    source = tmp_path_factory.mktemp("source") / "plugin"
    shutil.copytree(EXAMPLE, source)
    site = tmp_path_factory.mktemp("site")
    build = "from setuptools import build_meta as b; b.prepare_metadata_for_build_wheel({!r})"
    subprocess.run(
        [sys.executable, "-c", build.format(str(site))], cwd=source, check=True, capture_output=True
    )
    for module in source.glob("*.py"):
        shutil.copy(module, site)
    return site


@pytest.fixture
def with_plugin(installed) -> dict[str, str]:
    """The environment of a command that finds the installed example."""
    return {"PYTHONPATH": os.pathsep.join([str(installed), str(REPOSITORY)])}


def test_the_example_trains_generates_and_is_plotted(data_directory, tmp_path, with_plugin):
    save = tmp_path / "checkpoints"
    log = train(
        data_directory, save, "--arch", "label_transformer_tiny", *SIZES, "--label-scale", "0.5",
        "--max-update", "20", "--max-tokens", "1000", "--disable-validation", **with_plugin,
    )  # fmt: skip
    losses = [float(loss) for loss in re.findall(r"train_inner.* loss=([\d.]+)", log)]
    assert losses[-1] < losses[0]
    checkpoint = save / "checkpoint_last.pt"
    parameters = torch.load(checkpoint)["model"]
    assert parameters["encoder.embed_labels.weight"].any()
    printed = run(
        "fairseq-generate", data_directory, *USER, "--path", checkpoint, "--cpu", "--beam", "2",
        "--max-len-b", "10", **with_plugin,
    )  # fmt: skip
    assert len(re.findall(r"^H-\d+\t", printed, re.MULTILINE)) == 100
    generate = ("fairseq-generate", data_directory, *USER, "--path", checkpoint, "--cpu")
    assert "holds a model 'label_transformer_tiny', which neither" in run(*generate, expect=1)
    picture = tmp_path / "attention.png"
    run(
        "fairseq-phrase-plot", "attention", data_directory, "--path", checkpoint, "--line", "1",
        "--out", picture, **with_plugin,
    )  # fmt: skip
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_examples_own_tests_pass_where_it_is_installed(installed, with_plugin):
    process = subprocess.run(
        [python(), "-m", "pytest", "-q", "-p", "no:cacheprovider", installed],
        cwd=installed,
        env={**os.environ, **with_plugin},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stdout
    assert re.search(r"^\d+ passed", process.stdout, re.MULTILINE), process.stdout


def test_its_source_of_phrases_trains(data_directory, tmp_path, with_plugin):
    log = train(
        data_directory, tmp_path, "--arch", "phrase_transformer_tiny", *SIZES,
        "--phrase-source", "siblings", "--max-update", "3", "--max-tokens", "1000",
        "--disable-validation", **with_plugin,
    )  # fmt: skip
    assert "num_updates=3" in log


def test_its_phrases_are_the_words_that_share_a_head(installed, monkeypatch):
    from fairseq_phrase.methods.common.parse_batch import ParseBatch
    from fairseq_phrase.methods.phrases.phrase_sources import SourceTokens, find_phrases

    monkeypatch.syspath_prepend(str(installed))
    source = load_source("siblings")
    assert list(source.fields(None)) == ["words", "heads"]
    words = torch.tensor([[0, 1, 1, 2, 3, -1], [0, 1, -1, -1, -1, -1]])
    # Words 0, 2 and 3 depend on 1, which is the root; in the second sentence 1 depends on 0.
    heads = torch.tensor([[1, 1, 1, 1], [0, 0, -1, -1]])
    padding = torch.tensor([[False] * 6, [False] * 3 + [True] * 3])
    parse = ParseBatch({"words": words, "heads": heads})
    phrases = find_phrases(source, SourceTokens(padding, words >= 0), parse, None)
    assert phrases.members()[0][6:] == [(0, 1, 2, 3, 4)]
    assert phrases.members()[1][6:] == [(0, 1)]


def test_an_unknown_source_is_named_with_those_there_are(data_directory, tmp_path, command):
    message = r"^--phrase-source: unknown phrase source 'verbs': expected one of .*, ngram, none"
    with pytest.raises(UserError, match=message):
        command(
            fairseq_train, data_directory, *USER, *TRAINING, "--arch", "phrase_transformer_tiny",
            "--phrase-source", "verbs", "--max-update", "1", "--max-tokens", "1000", "--save-dir",
            tmp_path,
        )  # fmt: skip


def test_an_encoder_that_cannot_be_imported_stops_only_the_models_that_use_it(
    tmp_path, data_directory
):
    install_package(tmp_path, "broken", "[fairseq_phrase.encoders]\nmine = nowhere\n")
    paths = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    broken = (
        "the encoder 'mine' (nowhere) of an installed package cannot be used: ModuleNotFoundError"
    )
    training = (
        data_directory, tmp_path / "out", *SIZES, "--max-update", "1", "--max-tokens", "400",
    )  # fmt: skip
    log = train(*training, "--arch", "transformer", "--disable-validation", PYTHONPATH=paths)
    assert broken in log
    assert "num_updates=1" in log
    log = train(*training, "--arch", "seq2seq", "--encoder", "mine", expect=1, PYTHONPATH=paths)
    assert f"error: --encoder mine: {broken}" in log
