"""Trainings that are resumed, with the options of their model or others."""

from __future__ import annotations

import shutil
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from fairseq.file_io import PathManager
from fairseq.optim.dynamic_loss_scaler import DynamicLossScaler
from fairseq_cli import train as fairseq_train
from omegaconf import OmegaConf

from fairseq_phrase.checkpoints.options import model_entries
from fairseq_phrase.data.store.identity import Identity, check_identity
from fairseq_phrase.errors import UserError
from fairseq_phrase.repairs.resuming import (
    continue_all_state,
    continue_among_shards,
    save_all_state,
)
from fairseq_phrase.tasks import syntax_translation  # noqa: F401
from tests.support.commands import SIZES, TRAINING, run, run_by_two_processes, train_with_stops


@pytest.fixture(scope="module")
def first_updates() -> dict[tuple, Path]:
    """Folders of trainings of one update, by their options."""
    return {}


@pytest.fixture
def resume(data_directory, command, tmp_path, tmp_path_factory, first_updates):
    """Train on to an update, in one folder; a first update of the same options is done once."""

    def trained(updates, *options):
        begins = updates == 1 and not any(tmp_path.iterdir())
        if begins and options in first_updates:
            shutil.copytree(first_updates[options], tmp_path, dirs_exist_ok=True)
            return ""
        printed = command(
            fairseq_train, data_directory, "--user-dir", "fairseq_phrase", "--task",
            "syntax_translation", *TRAINING, *SIZES, "--save-dir", tmp_path, "--max-tokens", "200",
            "--disable-validation", "--max-update", updates, *options,
        )  # fmt: skip
        if begins and options == PHRASE:
            first_updates[options] = tmp_path_factory.mktemp("first") / "update"
            shutil.copytree(tmp_path, first_updates[options])
        return printed

    return trained


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--update-ordered-indices-seed",),
        ("--update-ordered-indices-seed", "--update-epoch-batch-itr", "1"),
        ("--curriculum", "1"),
    ],
    ids=lambda options: " ".join(options) or "stock",
)
def test_a_resumed_training_of_fairseqs_own_has_the_batches_of_an_uninterrupted_one(
    data_directory, command, tmp_path, options
):
    train_with_stops(
        lambda *others: command(
            fairseq_train, data_directory, "--user-dir", "fairseq_phrase", "--task", "translation",
            *TRAINING, *SIZES, "--arch", "transformer", "--max-tokens", "300", "--train-subset",
            "valid", "--disable-validation", *options, *others,
        ),
        tmp_path,
    )  # fmt: skip


@pytest.mark.fast(1)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_training_has_the_batches_of_an_uninterrupted_one_in_the_order_of_the_longer_side(
    data_directory, command, tmp_path, workers
):
    train_with_stops(
        lambda *others: command(
            fairseq_train, data_directory, "--user-dir", "fairseq_phrase", "--task",
            "syntax_translation", *TRAINING, *SIZES, "--arch", "relation_transformer", "--max-tokens",
            "300", "--train-subset", "valid", "--disable-validation", "--batch-order", "longest-side",
            "--num-workers", workers, *others,
        ),
        tmp_path,
    )  # fmt: skip


