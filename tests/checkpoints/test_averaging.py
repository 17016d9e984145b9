"""The mean of checkpoints."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch

from fairseq_phrase.checkpoints.averaging import (
    average_checkpoints,
    checkpoint_after,
    checkpoints_around_best,
    last_checkpoints,
)
from fairseq_phrase.cli.average import main
from fairseq_phrase.data.store.identity import Entry, Identity
from fairseq_phrase.errors import UserError


def save(path, value: float, options=None, **extra):
    model = {"weight": torch.full((2, 3), value), "version": torch.tensor([3.0])}
    torch.save({"model": {**model, **extra}, "cfg": {"model": options or {"_name": "x"}}}, path)
    return path


def test_every_parameter_is_the_mean_and_the_rest_is_kept(tmp_path):
    paths = [save(tmp_path / f"checkpoint{i}.pt", value) for i, value in enumerate((1.0, 2.0, 6.0))]
    average_checkpoints(paths, tmp_path / "average.pt")
    state = torch.load(tmp_path / "average.pt", weights_only=True)
    assert torch.equal(state["model"]["weight"], torch.full((2, 3), 3.0))
    assert torch.equal(state["model"]["version"], torch.tensor([3.0]))
    assert state["cfg"] == {"model": {"_name": "x"}}
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_mean_of_16_bits_is_not_rounded_to_16_bits(tmp_path, dtype):
    values = [torch.tensor([1.0, 3.0], dtype=dtype), torch.tensor([1.0 + 2**-7, 3.0], dtype=dtype)]
    paths = [tmp_path / f"checkpoint{i}.pt" for i in range(2)]
    for path, value in zip(paths, values, strict=True):
        state = {"weight": value, "steps": torch.tensor(4), "exact": torch.ones(1).double()}
        torch.save({"model": state, "cfg": {"model": {"_name": "x"}}}, path)
    average_checkpoints(paths, tmp_path / "average.pt")
    model = torch.load(tmp_path / "average.pt", weights_only=True)["model"]
    assert torch.equal(model["weight"], torch.tensor([1.0 + 2**-8, 3.0]))
    assert [model[name].dtype for name in ("steps", "exact")] == [torch.int64, torch.float64]


def test_the_last_checkpoints_are_those_of_the_last_epochs(tmp_path):
    for name in ("1", "2", "9", "10", "_best", "_last", "_3_100"):
        save(tmp_path / f"checkpoint{name}.pt", 1.0)
    names = [path.name for path in last_checkpoints(tmp_path, 3)]
    assert names == ["checkpoint2.pt", "checkpoint9.pt", "checkpoint10.pt"]
    with pytest.raises(UserError, match="4 epoch checkpoints, fewer than 5: use --last 4"):
        last_checkpoints(tmp_path, 5)
    with pytest.raises(UserError, match="nowhere is not a folder of checkpoints"):
        last_checkpoints(tmp_path / "nowhere", 1)


def test_the_checkpoint_after_so_many_updates_is_found(tmp_path, capsys):
    for name in ("_1_90", "_2_900", "_10_1900", "9", "_last"):
        save(tmp_path / f"checkpoint{name}.pt", 1.0)
    assert checkpoint_after(tmp_path, 900).name == "checkpoint_2_900.pt"
    with pytest.raises(UserError, match=r"no checkpoint after 9 updates .*checkpoint_1_90\.pt"):
        checkpoint_after(tmp_path, 9)
    main([str(tmp_path), "--updates", "1900", "--out", str(tmp_path / "average.pt")])
    assert "average.pt: the mean of checkpoint_10_1900.pt" in capsys.readouterr().out


def save_best(folder, epoch: int, iterations: int = 0):
    """Write checkpoint_best.pt; at the end of an epoch fairseq writes the number of the next one."""
    iterator = {"epoch": epoch if iterations else epoch + 1, "iterations_in_epoch": iterations}
    state = {"model": {}, "extra_state": {"train_iterator": iterator}}
    torch.save(state, folder / "checkpoint_best.pt")


@pytest.mark.parametrize(
    ("best", "iterations", "first"),
    [(12, 0, 10), (10, 0, 8), (8, 0, 8), (9, 0, 8), (22, 0, 17), (30, 5, 17), (19, 7, 17)],
)
def test_the_checkpoints_around_the_best_have_it_in_their_middle(tmp_path, best, iterations, first):
    for epoch in range(8, 23):
        (tmp_path / f"checkpoint{epoch}.pt").touch()
    save_best(tmp_path, best, iterations)
    names = [path.name for path in checkpoints_around_best(tmp_path, 6)]
    assert names == [f"checkpoint{epoch}.pt" for epoch in range(first, first + 6)]


def test_a_best_checkpoint_older_than_all_that_are_kept_is_named(tmp_path, capsys):
    for epoch in (5, 6):
        save(tmp_path / f"checkpoint{epoch}.pt", 1.0)
    save_best(tmp_path, 4)
    arguments = [str(tmp_path), "--out", str(tmp_path / "average.pt")]
    with pytest.raises(SystemExit):
        main([*arguments, "--around-best", "2"])
    message = "checkpoint_best.pt is of epoch 4, and the oldest epoch checkpoint is of epoch 5: use"
    assert message in capsys.readouterr().err
    save_best(tmp_path, 5)
    main([*arguments, "--around-best", "1"])
    assert "average.pt: the mean of checkpoint5.pt" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*arguments, "--around-best", "1", "--last", "1"])
    assert "not allowed with argument" in capsys.readouterr().err


def test_checkpoints_of_different_models_are_refused(tmp_path):
    paths = [save(tmp_path / "a.pt", 1.0), save(tmp_path / "b.pt", 1.0, bias=torch.zeros(1))]
    with pytest.raises(UserError, match="different models"):
        average_checkpoints(paths, tmp_path / "average.pt")
    assert not (tmp_path / "average.pt").exists()


def test_a_missing_or_damaged_checkpoint_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.pt is not there"):
        average_checkpoints([tmp_path / "none.pt"], tmp_path / "average.pt")
    (tmp_path / "truncated.pt").write_bytes(save(tmp_path / "a.pt", 1.0).read_bytes()[:500])
    with pytest.raises(UserError, match=r"truncated\.pt is not a fairseq checkpoint"):
        average_checkpoints([tmp_path / "truncated.pt"], tmp_path / "average.pt")


def test_checkpoints_of_different_sizes_are_refused_with_the_parameter(tmp_path):
    paths = [save(tmp_path / "a.pt", 1.0), save(tmp_path / "b.pt", 1.0, weight=torch.zeros(2, 4))]
    with pytest.raises(UserError, match=r"weight has the shape \(2, 4\) and \(2, 3\)"):
        average_checkpoints(paths, tmp_path / "average.pt")


def test_checkpoints_of_other_options_are_refused_with_the_option(tmp_path):
    name = {"_name": "phrase_transformer_tiny"}
    paths = [
        save(tmp_path / "a.pt", 1.0, {**name, "dropout": 0.1}),
        save(tmp_path / "b.pt", 1.0, {**name, "dropout": 0.3, "phrase_max_length": 2}),
        save(tmp_path / "c.pt", 1.0, {**name, "phrase_max_length": 3}),
    ]
    average_checkpoints(paths[:2], tmp_path / "average.pt")  # 2 is the default
    with pytest.raises(UserError, match="phrase-max-length 2 and 3"):
        average_checkpoints(paths, tmp_path / "average.pt")


def test_the_average_overwrites_none_of_its_inputs(tmp_path):
    path = save(tmp_path / "a.pt", 1.0)
    before = path.read_bytes()
    (tmp_path / "link.pt").symlink_to(path)
    for out in (path, tmp_path / "link.pt", tmp_path / "x" / ".." / "a.pt"):
        (tmp_path / "x").mkdir(exist_ok=True)
        with pytest.raises(UserError, match="is one of the checkpoints to average"):
            average_checkpoints([path, path], out)
    assert path.read_bytes() == before


@pytest.mark.parametrize("obstacle", ["full disk", "read-only folder"])
def test_a_file_that_cannot_be_written_is_named_and_leaves_nothing(tmp_path, obstacle):
    path, out = save(tmp_path / "checkpoint1.pt", 1.0), tmp_path / "average.pt"
    partial = tmp_path / "average.pt.partial"
    if obstacle == "full disk":
        partial.symlink_to("/dev/full")
    else:
        out = Path("/proc/average.pt")  # read-only for root, too
    with pytest.raises(UserError, match=f"^--out {out} cannot be written: .+$"):
        average_checkpoints([path], out)
    assert not out.exists()
    assert not partial.is_symlink()


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(UserError, match=r"the folder .*nowhere is not there"):
        average_checkpoints([save(tmp_path / "a.pt", 1.0)], tmp_path / "nowhere" / "average.pt")


def test_a_checkpoint_that_could_run_code_is_refused_in_one_line(tmp_path, capsys):
    class Unsafe:
        def __reduce__(self):
            return os.system, ("true",)

    path = tmp_path / "unsafe.pt"
    torch.save({"model": {}, "extra": Unsafe()}, path)
    with pytest.raises(SystemExit) as stopped:
        main([str(path), "--out", str(tmp_path / "average.pt")])
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert re.fullmatch(r"fairseq-phrase-average: error: .*unsafe\.pt .*posix\.system.*\n", message)


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04 and more", b"\x80\x02]q\x00."])
def test_a_file_that_is_no_checkpoint_is_named(tmp_path, content):
    path = tmp_path / "junk.pt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"junk\.pt is not a fairseq checkpoint"):
        average_checkpoints([path], tmp_path / "average.pt")


def test_a_checkpoint_without_a_model_is_named(tmp_path):
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(UserError, match="it has no model"):
        average_checkpoints([tmp_path / "list.pt"], tmp_path / "average.pt")


def recorded(path, training, **extra):
    """A checkpoint of this version, with the number of its training."""
    save(path, 1.0)
    state = torch.load(path)
    entries = {"training": Entry(training, training, "training")} if training else {}
    torch.save({**state, "task_state": {"identity": Identity(entries).as_dict()}, **extra}, path)
    return path


def test_checkpoints_of_two_trainings_are_not_averaged(tmp_path):
    paths = [recorded(tmp_path / f"{n}.pt", n) for n in ("a", "b")]
    again = recorded(tmp_path / "again.pt", "a")
    average_checkpoints([paths[0], again], tmp_path / "average.pt")
    message = r"a\.pt and .*b\.pt differ in training a and b: name checkpoints of one training"
    with pytest.raises(UserError, match=message):
        average_checkpoints(paths, tmp_path / "average.pt")
    average_checkpoints(paths, tmp_path / "average.pt", "training")
    state = torch.load(tmp_path / "average.pt", weights_only=True)
    assert state["task_state"]["identity"]["allowed"] == ["training a and b (a.pt)"]


def test_trainings_without_a_number_are_told_apart_by_seed_and_folder(tmp_path):
    def stock(name, seed, folder):
        path = save(tmp_path / name, 1.0)
        state = torch.load(path)
        cfg = {**state["cfg"], "common": {"seed": seed}, "checkpoint": {"save_dir": folder}}
        torch.save({**state, "cfg": cfg}, path)
        return path

    first = stock("a.pt", 1, "runs/a")
    average_checkpoints([first, stock("b.pt", 1, "runs/a")], tmp_path / "average.pt")
    for seed, folder in ((2, "runs/a"), (1, "runs/b")):
        message = f"training seed 1 in runs/a and seed {seed} in {folder}: name"
        with pytest.raises(UserError, match=message):
            average_checkpoints([first, stock("b.pt", seed, folder)], tmp_path / "average.pt")
