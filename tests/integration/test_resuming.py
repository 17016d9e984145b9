"""Trainings that are resumed, with the options of their model or others."""

from __future__ import annotations

import re
from contextlib import nullcontext

import pytest
import torch
from fairseq_cli import train as fairseq_train

from fairseq_phrase.errors import UserError
from fairseq_phrase.models.identity import model_entries
from fairseq_phrase.store.identity import Identity, compare
from fairseq_phrase.tasks import syntax_translation  # noqa: F401
from tests.support.commands import SIZES, TRAINING, train_with_stops


@pytest.fixture
def resume(data_directory, command, tmp_path):
    """Train on to an update, in one folder."""

    def trained(updates, *options):
        return command(
            fairseq_train, data_directory, "--user-dir", "fairseq_phrase", "--task",
            "syntax_translation", *TRAINING, *SIZES, "--save-dir", tmp_path, "--max-tokens", "200",
            "--disable-validation", "--max-update", updates, *options,
        )  # fmt: skip

    return trained


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


PHRASE = ("--arch", "phrase_transformer_tiny")


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (PHRASE, ("--phrase-max-length", "3"), "phrase-max-length 2 and 3"),
        (PHRASE, ("--phrase-mask", "all"), "phrase-mask subset and all"),
        (
            ("--arch", "structural_transformer_tiny"),
            ("--no-sequential-absolute",),
            "no-sequential-absolute False and True",
        ),
        (
            ("--arch", "phrase_transformer_tiny", "--encoder-attention-heads", "2"),
            ("--encoder-attention-heads", "4"),
            "encoder-attention-heads 2 and 4",
        ),
    ],
)
def test_training_is_not_resumed_with_other_options_of_the_model(resume, first, second, named):
    resume(1, *first)
    with pytest.raises(UserError, match=re.escape(named)):
        resume(2, *first, *second)
    printed = resume(2, *first, "--dropout", "0.3")
    assert "Loaded checkpoint" in printed


def test_coverage_is_added_late_and_left_out_again_with_the_optimizer_kept(resume):
    """See et al. (2017) add it at the end."""
    model = ("--arch", "seq2seq", "--encoder-hidden-size", "32", "--decoder-hidden-size", "32")
    assert "coverage_loss" not in resume(1, *model)
    printed = resume(2, *model, "--coverage", "1")
    # Without the optimizer, fairseq counts updates from 0.
    assert "@ 1 updates" in printed
    assert "coverage_loss" in printed
    assert "@ 2 updates" in resume(3, *model)


@pytest.mark.parametrize(
    "resets",
    [
        ["--reset-optimizer"],
        ["--reset-optimizer", "--reset-lr-scheduler", "--reset-meters", "--reset-dataloader"],
    ],
)
def test_a_new_training_from_old_parameters_keeps_the_options_of_the_model(resume, resets):
    resume(1, *PHRASE)
    other = (*PHRASE, "--phrase-max-length", "3", *resets)
    with pytest.raises(UserError, match="phrase-max-length 2 and 3: give --phrase-max-length 2"):
        resume(2, *other)
    assert "Loaded checkpoint" in resume(2, *other, "--allow-difference", "phrase-max-length")


def test_what_was_allowed_is_recorded(resume, tmp_path):
    resume(1, *PHRASE)
    resume(2, *PHRASE, "--phrase-max-length", "3", "--allow-difference", "phrase-max-length")
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
        names = {"trained_name": "a.pt", "here_name": "b.pt"}
        with pytest.raises(UserError, match="subset and all") if differs else nullcontext():
            compare(Identity(older), Identity(now), "train", **names)
