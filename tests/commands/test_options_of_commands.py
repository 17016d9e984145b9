"""What fairseq's commands print of options that they refuse."""

from __future__ import annotations

import sys
import traceback

import pytest
import torch
from fairseq_cli import train, validate

from fairseq_phrase import register
from fairseq_phrase.errors import UserError
from fairseq_phrase.repairs.commands import print_user_errors_plainly
from tests.support.trainings import size_flags

register()
MODEL = ["--arch", "transformer", *size_flags()]


def printed_by_the_hook(error: BaseException, monkeypatch, capsys) -> str:
    """What a command prints that ends with an error."""
    monkeypatch.setattr(sys, "excepthook", lambda *error: traceback.print_exception(*error))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    print_user_errors_plainly()
    sys.excepthook(type(error), error, error.__traceback__)
    return capsys.readouterr().err


def test_a_check_of_options_in_fairseq_is_one_line(data_directory, monkeypatch, capsys):
    command = ["fairseq-train", str(data_directory), "--task", "translation", *MODEL]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(AssertionError) as no_batch:
        train.cli_main()
    printed = printed_by_the_hook(no_batch.value, monkeypatch, capsys)
    assert printed.endswith("Must specify batch size either with --max-tokens or --batch-size\n")
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1

    number = torch.cuda.device_count() + 2
    flags = ["--max-tokens", "99", "--distributed-world-size", str(number)]
    monkeypatch.setattr(sys, "argv", [*command, *flags])
    with pytest.raises(AssertionError) as no_device:
        train.cli_main()
    printed = printed_by_the_hook(no_device.value, monkeypatch, capsys)
    assert printed.startswith(f"error: world size is {number} but have {number - 2} available")

    with pytest.raises(Exception, match="valid1") as no_split:
        exec("raise FileNotFoundError('valid1')", {"__name__": "fairseq.tasks.translation"})
    assert printed_by_the_hook(no_split.value, monkeypatch, capsys) == "error: valid1\n"

    for statement in ("assert False, 'shape'", "raise ValueError('shape')"):
        with pytest.raises((AssertionError, ValueError)) as error:
            exec(statement, {"__name__": "fairseq.modules.multihead_attention"})
        assert "Traceback" in printed_by_the_hook(error.value, monkeypatch, capsys)


def test_a_validation_without_a_task_asks_for_it(data_directory, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fairseq-validate", str(data_directory), "--path", "x.pt"])
    with pytest.raises(UserError, match=r"^give the model's task, such as --task translation$"):
        validate.cli_main()
