"""The mean of checkpoints."""

from __future__ import annotations

import pytest
import torch

from fairseq_phrase.errors import UserError
from fairseq_phrase.models.averaging import average_checkpoints, last_checkpoints


def save(path, value: float, **extra):
    model = {"weight": torch.full((2, 3), value), "version": torch.tensor([3.0])}
    torch.save({"model": {**model, **extra}, "cfg": {"model": {"_name": "x"}}}, path)
    return path


def test_every_parameter_is_the_mean_and_the_rest_is_kept(tmp_path):
    paths = [save(tmp_path / f"checkpoint{i}.pt", value) for i, value in enumerate((1.0, 2.0, 6.0))]
    average_checkpoints(paths, tmp_path / "average.pt")
    state = torch.load(tmp_path / "average.pt", weights_only=True)
    assert torch.equal(state["model"]["weight"], torch.full((2, 3), 3.0))
    assert torch.equal(state["model"]["version"], torch.tensor([3.0]))
    assert state["cfg"] == {"model": {"_name": "x"}}
    assert not list(tmp_path.glob("*.partial"))


def test_the_last_checkpoints_are_those_of_the_last_epochs(tmp_path):
    for name in ("1", "2", "9", "10", "_best", "_last", "_3_100"):
        save(tmp_path / f"checkpoint{name}.pt", 1.0)
    names = [path.name for path in last_checkpoints(tmp_path, 3)]
    assert names == ["checkpoint2.pt", "checkpoint9.pt", "checkpoint10.pt"]
    with pytest.raises(UserError, match="4 epoch checkpoints, fewer than 5"):
        last_checkpoints(tmp_path, 5)


def test_checkpoints_of_different_models_are_refused(tmp_path):
    paths = [save(tmp_path / "a.pt", 1.0), save(tmp_path / "b.pt", 1.0, bias=torch.zeros(1))]
    with pytest.raises(UserError, match="different models"):
        average_checkpoints(paths, tmp_path / "average.pt")
    assert not (tmp_path / "average.pt").exists()


def test_a_missing_or_damaged_checkpoint_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.pt is not there"):
        average_checkpoints([tmp_path / "none.pt"], tmp_path / "average.pt")
    (tmp_path / "cut.pt").write_bytes(save(tmp_path / "a.pt", 1.0).read_bytes()[:500])
    with pytest.raises(UserError, match=r"cut\.pt is no fairseq checkpoint"):
        average_checkpoints([tmp_path / "cut.pt"], tmp_path / "average.pt")