@pytest.mark.fast(1)
@pytest.mark.parametrize("task", ["translation", "syntax_translation"])
def test_one_and_two_processes_continue_the_same_training(data_directory, tmp_path, task):
    """Two processes are one that adds the gradients of two batches; the first stop is in an epoch."""
    architecture = {"translation": "transformer", "syntax_translation": "relation_transformer"}[
        task
    ]
    options = [
        data_directory, "--user-dir", "fairseq_phrase", "--task", task, *TRAINING, *SIZES, "--arch",
        architecture, "--dropout", "0", "--max-tokens", "400", "--train-subset", "valid",
        "--disable-validation", "--required-batch-size-multiple", "1", "--save-dir",
    ]  # fmt: skip
    train = {
        "one": lambda *others: run("fairseq-train", *options, *others, "--update-freq", "2"),
        "two": lambda *others: run_by_two_processes(*options, *others),
    }
    trained = {}
    for first in train:
        train[first](tmp_path / first, "--max-update", "2")
        for second in train:
            folder = shutil.copytree(tmp_path / first, tmp_path / first / second)
            printed = train[second](folder, "--max-epoch", "2")
            assert "(epoch 1 @ 2 updates)" in printed
            state = torch.load(folder / "checkpoint_last.pt", weights_only=True)
            trained[first, second] = state
    expected = trained["one", "one"]
    assert expected["optimizer_history"][-1]["num_updates"] > 4
    for state in trained.values():
        assert state["optimizer_history"] == expected["optimizer_history"]
        # Their sums of gradients differ in rounding.
        torch.testing.assert_close(state["model"], expected["model"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("before", "read", "now", "expected"),
    [(2, 3, 2, 3), (2, 3, 1, 6), (1, 6, 2, 3), (1, 5, 2, 2), (2, 3, 4, 1), (1, 1, 2, 0)],
)
def test_an_epoch_continues_among_other_processes_without_a_lost_batch(before, read, now, expected):
    position = {"epoch": 3, "iterations_in_epoch": read, "num_shards": before}
    continue_among_shards(Namespace(data_parallel_world_size=now), position)
    assert position == {"epoch": 3, "iterations_in_epoch": expected}


@pytest.mark.slow
def test_validations_without_improvement_are_counted_over_stops(data_directory, command, tmp_path):
    """Of the loss of parameters that do not change; --patience ends the fifth epoch."""

    def train(folder, *options):
        return command(
            fairseq_train, data_directory, "--user-dir", "fairseq_phrase", "--task", "translation",
            *TRAINING, *SIZES, "--arch", "transformer", "--max-tokens", "1000", "--train-subset", "test",
            "--lr", "1e-30", "--patience", "4", "--lr-scheduler", "reduce_lr_on_plateau",
            "--warmup-updates", "0", "--lr-patience", "1", "--no-epoch-checkpoints", "--save-dir",
            tmp_path / folder, *options,
        )  # fmt: skip

    train("once")
    for epoch in (1, 2, 4):
        train("stopped", "--max-epoch", epoch)
    for _ in range(2):  # the last one finds that it has ended
        train("stopped")
    once, stopped = (
        torch.load(tmp_path / folder / "checkpoint_last.pt", weights_only=True)
        for folder in ("once", "stopped")
    )
    assert once["extra_state"]["train_iterator"]["epoch"] == 6
    for state in (once, stopped):
        assert state["extra_state"]["continued"]["patience"]["num_runs"] == 4
    rates = [
        [group["lr"] for group in state["last_optimizer_state"]["param_groups"]]
        for state in (once, stopped)
    ]
    assert rates[0] == rates[1] == [pytest.approx(1e-31)]
    for part in ("train_iterator", "continued", "best", "val_loss"):
        assert stopped["extra_state"][part] == once["extra_state"][part]
    for part in ("model", "last_optimizer_state"):
        torch.testing.assert_close(stopped[part], once[part], rtol=0, atol=0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError], ids=["killed", "full-disk"])
def test_a_copy_that_is_interrupted_leaves_the_checkpoint_before(error, tmp_path, monkeypatch):
    new, last = tmp_path / "checkpoint2.pt", tmp_path / "checkpoint_last.pt"
    new.write_text("the second epoch")
    last.write_text("the first epoch")

    def interrupted(source, target):
        Path(target).write_text(Path(source).read_text()[:5])
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", interrupted)
        with pytest.raises(error):
            PathManager.copy(str(new), str(last), overwrite=True)
    assert last.read_text() == "the first epoch"
    assert (tmp_path / "checkpoint_last.pt.tmp").exists() == (error is KeyboardInterrupt)
    assert PathManager.copy(str(new), str(last), overwrite=True)
    assert last.read_text() == "the second epoch"
    assert sorted(tmp_path.iterdir()) == [new, last]


def test_a_training_without_an_optimizers_state_is_not_resumed(resume):
    """It would begin at update 0 with another optimizer."""
    resume(1, *PHRASE, "--no-save-optimizer-state")
    with pytest.raises(
        UserError, match=r"in another --save-dir, or give --reset-optimizer to fine"
    ):
        resume(2, *PHRASE)
    assert "@ 0 updates" in resume(2, *PHRASE, "--reset-optimizer")


def test_a_checkpoint_that_is_not_there_is_named(resume, tmp_path):
    """Fairseq would begin with new parameters."""
    with pytest.raises(UserError, match=r"lost.pt is not there: name .*--restore-file"):
        resume(1, *PHRASE, "--restore-file", tmp_path / "lost.pt")
    with pytest.raises(ValueError, match=r"--finetune-from-model .*lost.pt does not exist"):
        resume(1, *PHRASE, "--finetune-from-model", tmp_path / "lost.pt")
    assert not [*tmp_path.iterdir()]
    last = ("--restore-file", tmp_path / "checkpoint_last.pt")
    assert "num_updates: 1" in resume(1, *PHRASE, *last) + resume(2, *PHRASE, *last)


