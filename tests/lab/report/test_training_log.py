"""What is read from fairseq's training logs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fairseq_phrase.lab.report.training_log import Validation, log_line, read_training_log
from tests.support.run_folders import START, LogWriter


@pytest.mark.parametrize("style", ["simple", "json", "hydra"])
def test_every_format_of_fairseqs_logs_says_the_same(tmp_path, style):
    log = LogWriter(style)
    log.head(seed=3, best="accuracy")
    for update, wps in ((10, 3000), (20, 5000), (30, 4000)):
        log.train_inner(update, wps)
    log.valid(30, 6.0, bleu=12.5)
    log.epoch(30)
    log.done()
    training = read_training_log(log.write(tmp_path / "train.log"))
    assert (training.parameters, training.seed, training.updates) == (1506304, 3, 30)
    assert training.best_metric == "accuracy"
    assert training.sentences == {"sentences of train": "29,000"}
    assert training.words_per_second == 4000  # the median
    assert training.validations == [Validation(30, 6.0, 64.0, 12.5)]
    assert training.seconds == 15
    assert (training.devices, training.gpu, training.finished) == (1, None, True)


def test_a_log_line_of_each_format_is_taken_apart():
    assert log_line("2026-11-20 22:44:38 | INFO | fairseq.trainer | x | y") == (
        START, "fairseq.trainer", "x | y"
    )  # fmt: skip
    assert log_line("[2026-11-20 22:44:38,159][fairseq_cli.train][INFO] - x") == (
        START, "fairseq_cli.train", "x"
    )  # fmt: skip
    assert log_line("INFO:fairseq_cli.generate:x: y") == (None, "fairseq_cli.generate", "x: y")
    assert log_line("  (encoder): TransformerEncoderBase(") is None


def test_hours_are_those_of_every_gpu(tmp_path):
    log = LogWriter()
    log.head(gpus=4)
    log.train_inner(10, 3000, seconds=1800)
    log.done()
    training = read_training_log(log.write(tmp_path / "train.log"))
    assert (training.gpu, training.devices, training.hours) == ("NVIDIA H200", 4, 2.0)


def test_a_resumed_training_counts_the_time_of_both_sessions_and_not_that_between(tmp_path):
    log = LogWriter()
    log.head()
    log.train_inner(10, 3000)
    log.valid(10, 6.0)
    log.train_inner(20, 3000)
    log.valid(20, 5.5)  # lost: the last checkpoint was at 10
    log.time += timedelta(hours=5)
    log.head(resumed_at=10)
    unfinished = LogWriter()
    unfinished.lines = list(log.lines)
    log.train_inner(20, 3000)
    log.valid(20, 5.4)
    log.done()
    training = read_training_log(log.write(tmp_path / "train.log"))
    assert training.seconds == 15
    assert [(validation.update, validation.loss) for validation in training.validations] == [
        (10, 6.0),
        (20, 5.4),
    ]
    assert training.finished
    unended = read_training_log(unfinished.write(tmp_path / "truncated.log"))
    assert not unended.finished
    assert unended.updates == 10
    assert [validation.update for validation in unended.validations] == [10]


def test_a_training_that_went_on_after_its_end_has_not_ended_until_it_ends_again(tmp_path):
    log = LogWriter()
    log.head()
    log.train_inner(10, 3000)
    log.done()
    log.head(resumed_at=10)
    log.train_inner(20, 3000)
    assert not read_training_log(log.write(tmp_path / "train.log")).finished


def test_a_training_that_began_anew_forgets_the_one_before(tmp_path):
    log = LogWriter()
    log.head(seed=1)
    log.train_inner(10, 1000, seconds=100)
    log.valid(10, 6.0)
    log.head(seed=2)
    log.train_inner(5, 3000)
    log.done()
    training = read_training_log(log.write(tmp_path / "train.log"))
    assert (training.seed, training.updates, training.seconds, training.validations) == (
        2,
        5,
        5,
        [],
    )
    assert training.words_per_second == 3000


def test_a_failed_training_says_why(tmp_path):
    log = LogWriter()
    log.head()
    log.train_inner(10, 3000)
    log.lines += ["Traceback (most recent call last):", '  File "train.py", line 3, in main',
                  "torch.OutOfMemoryError: CUDA out of memory."]  # fmt: skip
    training = read_training_log(log.write(tmp_path / "train.log"))
    assert not training.finished
    assert training.failure == "torch.OutOfMemoryError: CUDA out of memory."


def test_with_a_progress_bar_the_speed_is_that_of_the_epochs(tmp_path):
    log = LogWriter()
    log.head()
    log.epoch(289, wps=3157.6)
    log.lines[-1] = "\repoch 001:  10%|█    | 29/289 [00:05<00:45, loss=9.1]\r" + log.lines[-1]
    log.done()
    assert read_training_log(log.write(tmp_path / "train.log")).words_per_second == 3157.6


def test_an_empty_log_says_nothing(tmp_path):
    (tmp_path / "train.log").write_text("")
    training = read_training_log(tmp_path / "train.log")
    assert (training.parameters, training.seconds, training.finished) == (None, None, False)


def test_options_that_choose_a_checkpoint_or_a_learning_rate_are_not_left_out(tmp_path):
    log = LogWriter()
    log.head()
    options = {
        **{"patience": 5, "lr_patience": 2, "lr_scale_pretrained": 0.1, "validate_interval": 2},
        **{"distributed_world_size": 2, "save_dir": "'a'", "num_workers": 1, "keep_last_epochs": 3},
    }
    text = ", ".join(f"'{name}': {value}" for name, value in options.items())
    log.lines = [line.replace("'cpu': False", f"'cpu': False, {text}") for line in log.lines]
    read_options = read_training_log(log.write(tmp_path / "train.log")).options
    free = {"save_dir", "num_workers", "keep_last_epochs"}
    assert read_options.keys() & options.keys() == options.keys() - free
