"""Checkpoints keep the fingerprints of their dictionaries, and refuse data whose numbers differ."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from fairseq_cli import train as train_command
from fairseq_cli import validate as validate_command

from fairseq_phrase.cli.preprocess import main as preprocess
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.labelling import load_labeller
from fairseq_phrase.models.averaging import average_checkpoints
from fairseq_phrase.models.loading import register_all

register_all()
USER = ["--user-dir", "fairseq_phrase", "--task", "syntax_labelling"]
TRAINING = [
    *USER, "--arch", "labeller", "--encoder-layers", "1", "--encoder-embed-dim", "8",
    "--encoder-ffn-embed-dim", "8", "--encoder-attention-heads", "2", "--optimizer", "adam",
    "--lr", "0.01", "--max-tokens", "400", "--disable-validation", "--no-progress-bar", "--cpu",
]  # fmt: skip
MESSAGE = (
    r"{other}/dict\.class\.txt is not the dictionary that this model was trained with \(6 entries, and 6 "
    r"in training\).*: make {other} again with --tgtdict TRAINING_DATA/dict\.class\.txt"
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


def without_fingerprints(checkpoint: Path) -> Path:
    """Write the checkpoint as an earlier version wrote it."""
    state = torch.load(checkpoint, weights_only=True)
    for side in ("source", "target"):
        del state["cfg"]["model"][f"{side}_dictionary_fingerprint"]
    torch.save(state, checkpoint.with_name("earlier.pt"))
    return checkpoint.with_name("earlier.pt")


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
    first, second = (load_labeller(str(checkpoint), str(each)) for each in (data, again))
    assert list(first.label(["a b", "c"])) == list(second.label(["a b", "c"]))


def test_a_source_dictionary_in_another_order_is_refused(checkpoint, data, tmp_path):
    other = Path(shutil.copytree(data, tmp_path / "other"))
    lines = (data / "dict.en.txt").read_text().splitlines(keepends=True)
    (other / "dict.en.txt").write_text("".join(reversed(lines)))
    with pytest.raises(UserError, match=r"dict\.en\.txt is not the dictionary .* with --srcdict"):
        load_labeller(str(checkpoint), str(other))


def test_a_training_is_not_resumed_with_labels_of_other_numbers(checkpoint, renumbered, train):
    with pytest.raises(UserError, match=MESSAGE.format(other=re.escape(str(renumbered)))) as caught:
        train(renumbered, 2)
    assert f"{checkpoint} cannot be resumed from" in str(caught.value)


def test_directories_whose_labels_have_other_numbers_do_not_go_together(data, renumbered, train):
    one, other = (re.escape(f"{each}/dict.class.txt") for each in (data, renumbered))
    with pytest.raises(UserError, match=f"{other} is not the dictionary {one}: .*--tgtdict {one}"):
        train(f"{data}:{renumbered}", 1)
    train(f"{data}:{data}", 1)


def test_checkpoints_of_other_labels_are_not_averaged(checkpoint, renumbered, command, tmp_path):
    command(
        train_command, renumbered, *TRAINING, "--save-dir", tmp_path / "other", "--max-update", 1
    )
    other = tmp_path / "other" / "checkpoint_last.pt"
    with pytest.raises(UserError, match="entries of the target dictionary are numbered diff"):
        average_checkpoints([checkpoint, other], tmp_path / "average.pt")
    average_checkpoints([checkpoint, without_fingerprints(checkpoint)], tmp_path / "average.pt")


def test_checkpoints_of_earlier_versions_are_not_checked(checkpoint, data, renumbered, train):
    earlier = without_fingerprints(checkpoint)
    for each in (data, renumbered):
        assert list(load_labeller(str(earlier), str(each)).label(["a b"]))
    earlier.rename(checkpoint)
    assert "Loaded checkpoint" in train(data, 2)
