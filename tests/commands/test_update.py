"""Faster updates in trainings by fairseq's trainer and commands."""

from __future__ import annotations

import re

import pytest
import torch
from fairseq_cli import train as train_command

from tests.support.commands import SIZES, TRAINING, run_by_two_processes
from tests.support.monolingual_corpora import make_data, write_documents
from tests.support.trainings import Training, losses_of, size_flags

TRANSFORMER = ["--arch", "transformer", *size_flags(), "--share-all-embeddings"]
STOCK = "--fairseq-update"
#: The line in the log.
LINE = re.compile(r"(?:^|[|-] )update: (.*)", re.MULTILINE)
FASTER = "faster than fairseq's"


def parameters_of(training):
    return {name: value.clone() for name, value in training.model.state_dict().items()}


@pytest.mark.fast(1)
@pytest.mark.parametrize("dropout", [0.3, 0.0])
def test_with_the_flag_the_bits_are_those_of_fairseqs_own_task(data_directory, dropout):
    flags = [*TRANSFORMER, "--dropout", dropout]
    right = ["--task", "translation", "--left-pad-source"]  # which fairseq pads by default
    stock = Training(data_directory, *flags, *right).update(6)
    flagged = Training(data_directory, *flags, STOCK).update(6)
    assert flagged.losses == stock.losses
    torch.testing.assert_close(parameters_of(flagged), parameters_of(stock), rtol=0, atol=0)


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    "flags",
    [
        ["--dropout", "0.3"],
        ["--clip-norm", "0"],
        ["--weight-decay", "0.01"],
        ["--sentence-avg"],
        ["--report-accuracy"],
        ["--label-smoothing", "0"],
        ["--checkpoint-activations"],
        ["--lr-scheduler", "fixed"],
    ],
    ids=" ".join,
)
def test_losses_are_those_of_fairseqs_update(data_directory, flags):
    flags = [*TRANSFORMER, *flags]
    losses = losses_of(data_directory, flags, 12)
    assert losses == pytest.approx(losses_of(data_directory, [*flags, STOCK], 12), rel=1e-5)


def test_several_batches_are_one_update(data_directory):
    losses = losses_of(data_directory, TRANSFORMER, 8, samples=2)
    expected = losses_of(data_directory, [*TRANSFORMER, STOCK], 8, samples=2)
    assert losses == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("flags", "rounding"),
    [(["--bf16"], 2**-8), (["--fp16", "--fp16-no-flatten-grads"], 2**-11)],
    ids=["bf16", "fp16"],
)
def test_losses_in_half_precision_are_those_of_fairseqs_update_to_rounding(
    data_directory, flags, rounding
):
    flags = [*TRANSFORMER, *flags]
    training = Training(data_directory, *flags).update(12)
    expected = losses_of(data_directory, [*flags, STOCK], 12)
    assert training.losses == pytest.approx(expected, rel=rounding)
    scaler = training.trainer.optimizer.scaler  # in bfloat16 there is none
    assert training.task.loss_scale == (1.0 if scaler is None else scaler.loss_scale)


@pytest.mark.fast(1)
@pytest.mark.parametrize("flags", [[], ["--bf16"]], ids=["fp32", "bf16"])
def test_a_training_continues_that_of_the_other_update(data_directory, tmp_path, flags):
    flags = [*TRANSFORMER, *flags]
    expected = losses_of(data_directory, [*flags, STOCK], 10)
    for first, second in ([], [STOCK]), ([STOCK], []):
        begun = Training(data_directory, *flags, *first).update(5)
        path = begun.save(tmp_path / "checkpoint.pt")
        continued = Training(data_directory, *flags, *second).load(path).update(5)
        rounding = 2**-8 if "--bf16" in flags else 1e-5
        assert begun.losses + continued.losses == pytest.approx(expected, rel=rounding)


def test_two_processes_take_the_same_updates(data_directory):
    logs = []
    for flags in ([], [STOCK]):
        options = [*TRAINING, "--arch", "transformer", *SIZES, "--user-dir", "fairseq_phrase"]
        # The last batch of an epoch is only for one of the processes.
        logs.append(
            run_by_two_processes(
                data_directory, *options, "--task", "syntax_translation", "--max-tokens", "300",
                "--train-subset", "valid", "--max-epoch", "1", "--disable-validation", "--no-save",
                "--clip-norm", "1", "--dropout", "0", *flags,
            )
        )  # fmt: skip
    assert FASTER in LINE.search(logs[0])[1]
    assert "fairseq's own" in LINE.search(logs[1])[1]
    rows = [re.findall(r"loss=([\d.]+).*?gnorm=([\d.]+)", log) for log in logs]
    assert len(rows[0]) > 4
    for row, expected in zip(*rows, strict=True):
        assert [*map(float, row)] == pytest.approx([*map(float, expected)], abs=2e-3)


def test_pre_training_logs_its_update(tmp_path, command):
    data = make_data(write_documents(tmp_path / "corpus"), tmp_path / "data", "--vocab-size", "36")
    log = command(
        train_command, data, "--user-dir", "fairseq_phrase", "--task", "syntax_pretraining", "--arch",
        "pretrainer", "--criterion", "masked_lm", "--optimizer", "adam", "--lr", "0.001", "--max-tokens",
        "200", "--max-update", "1", "--no-save", "--disable-validation", "--encoder-layers", "1",
        "--encoder-embed-dim", "16", "--encoder-attention-heads", "2", "--encoder", "transformer",
        "--cpu",
    )  # fmt: skip
    (line,) = LINE.findall(log)
    assert FASTER in line
