"""Ensembles of models that take different inputs, by fairseq's commands."""

from __future__ import annotations

import re

import pytest
from fairseq_cli import generate

from fairseq_phrase.inference.translator import load
from fairseq_phrase.parsers import registry
from fairseq_phrase.tasks import syntax_translation  # noqa: F401 - registers the task
from tests.support.gold_parser import GoldParser
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


def test_models_of_different_trees_keep_their_own_in_every_command(
    data_directory, checkpoints, command, synthetic_corpus, monkeypatch
):
    gold = registry._BuiltIn("gold", lambda: GoldParser(synthetic_corpus / "test.de"))
    monkeypatch.setitem(registry._BUILT_IN, "gold", gold)
    sources, targets = (
        (synthetic_corpus / f"test.{language}").read_text().splitlines()
        for language in ("de", "en")
    )
    # Lines that come twice may have different trees.
    number = next(n for n, line in enumerate(sources) if sources.count(line) == 1)
    scores = {}
    for names in ("structural", "random", "structural:random", "random:structural"):
        path = ":".join(str(checkpoints[name]) for name in names.split(":"))
        printed = command(
            generate, data_directory, "--user-dir", "fairseq_phrase", "--task",
            "syntax_translation", "--path", path, "--score-reference", "--batch-size", "50", "--cpu",
        )  # fmt: skip
        (score,) = re.findall(rf"^H-{number}\t(\S+)", printed, re.MULTILINE)
        scores[names] = float(score)
        model = load(path, data_directory, source_parser="gold", device="cpu")
        assert model.score(sources[number], targets[number]) == pytest.approx(
            scores[names], abs=1e-3
        )
    assert scores["structural:random"] == pytest.approx(scores["random:structural"], abs=1e-4)
    assert len(set(scores.values())) >= 3
