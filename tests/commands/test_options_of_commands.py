"""What fairseq's commands print of options that they refuse."""

from __future__ import annotations

import pytest
import torch
from fairseq_cli import train, validate

from fairseq_phrase import register
from fairseq_phrase.errors import UserError
from tests.support.trainings import size_flags

register()
MODEL = ["--arch", "transformer", *size_flags()]


def test_a_check_of_options_in_fairseq_is_one_line(data_directory, command, printed_by_the_hook):
    options = [data_directory, "--task", "translation", *MODEL]
    with pytest.raises(AssertionError) as no_batch:
        command(train, *options)
    printed = printed_by_the_hook(no_batch.value)
    assert printed.endswith("Must specify batch size either with --max-tokens or --batch-size\n")
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1

    number = torch.cuda.device_count() + 2
    flags = ["--max-tokens", "99", "--distributed-world-size", str(number)]
    with pytest.raises(AssertionError) as no_device:
        command(train, *options, *flags)
    printed = printed_by_the_hook(no_device.value)
    assert printed.startswith(f"error: world size is {number} but have {number - 2} available")

    with pytest.raises(Exception, match="valid1") as no_split:
        exec("raise FileNotFoundError('valid1')", {"__name__": "fairseq.tasks.translation"})
    assert printed_by_the_hook(no_split.value) == "error: valid1\n"

    for statement in ("assert False, 'shape'", "raise ValueError('shape')"):
        with pytest.raises((AssertionError, ValueError)) as error:
            exec(statement, {"__name__": "fairseq.modules.multihead_attention"})
        assert "Traceback" in printed_by_the_hook(error.value)


def test_a_validation_without_a_task_asks_for_it(data_directory, command):
    with pytest.raises(UserError, match=r"^give the model's task, such as --task translation$"):
        command(validate, data_directory, "--path", "x.pt")
