"""Messages of fairseq's commands."""

from __future__ import annotations

import sys

import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_phrase import register
from fairseq_phrase.compat.commands import as_user_error, print_user_errors_plainly
from fairseq_phrase.errors import UserError
from tests.support.trainings import Training, size_flags

register()
MODEL = ["--arch", "transformer", *size_flags()]


@pytest.mark.parametrize(
    "error", [ValueError("valid1"), OSError(2, "none"), RuntimeError(), Exception("sample")]
)
def test_an_error_that_replaces_another_is_caught_like_it(error):
    replacement = as_user_error(error, "name all sets")
    assert isinstance(replacement, UserError)
    assert isinstance(replacement, type(error))
    assert str(replacement) == "name all sets"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            "bin/fairseq-train",
            "interrupted. The same command continues from checkpoint_last.pt, if ",
        ),
        ("bin/fairseq-hydra-train", "interrupted. The same command continues from checkpoint_last"),
        ("bin/fairseq-generate", "interrupted\n"),
    ],
)
def test_an_interrupted_command_prints_one_line(program, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "argv", [program])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    print_user_errors_plainly()
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    printed = capsys.readouterr().err
    assert printed.startswith(message)
    assert printed.count("\n") == 1


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^--save-dir \S+/file/run cannot be written: ") as error:
        checkpoint_utils.verify_checkpoint_directory(str(tmp_path / "file" / "run"))
    assert isinstance(error.value, OSError)
    checkpoint_utils.verify_checkpoint_directory(str(tmp_path / "run"))


def test_fp16_without_a_gpu_is_refused(data_directory, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for flags in (["--bf16"], ["--fp16", "--fp16-no-flatten-grads"], ["--memory-efficient-fp16"]):
        assert Training(data_directory, *MODEL, *flags).trainer.optimizer
    with pytest.raises(UserError, match=r"^--fp16 needs a GPU, .*--bf16 also trains on a CPU"):
        _ = Training(data_directory, *MODEL, "--fp16").trainer.optimizer


@pytest.mark.parametrize("arch", ["transformer", "structural_transformer"])
def test_a_training_that_diverges_ends_with_a_message(data_directory, tmp_path, caplog, arch):
    flags = ["--arch", arch, *size_flags(), "--lr", "1e30", "--warmup-updates", "1"]
    training = Training(data_directory, *flags, "--save-dir", tmp_path)
    message = (
        r"^the training diverged after \d updates \(gradients are Nan/Inf\): give a smaller --lr"
    )
    with pytest.raises(UserError, match=message) as error:
        training.update(4)
    assert isinstance(error.value, FloatingPointError)
    assert "NaN detected in output of encoder.layers.0" in caplog.text  # by fairseq
    assert (tmp_path / "crash.pt").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--attention-gate"], "lacks encoder.layers.0.self_attn.gate_proj.weight"),
     ([], "has encoder.layers.0.self_attn.gate_proj.weight, which this model lacks")],
)  # fmt: skip
def test_a_training_with_other_parameters_is_not_continued(
    data_directory, tmp_path, flags, message
):
    path, model = tmp_path / "a.pt", ["--arch", "structural_transformer", *size_flags()]
    Training(data_directory, *model, *(() if flags else ["--attention-gate"])).save(path)
    flags = [*flags, "--allow-difference", "attention-gate"]
    with pytest.raises(UserError, match=rf"{message}: give that training's options, or") as error:
        Training(data_directory, *model, *flags).trainer.load_checkpoint(str(path))
    assert str(error.value).startswith(str(path))


def test_a_missing_split_is_named_with_those_of_the_data(data_directory):
    with pytest.raises(UserError, match=r"has no split 'tst': it has test, train, valid$") as error:
        Training(data_directory, *MODEL, "--train-subset", "tst")
    assert isinstance(error.value, FileNotFoundError)
    assert str(data_directory) in str(error.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--criterion", "label_smoothed_cross_entropy_with_rdrop"],
            r"LabelSmoothedCrossEntropyCriterion, this run's criterion is RdropLabelSmoothedCross",
        ),
        (["--bf16"], r"FairseqAdam, this run's optimizer is FP16Optimizer"),
    ],
)
def test_a_training_with_another_optimizer_is_not_continued(
    flags, message, data_directory, tmp_path
):
    path = tmp_path / "checkpoint_last.pt"
    extra_state = {"train_iterator": {"epoch": 1, "iterations_in_epoch": 1}, "val_loss": None}
    trainer = Training(data_directory, *MODEL).update(1).trainer
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(str(path), extra_state)
    with pytest.raises(UserError, match=message) as error:
        Training(data_directory, *MODEL, *flags).trainer.load_checkpoint(str(path))
    assert str(path) in str(error.value)
    assert "--reset-optimizer" in str(error.value)
