"""Checkpoints keep the fingerprints of their dictionaries, and refuse data whose numbers differ."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fairseq_cli import train as train_command
from fairseq_cli import validate as validate_command

from fairseq_phrase.cli.preprocess import main as preprocess
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.labelling import load_labeller

USER = ["--user-dir", "fairseq_phrase", "--task", "syntax_labelling"]
TRAINING = [
    *USER, "--arch", "labeller", "--encoder-layers", "1", "--encoder-embed-dim", "8",
    "--encoder-ffn-embed-dim", "8", "--encoder-attention-heads", "2", "--optimizer", "adam",
    "--lr", "0.01", "--max-tokens", "400", "--disable-validation", "--no-progress-bar", "--cpu",
]  # fmt: skip
MESSAGE = (
    r"checkpoint_last\.pt and this run on {other} differ in target-dictionary dict\.class\.txt "
    r"\(2 entries, \w+\) and dict\.class\.txt \(2 entries, \w+\): make the data with the training's "
    r"dictionary \(--tgtdict\), or let this pass with --allow-difference target-dictionary"
)


def make_data(folder: Path, counts: dict[str, int], *options: object) -> Path:
    """Preprocess texts of two classes, as many as ``counts`` says."""
    folder.mkdir()
    labels = [label for label, count in counts.items() for _ in range(count)]
    for split in ("train", "valid"):
        (folder / f"{split}.class").write_text("".join(f"{label}\n" for label in labels))
        (folder / f"{split}.en").write_text("a b b c c c\n" * len(labels))
    prefixes = [f"--{split}pref={folder / split}" for split in ("train", "valid")]
    arguments = ["-s", "en", "-t", "class", "--labels", "sentence", "--bpe", "none", *prefixes]
    preprocess([*arguments, "--destdir", str(folder / "data"), *map(str, options)])
    return folder / "data"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("first") / "one", {"pos": 8, "neg": 4})


@pytest.fixture(scope="module")
def renumbered(data, tmp_path_factory):
    """The same labels with other counts, which fairseq therefore numbers in the other order."""
    folder = tmp_path_factory.mktemp("second") / "two"
    return make_data(folder, {"pos": 4, "neg": 8}, "--srcdict", data / "dict.en.txt")


@pytest.fixture
def train(command, tmp_path):
    def trained(data, updates, *options):
        return command(
            train_command, data, *TRAINING, "--save-dir", tmp_path / "save", "--max-update", updates,
            *options,
        )  # fmt: skip

    return trained


@pytest.fixture
def checkpoint(train, data, tmp_path):
    train(data, 1)
    return tmp_path / "save" / "checkpoint_last.pt"


def test_labels_of_other_numbers_are_refused(checkpoint, data, renumbered, command):
    message = MESSAGE.format(other=re.escape(str(renumbered)))
    with pytest.raises(UserError, match=message):
        load_labeller(str(checkpoint), str(renumbered))
    with pytest.raises(UserError, match=message):
        command(
            validate_command, renumbered, *USER, "--path", checkpoint, "--batch-size", "4", "--cpu",
        )  # fmt: skip
    (label,) = load_labeller(str(checkpoint), str(data)).label(["a b"])
    assert label in ("pos", "neg")


def test_labels_of_the_trainings_dictionary_are_accepted(checkpoint, data, tmp_path):
    dictionaries = ("--srcdict", data / "dict.en.txt", "--tgtdict", data / "dict.class.txt")
    again = make_data(tmp_path / "again", {"pos": 4, "neg": 8}, *dictionaries)
    first, second = (load_labeller(str(checkpoint), str(folder)) for folder in (data, again))
    assert list(first.label(["a b", "c"])) == list(second.label(["a b", "c"]))


def test_directories_whose_labels_have_other_numbers_do_not_go_together(data, renumbered, train):
    first, second = (re.escape(str(folder)) for folder in (data, renumbered))
    with pytest.raises(UserError, match=f"{second} and {first} differ in target-dictionary dict"):
        train(f"{data}:{renumbered}", 1)
    train(f"{data}:{data}", 1)
