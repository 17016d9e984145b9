"""Every command that uses a checkpoint or data compares their identity records, all entries at once."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest
import torch
from fairseq.models.transformer import TransformerModel
from fairseq_cli import generate, train

from fairseq_phrase.data.store.identity import OF_OTHER_DECODERS, PARTS, USES
from fairseq_phrase.errors import UserError
from tests.support.checkpoint_commands import FAIRSEQ, MODEL, ONCE, OWN, PLAIN, USER
from tests.support.commands import run
from tests.support.entry_points import COMMANDS
from tests.support.repository import REPOSITORY


def trained(data: Path, folder: Path, model: Sequence[str]) -> Path:
    """Train for one update."""
    once = [*ONCE, "--max-update", "1"]
    run("fairseq-train", data, *USER, *model, *once, "--save-dir", folder)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def plain(data_directory, tmp_path_factory):
    """A checkpoint of a model without parses."""
    return trained(data_directory, tmp_path_factory.mktemp("plain"), PLAIN)


@pytest.fixture(scope="module")
def checkpoints(data_directory, tmp_path_factory):
    """A checkpoint, and a copy whose record differs in every entry."""
    folder = tmp_path_factory.mktemp("checkpoints")
    first = trained(data_directory, folder, MODEL)
    return first, changed(first)


def changed(checkpoint: Path) -> Path:
    """Copy a checkpoint and change every entry of its record."""
    state = torch.load(checkpoint, weights_only=False)
    for entry in state["task_state"]["identity"]["entries"].values():
        # The source of trees is restored, so that it is the same everywhere.
        if entry["part"] != "trees":
            entry["value"] += "+"
    torch.save(state, changed_path := checkpoint.with_name("other.pt"))
    return changed_path


def differing(checkpoint: Path, use: str) -> set[str]:
    """Return the names of the entries that a use compares; ``pretrained`` leaves out more."""
    entries = torch.load(checkpoint, weights_only=False)["task_state"]["identity"]["entries"]
    left_out = OF_OTHER_DECODERS if use == "pretrained" else USES[use]
    parts = PARTS.keys() - {"trees", *left_out}
    return {name for name, entry in entries.items() if entry["part"] in parts}


def named(message: str) -> set[str]:
    """Return the entries that a message offers to allow."""
    (names,) = re.findall(r"--allow-difference ([\w,-]+)|allow_difference=\"([\w,-]+)\"", message)
    return set("".join(names).split(","))


@pytest.mark.parametrize("name", FAIRSEQ)
def test_fairseqs_commands_compare_every_entry(
    name, checkpoints, data_directory, command, tmp_path
):
    module, use, arguments = FAIRSEQ[name]
    save = ("--save-dir", tmp_path) if module is train else ()
    with pytest.raises(UserError, match=r"other\.pt") as caught:
        command(
            module, data_directory, *USER, *save, "--strict-identity", *arguments, checkpoints[1]
        )
    assert named(str(caught.value)) == differing(checkpoints[1], use)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", OWN)
def test_this_packages_commands_compare_every_entry(
    name, checkpoints, data_directory, synthetic_corpus, tmp_path, capsys
):
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    for part in ("tr", "va", "te"):
        for _ in range(4):
            with open(tasks / "subject.txt", "a") as lines:
                lines.write(
                    f"{part}\tone\tein Hund\\n{part}\ttwo\tzwei Hunde\\n".replace("\\n", "\n")
                )
    first, changed_path = checkpoints
    paths = {
        "DATA": data_directory, "TEXT": synthetic_corpus / "test.de", "TASKS": tasks,
        "NEW": tmp_path / "new", "FIRST": first, "CHECKPOINT": changed_path,
    }  # fmt: skip
    module = import_module(f"fairseq_phrase.cli.{name.partition(' ')[0]}")
    arguments = [str(paths.get(word, word)) for word in OWN[name]]
    with pytest.raises(SystemExit) as stopped:
        module.main([*arguments, "--strict-identity"])
    assert stopped.value.code == 2
    use = "join" if name == "average" else "use"
    assert named(capsys.readouterr().err) == differing(changed_path, use)
    assert not paths["NEW"].exists()


def test_every_model_of_an_ensemble_is_compared(checkpoints, data_directory, command):
    first, changed_path = checkpoints
    with pytest.raises(UserError, match=r"other\.pt"):
        command(generate, data_directory, *USER, "--cpu", "--path", f"{first}:{changed_path}")


def test_the_hub_interface_compares_every_entry(checkpoints, data_directory):
    changed_path = checkpoints[1]
    with pytest.raises(UserError, match=r"other\.pt") as caught:
        TransformerModel.from_pretrained(
            str(changed_path.parent), changed_path.name, str(data_directory), user_dir="fairseq_phrase",
            tokenizer="syntax", bpe="syntax", source_parser="none", strict_identity=True,
        )  # fmt: skip
    assert named(str(caught.value)) == differing(changed_path, "use")


def test_hydra_training_compares_every_entry(data_directory, tmp_path):
    command = [
        "fairseq-hydra-train", "--config-dir", REPOSITORY / "configs", "--config-name", "phrase_tiny",
        f"common.user_dir={REPOSITORY / 'fairseq_phrase'}", f"task.data={data_directory}",
        "common.cpu=true", f"hydra.run.dir={tmp_path}", "dataset.disable_validation=true",
    ]  # fmt: skip
    run(*command, f"checkpoint.save_dir={tmp_path}", "optimization.max_update=1")
    changed_path = changed(tmp_path / "checkpoint_last.pt")
    for option in ("restore_file", "finetune_from_model"):
        printed = run(
            *command, f"checkpoint.save_dir={tmp_path / 'new'}", "optimization.max_update=2",
            f"checkpoint.{option}={changed_path}", "+task.strict_identity=true", expect=1,
        )  # fmt: skip
        assert named(printed) == differing(changed_path, "continue")


def test_all_commands_that_use_a_model_are_tested_here():
    of_fairseq = {f"fairseq-{module.__name__.split('.')[1]}" for module, *_ in FAIRSEQ.values()}
    of_ours = {f"fairseq-phrase-{name.partition(' ')[0]}" for name in OWN}
    commands = set().union(*COMMANDS.values())
    of_hydra = {"fairseq-hydra-train"}
    # test_dictionaries asks the labeller.
    assert commands - of_fairseq - of_hydra - of_ours == {"fairseq-phrase-label"}


def test_a_language_pair_is_not_turned_around(plain, data_directory, command, tmp_path):
    turned = ("--source-lang", "en", "--target-lang", "de")
    message = "source-language de and en, .*name them with --source-lang and --target-lang"
    for module, arguments in (
        (train, [*PLAIN, *ONCE, "--max-update", "2", "--save-dir", tmp_path, "--restore-file"]),
        (generate, ["--cpu", "--path"]),
    ):
        with pytest.raises(UserError, match=message):
            command(module, data_directory, *USER, *turned, *arguments, plain)


def test_an_encoder_does_not_start_from_one_of_another_dictionary_of_this_size(
    plain, data_directory, command, tmp_path
):
    other_data = Path(shutil.copytree(data_directory, tmp_path / "data"))
    lines = (other_data / "dict.de.txt").read_text().splitlines(keepends=True)
    for language in ("de", "en"):
        (other_data / f"dict.{language}.txt").write_text("".join(reversed(lines)))
    with pytest.raises(UserError, match=r"differ in source-dictionary .*\(--srcdict\)"):
        command(
            train, other_data, *USER, *PLAIN, *ONCE, "--save-dir", tmp_path / "save", "--max-update", "1",
            "--pretrained", plain,
        )  # fmt: skip
