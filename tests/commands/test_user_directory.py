"""A user's own task that derives from ours, in a user directory of its own."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.support.commands import SIZES, TRAINING, run
from tests.support.repository import REPOSITORY
from tests.support.warm_start import python

TASK = """
from dataclasses import dataclass
import fairseq_phrase
fairseq_phrase.register()
from fairseq.tasks import register_task
from fairseq_phrase.tasks.syntax_translation import SyntaxTranslationConfig, SyntaxTranslationTask

@dataclass
class OwnConfig(SyntaxTranslationConfig):
    pass

@register_task("own_translation", dataclass=OwnConfig)
class OwnTask(SyntaxTranslationTask):
    pass
"""
CRITERION = """
from fairseq.criterions import register_criterion
from fairseq.criterions.cross_entropy import CrossEntropyCriterion, CrossEntropyCriterionConfig
from fairseq.logging import metrics

@register_criterion("tagged", dataclass=CrossEntropyCriterionConfig)
class Tagged(CrossEntropyCriterion):
    def __init__(self, task, sentence_avg):
        super().__init__(task, sentence_avg)
        task.require_parses(["tags"], for_model=False)

    def forward(self, model, sample, reduce=True):
        loss, size, logged = super().forward(model, sample, reduce)
        assert "src_tags" not in sample["net_input"]
        return loss, size, {**logged, "tagged": int((sample["parse"]["tags"] >= 0).sum())}

    @classmethod
    def reduce_metrics(cls, logging_outputs):
        super().reduce_metrics(logging_outputs)
        metrics.log_scalar("tagged", sum(log["tagged"] for log in logging_outputs))
"""


#: The command, with one request instead of a server that runs until it is stopped.
DEMO = """
import sys, uvicorn
from fastapi.testclient import TestClient
def answer(app, **_):
    print(TestClient(app, base_url="http://127.0.0.1").get("/api/start").text)
uvicorn.run = answer
from fairseq_phrase.cli.demo import main
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def trained(data_directory, tmp_path_factory):
    """The user directory, and a checkpoint of its task."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_tasks").mkdir()
    (folder / "own_tasks" / "__init__.py").write_text(TASK)
    run(
        "fairseq-train", data_directory, "--user-dir", folder / "own_tasks", "--task",
        "own_translation", "--arch", "phrase_transformer_tiny", *TRAINING, *SIZES, "--max-update", "1",
        "--max-tokens", "400", "--disable-validation", "--save-dir", folder,
        "--max-target-positions", "100",
    )  # fmt: skip
    return folder / "own_tasks", folder / "checkpoint_last.pt"


def translations(printed):
    """The lines of an output, without the warning that the parser is not the training's."""
    return [line for line in printed.splitlines() if "--strict-identity" not in line]


def test_it_trains_with_our_encoders_and_translates(trained, data_directory, synthetic_corpus):
    user_dir, checkpoint = trained
    first = (synthetic_corpus / "test.de").read_text().splitlines()[0] + "\n"
    printed = run(
        "fairseq-phrase-translate", data_directory, "--path", checkpoint, "--source-parser", "none",
        "--user-dir", user_dir, "--beam", "1", stdin=first,
    )  # fmt: skip
    assert len(translations(printed)) == 1


def test_without_its_folder_the_message_names_the_option(trained, data_directory):
    _, checkpoint = trained
    printed = run(
        "fairseq-phrase-translate", data_directory, "--path", checkpoint, stdin="a\n", expect=2
    )
    assert "holds a task 'own_translation', which neither fairseq nor this package has" in printed
    assert "--user-dir" in printed


def test_labelling_knows_the_task_by_its_folder(trained, data_directory):
    user_dir, checkpoint = trained
    printed = run(
        "fairseq-phrase-label", data_directory, "--path", checkpoint, "--user-dir", user_dir,
        expect=2,
    )  # fmt: skip
    assert (
        "trained by the task own_translation: only models of the task syntax_labelling" in printed
    )


def test_the_demo_serves_the_task(trained, data_directory):
    user_dir, checkpoint = trained
    arguments = [
        f"own={checkpoint}", "--data", data_directory, "--user-dir", user_dir, "--source-parser",
        "none", "--device", "cpu",
    ]  # fmt: skip
    served = subprocess.run(
        [python(), "-c", DEMO, *map(str, arguments)],
        cwd=REPOSITORY, capture_output=True, text=True,
    )  # fmt: skip
    assert '"models":["own"]' in served.stdout, served.stderr


def test_a_bundle_of_the_task_translates(trained, data_directory, synthetic_corpus, tmp_path):
    user_dir, checkpoint = trained
    bundle = tmp_path / "bundle"
    export = ("fairseq-phrase-export", checkpoint, data_directory, bundle)
    printed = run(*export, expect=2)
    assert "in a command by --user-dir FOLDER" in printed
    assert not bundle.exists()
    run(*export, "--user-dir", user_dir)
    first = (synthetic_corpus / "test.de").read_text().splitlines()[0] + "\n"
    options = (bundle, "--source-parser", "none", "--beam", "1")
    lines = run("fairseq-phrase-translate", *options, "--user-dir", user_dir, stdin=first)
    assert len(translations(lines)) == 1


def test_a_criterion_reads_parses_with_fairseqs_own_encoder(data_directory, tmp_path):
    (tmp_path / "own_criteria").mkdir()
    (tmp_path / "own_criteria" / "__init__.py").write_text(TASK + CRITERION)
    training = [option for option in TRAINING if "label" not in str(option)]
    training[training.index("--criterion") + 1] = "tagged"
    log = run(
        "fairseq-train", data_directory, "--user-dir", tmp_path / "own_criteria", "--task",
        "own_translation", "--arch", "transformer", *training, *SIZES, "--max-update", "2",
        "--max-tokens", "400", "--save-dir", tmp_path, "--log-interval", "1",
    )  # fmt: skip
    assert re.search(r"train_inner.* tagged=\d+", log)
    assert re.search(r"valid.* tagged \d+", log)
