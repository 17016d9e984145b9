"""Checkpoints opened for analysis: every model of the package, and files that are none."""

from __future__ import annotations

import pickle
import subprocess

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq_cli import train as train_command

from fairseq_phrase.checkpoints.loading import load_model
from fairseq_phrase.cli import analyze, plot
from fairseq_phrase.errors import UserError
from tests.support.commands import SIZES, TRAINING
from tests.support.repository import REPOSITORY
from tests.support.warm_start import python


@pytest.fixture
def structural(command, data_directory, tmp_path):
    command(
        train_command, data_directory, "--user-dir", "fairseq_phrase", "--task",
        "syntax_translation", *TRAINING, *SIZES, "--arch", "structural_transformer_tiny",
        "--sequential-relative", "--structural-relative", "--save-dir", tmp_path, "--max-tokens",
        "500", "--max-update", "1", "--disable-validation",
    )  # fmt: skip
    return tmp_path / "checkpoint_last.pt"


def test_a_structural_checkpoint_loads_where_nothing_else_was_imported(structural, data_directory):
    # In a process of its own: here the tests have registered every model.
    code = (
        "from pathlib import Path; from fairseq_phrase.checkpoints.loading import load_model; "
        f"model, _ = load_model(Path({str(structural)!r}), Path({str(data_directory)!r})); "
        "print(type(model.encoder).__name__)"
    )
    process = subprocess.run([python(), "-c", code], capture_output=True, text=True,
                          cwd=REPOSITORY)  # fmt: skip
    assert process.stdout.strip() == "StructuralEncoder", process.stderr[-2000:]


def saved(content, path):
    torch.save(content, path)
    return path


JUNK = {
    "text": lambda path: path.write_text("hello\n" * 99),
    "nothing": lambda path: path.write_bytes(b""),
    "a foreign pickle": lambda path: path.write_bytes(pickle.dumps(object)),
    "half a checkpoint": lambda path: path.write_bytes(
        saved({"model": torch.zeros(9999)}, path).read_bytes()[:2000]
    ),
    "a tensor": lambda path: saved(torch.zeros(3), path),
    "no configuration": lambda path: saved({"model": {"weight": torch.zeros(3)}}, path),
    "an empty configuration": lambda path: saved({"model": {}, "cfg": {}}, path),
}


@pytest.mark.parametrize("kind", JUNK)
def test_a_file_that_is_no_checkpoint_is_named_in_one_message(
    kind, data_directory, tmp_path, capsys
):
    path = tmp_path / "junk.pt"
    JUNK[kind](path)
    for main, arguments in (
        (plot.main, ["attention", "--line", "1", "--out", str(tmp_path / "a.png")]),
        (analyze.main, ["attention"]),
    ):
        with pytest.raises(SystemExit) as ended:
            main([*arguments, str(data_directory), "--path", str(path)])
        assert ended.value.code == 2
        message = capsys.readouterr().err
        assert (
            f"{path} is not a fairseq checkpoint" in message or f"{path} was not loaded" in message
        )
        assert len(message.splitlines()) == 1
    if kind in ("text", "nothing", "half a checkpoint"):
        with pytest.raises(UserError, match=r"junk\.pt is not a fairseq checkpoint \(it is"):
            checkpoint_utils.load_checkpoint_to_cpu(str(path))


def test_a_model_of_another_package_is_named(structural, data_directory, tmp_path):
    state = torch.load(structural, weights_only=True)
    state["cfg"]["model"]["_name"] = "somebody_elses"
    path = saved(state, tmp_path / "foreign.pt")
    with pytest.raises(UserError, match=r"foreign\.pt holds a model 'somebody_elses'"):
        load_model(path, data_directory)
