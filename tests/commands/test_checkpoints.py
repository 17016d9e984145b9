"""Checkpoints opened for analysis: every model of the package, and files that are none."""

from __future__ import annotations

import pickle
import subprocess

import pytest
import torch

from fairseq_phrase.checkpoints.loading import load_model
from fairseq_phrase.checkpoints.trust import load_checkpoint
from fairseq_phrase.errors import UserError
from tests.support.repository import REPOSITORY
from tests.support.small_checkpoints import make_checkpoint, make_data
from tests.support.warm_start import python


@pytest.fixture
def structural(tmp_path):
    options = ("--arch", "structural_transformer_tiny", "--structural-relative")
    return make_checkpoint(tmp_path / "a.pt", make_data(tmp_path / "data"), *options)


def test_a_structural_checkpoint_loads_where_nothing_else_was_imported(structural):
    # In a process of its own: here the tests have registered every model.
    code = (
        "from pathlib import Path; from fairseq_phrase.checkpoints.loading import load_model; "
        f"model, _ = load_model(Path({str(structural)!r}), None); "
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
    "no model": lambda path: saved({"cfg": {}}, path),
}


@pytest.mark.parametrize("kind", JUNK)
def test_a_file_that_is_no_checkpoint_is_named(kind, tmp_path):
    path = tmp_path / "junk.pt"
    JUNK[kind](path)
    reason = r"is not a fairseq checkpoint|was not loaded: it contains"
    if kind in ("text", "nothing", "half a checkpoint"):
        reason = r"is not a fairseq checkpoint \(it is empty, truncated, or not written by torch\)"
    with pytest.raises(UserError, match=rf"^{path} ({reason})"):
        load_checkpoint(path)


def test_a_model_of_another_package_is_named(structural, tmp_path):
    state = torch.load(structural, weights_only=True)
    state["cfg"]["model"]["_name"] = "somebody_elses"
    path = saved(state, tmp_path / "foreign.pt")
    with pytest.raises(UserError, match=r"foreign\.pt holds a model 'somebody_elses'"):
        load_model(path, None)
