"""Messages of fairseq's commands."""

from __future__ import annotations

import sys

import pytest

from fairseq_phrase import register
from fairseq_phrase.errors import UserError
from fairseq_phrase.repairs.commands import name_missing_choices
from tests.support.trainings import Training, size_flags

register()
MODEL = ["--arch", "transformer", *size_flags()]


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
def test_an_interrupted_command_prints_one_line(program, message, monkeypatch, printed_by_the_hook):
    monkeypatch.setattr(sys, "argv", [program])
    printed = printed_by_the_hook(KeyboardInterrupt())
    assert printed.startswith(message)
    assert printed.count("\n") == 1


@pytest.mark.parametrize("arch", ["transformer", "structural_transformer"])
def test_a_training_that_diverges_ends_with_its_cause(data_directory, tmp_path, caplog, arch):
    flags = ["--arch", arch, *size_flags(), "--lr", "1e30", "--warmup-updates", "1"]
    training = Training(data_directory, *flags, "--save-dir", tmp_path)
    with pytest.raises(FloatingPointError, match="gradients are Nan/Inf"):
        training.update(4)
    assert "NaN detected in output of encoder.layers.0" in caplog.text  # by fairseq
    assert (tmp_path / "crash.pt").exists()


def test_fp16_on_a_cpu_is_refused(data_directory, tmp_path):
    training = Training(data_directory, *MODEL, "--fp16", "--cpu", "--save-dir", tmp_path)
    with pytest.raises(UserError, match="--fp16 trains on GPUs only: take --bf16, or leave it out"):
        training.update(1)


@pytest.mark.parametrize(
    ("error", "message"), [(KeyError, "--task translation"), (RuntimeError, "--arch phrase_tr")]
)
def test_choices_that_fairseq_needs_are_named(error, message):
    def fail(*arguments):
        raise error(*arguments)

    with pytest.raises(UserError, match=f"such as {message}"):
        name_missing_choices(fail, *([None] if error is KeyError else []))
    with pytest.raises(error, match="another"):
        name_missing_choices(fail, "another")
