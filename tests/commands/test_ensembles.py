"""Ensembles of models that take different inputs, by fairseq's commands."""

from __future__ import annotations

import re

import pytest
from fairseq_cli import generate

from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.translator import load
from fairseq_phrase.tasks import syntax_translation  # noqa: F401 - registers the task
from tests.support.shared import checkpoints_of

MODELS = {
    "transformer": ["--arch", "transformer"],
    "ngram": ["--arch", "phrase_transformer_tiny"],
    "dependency": ["--arch", "phrase_transformer_tiny", "--phrase-source", "dependency"],
    "structural": ["--arch", "structural_transformer_tiny", "--structural-relative"],
    "tree": ["--arch", "tree_transformer_tiny"],
    "random": [
        "--arch",
        "structural_transformer_tiny",
        "--structural-relative",
        "--tree-source",
        "random",
    ],
}


@pytest.fixture(scope="module")
def checkpoints(data_directory, tmp_path_factory):
    """A checkpoint of each model, after a few updates."""
    models = {name: ["--task", "syntax_translation", *model] for name, model in MODELS.items()}
    return checkpoints_of(tmp_path_factory, data_directory, models)


@pytest.mark.parametrize(
    "names", ["transformer:dependency", "tree:transformer", "ngram:dependency:structural:tree"]
)
@pytest.mark.parametrize("mode", ["--beam=2", "--score-reference"])
def test_each_model_of_an_ensemble_gets_what_it_takes(
    data_directory, checkpoints, command, names, mode
):
    path = ":".join(str(checkpoints[name]) for name in names.split(":"))
    printed = command(
        generate, data_directory, "--user-dir", "fairseq_phrase", "--task", "syntax_translation",
        "--path", path, mode, "--max-len-b", "5", "--batch-size", "50", "--cpu",
    )  # fmt: skip
    assert len(re.findall(r"^H-\d+\t", printed, re.MULTILINE)) == 100


def test_models_of_different_trees_are_refused(data_directory, checkpoints):
    path = f"{checkpoints['structural']}:{checkpoints['random']}"
    with pytest.raises(UserError, match=r"different trees: --tree-source parse .*, and random"):
        load(path, data_directory, device="cpu")
