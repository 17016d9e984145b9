"""Shared parameters at every entry point of a training, and the number that its checkpoints share."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from fairseq_cli import generate, train

from fairseq_phrase.checkpoints.averaging import average_checkpoints
from fairseq_phrase.checkpoints.identity import identity_of
from fairseq_phrase.checkpoints.trust import load_checkpoint
from fairseq_phrase.data.store.identity import LOGGED, Identity
from fairseq_phrase.errors import UserError
from tests.support.commands import SIZES, TRAINING, run

USER = ("--user-dir", "fairseq_phrase", "--task", "syntax_translation")
ONCE = ("--max-tokens", "400", "--disable-validation", *SIZES)
UNTIED = tuple(each for each in TRAINING if each != "--share-all-embeddings")
RESETS = [f"--reset-{name}" for name in ("optimizer", "lr-scheduler", "meters", "dataloader")]


@pytest.fixture(scope="module")
def untied(data_directory, tmp_path_factory):
    """A checkpoint of stock fairseq, whose default shares nothing."""
    folder = tmp_path_factory.mktemp("untied")
    run(
        "fairseq-train", data_directory, "--arch", "transformer", "--task", "translation",
        *UNTIED, *ONCE, "--max-update", "1", "--save-dir", folder,
    )  # fmt: skip
    return folder / "checkpoint_last.pt"


@pytest.mark.fast(1)
@pytest.mark.parametrize("arch", ["transformer", "relation_transformer"])
@pytest.mark.parametrize(
    "flags",
    [["--finetune-from-model"], ["--pretrained-model"], ["--restore-file"], [*RESETS, "--restore-file"]],
    ids=["fine-tuned", "pretrained", "restored", "reset"],
)  # fmt: skip
def test_a_model_that_shares_does_not_begin_from_one_that_does_not(
    flags, arch, untied, data_directory, command, tmp_path
):
    train_arguments = [
        *TRAINING, *ONCE, "--arch", arch, "--max-update", "2", "--save-dir", tmp_path, *flags,
    ]  # fmt: skip
    names = "share-all-embeddings,share-decoder-input-output-embed"
    with pytest.raises(
        UserError, match=r"share-all-embeddings False and True.*: leave out --share"
    ):
        command(train, data_directory, *USER, *train_arguments, untied)
    with pytest.raises(UserError, match=r"have different values, and here they are one parameter"):
        command(train, data_directory, *USER, *train_arguments, untied, "--allow-difference", names)
    assert not list(tmp_path.iterdir())


def number(path: Path) -> str | None:
    return identity_of(load_checkpoint(path), path).value("training")


@pytest.mark.fast(1)
@pytest.mark.parametrize("task", ["syntax_translation", "translation"])
def test_the_number_of_a_training_is_kept_by_a_resume_and_by_nothing_else(
    task, data_directory, command, tmp_path
):
    def trained(folder: str, updates: int, *flags: object) -> Path:
        save = (
            "--save-dir",
            tmp_path / folder,
            "--max-update",
            updates,
            "--save-interval-updates",
            1,
        )
        arch = ("--arch", "transformer", *TRAINING, *ONCE)
        log = command(train, data_directory, *USER, "--task", task, *arch, *save, *flags)
        assert re.search(r"lengths of train: \w{8}$", log, re.MULTILINE)
        return tmp_path / folder / f"checkpoint_1_{updates}.pt"

    first, resumed = trained("a", 1), trained("a", 2)
    elsewhere = trained("b", 2, "--restore-file", first)
    again = trained("c", 1)
    tuned = trained("d", 1, "--finetune-from-model", first)
    assert number(first) == number(resumed) == number(elsewhere)
    assert len({number(first), number(again), number(tuned)}) == 3
    average_checkpoints([first, resumed], tmp_path / "average.pt")
    average_checkpoints([first, resumed, elsewhere], tmp_path / "average.pt")
    for checkpoint in (again, tuned):
        with pytest.raises(
            UserError, match=r"differ in training \w{8} and \w{8}: name checkpoints"
        ):
            average_checkpoints([first, checkpoint], tmp_path / "average.pt")


def test_fairseqs_own_task_notices_data_that_were_made_again(data_directory, command, tmp_path):
    """With dictionaries of the same size, all parameters have the right shapes."""
    data = tmp_path / "data"
    shutil.copytree(data_directory, data)
    task_arguments = (data, "--user-dir", "fairseq_phrase", "--task", "translation")
    options = ("--arch", "transformer", *TRAINING, *ONCE, "--save-dir", tmp_path, "--max-update")
    checkpoint = tmp_path / "checkpoint_last.pt"
    translate = (*task_arguments, "--path", checkpoint, "--beam", "1", "--max-len-b", "2")
    (record,) = re.findall(rf"{LOGGED}(.*)", command(train, *task_arguments, *options, "1"))
    logged = Identity.from_dict(json.loads(record), "the log")
    recorded = identity_of(load_checkpoint(checkpoint), checkpoint)
    for name in ("source-dictionary", "target-dictionary", "encoder", "target-language"):
        assert logged.value(name) == recorded.value(name) is not None
    assert "Generate test with beam=1" in command(generate, *translate)
    for language in ("de", "en"):
        dictionary = data / f"dict.{language}.txt"
        dictionary.write_text("".join(dictionary.read_text().splitlines(keepends=True)[::-1]))
    for arguments in ((train, *task_arguments, *options, "2"), (generate, *translate)):
        with pytest.raises(
            UserError, match=r"differ in source-dictionary dict.de.txt \(.*--srcdict"
        ) as raised:
            command(*arguments)
        assert "--allow-difference" not in str(raised.value)  # these tasks lack the option
