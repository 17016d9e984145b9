"""Messages of fairseq's commands."""

from __future__ import annotations

import sys

import pytest

from fairseq_phrase.compat.commands import as_user_error, print_user_errors_plainly
from fairseq_phrase.errors import UserError


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