def test_an_average_of_parameters_begins_where_it_is_asked_for(resume):
    resume(1, *PHRASE)
    averaged = (*PHRASE, "--store-ema", "--ema-update-freq", "2")
    assert "that of --store-ema begins here" in resume(2, *averaged)
    assert "Loading EMA from checkpoint" in resume(3, *averaged)


@pytest.mark.parametrize("kind", ["fp16", "amp"])
def test_the_loss_scaler_goes_on(kind, tmp_path):
    def trainer():
        scaler = DynamicLossScaler(init_scale=4.0, scale_window=3)
        if kind == "amp":
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
            scaler._lazy_init_scale_growth_tracker("cpu")
        cfg = {"ema": {"store_ema": False}, "optimization": {"use_bmuf": False}}
        return Namespace(
            optimizer=Namespace(scaler=scaler), lr_scheduler=None, get_num_updates=lambda: 2,
            _optim_history=[{"num_updates": 2}],
            cfg=OmegaConf.create({**cfg, "checkpoint": {"patience": 0}}),
        )  # fmt: skip

    def updated(one, times):
        for _ in range(times):
            if kind == "fp16":
                one.optimizer.scaler.update()
            else:
                scale = torch.zeros(1)
                one.optimizer.scaler._per_optimizer_states[0]["found_inf_per_device"] = {
                    "cpu": scale
                }
                one.optimizer.scaler.update()
        scaler = one.optimizer.scaler
        return scaler.loss_scale if kind == "fp16" else scaler.get_scale()

    once, stopped, resumed, saved = trainer(), trainer(), trainer(), []
    expected = updated(once, 4)
    assert expected == 8
    updated(stopped, 2)
    save_all_state(lambda self, file, state: saved.append(state), stopped, "a.pt", {})
    torch.save(saved[0], tmp_path / "a.pt")
    state = {"train_iterator": {}, **torch.load(tmp_path / "a.pt", weights_only=True)}
    continue_all_state(lambda *given, **options: state, resumed, "a.pt")
    assert updated(resumed, 2) == expected


PHRASE = ("--arch", "phrase_transformer_tiny")


def test_coverage_is_added_late_and_left_out_again_with_the_optimizer_kept(resume):
    """See et al. (2017) add it at the end."""
    model = ("--arch", "seq2seq", "--encoder-hidden-size", "32", "--decoder-hidden-size", "32")
    assert "coverage_loss" not in resume(1, *model)
    printed = resume(2, *model, "--coverage", "1")
    # Without the optimizer, fairseq counts updates from 0.
    assert "@ 1 updates" in printed
    assert "coverage_loss" in printed
    assert "@ 2 updates" in resume(3, *model)


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    "resets",
    [
        ["--reset-optimizer"],
        ["--reset-optimizer", "--reset-lr-scheduler", "--reset-meters", "--reset-dataloader"],
    ],
)
def test_a_new_training_from_old_parameters_keeps_the_options_of_the_model(
    resume, resets, tmp_path
):
    resume(1, *PHRASE)
    flags = (*PHRASE, "--phrase-max-length", "3", *resets)
    with pytest.raises(UserError, match="phrase-max-length 2 and 3: give --phrase-max-length 2"):
        resume(2, *flags)
    assert "Loaded checkpoint" in resume(2, *flags, "--allow-difference", "phrase-max-length")
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    (allowed,) = state["task_state"]["identity"]["allowed"]
    assert allowed.startswith("phrase-max-length 2 and 3 (")


def test_a_name_that_no_record_has_is_refused(resume):
    resume(1, *PHRASE)
    with pytest.raises(UserError, match="--allow-difference phrases: expected some of activation"):
        resume(2, *PHRASE, "--allow-difference", "phrases")


def test_options_that_an_older_record_lacks_have_their_defaults():
    older = model_entries({"_name": "phrase_transformer"})
    del older["phrase-mask"]
    for mask, differs in (("subset", False), ("all", True)):
        now = model_entries({"_name": "phrase_transformer", "phrase_mask": mask})
        with pytest.raises(UserError, match="subset and all") if differs else nullcontext():
            check_identity(Identity(older), Identity(now), "continue")
