"""Trainings that are resumed, with the options of their model or others."""

from __future__ import annotations

import re

import pytest
from fairseq_cli import train as fairseq_train

from fairseq_phrase.errors import UserError
from fairseq_phrase.models import phrase_transformer, seq2seq, structural_transformer  # noqa: F401
from fairseq_phrase.models.model_options import differences
from fairseq_phrase.tasks import syntax_translation  # noqa: F401
from tests.support.commands import SIZES, TRAINING


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


PHRASE = ("--arch", "phrase_transformer_tiny")


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (PHRASE, ("--phrase-max-length", "3"), "--phrase-max-length 2 and 3"),
        (PHRASE, ("--phrase-mask", "all"), "--phrase-mask subset and all"),
        (
            ("--arch", "structural_transformer_tiny"),
            ("--no-sequential-absolute",),
            "--no-sequential-absolute False and True",
        ),
        (
            ("--arch", "phrase_transformer_tiny", "--encoder-attention-heads", "2"),
            ("--encoder-attention-heads", "4"),
            "--encoder-attention-heads 2 and 4",
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


def test_a_new_training_from_old_parameters_may_have_other_options(resume, tmp_path):
    resume(1, *PHRASE)
    printed = resume(2, *PHRASE, "--phrase-max-length", "3", "--reset-optimizer")
    assert "Loaded checkpoint" in printed


def test_options_that_an_older_checkpoint_lacks_have_their_defaults():
    saved = {"_name": "phrase_transformer", "phrase_max_length": 2}
    assert differences(saved, {**saved, "phrase_mask": "subset"}) == []
    assert differences(saved, {**saved, "phrase_mask": "all"}) == ["--phrase-mask subset and all"]


def test_models_of_other_packages_are_compared_in_what_they_share():
    assert differences({"_name": "lstm"}, {"_name": "phrase_transformer"}) == []
    assert differences({}, {"_name": "phrase_transformer"}) == []
