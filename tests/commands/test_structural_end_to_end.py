"""Models of the paper's table 1 through fairseq's own commands.

The commands' own entry points are called in this process, one after the other: starting Python and
importing fairseq each time would take longer than all the rest.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from fairseq_cli import generate as generate_command
from fairseq_cli import train as train_command

# fairseq imports a user directory only where its package is not imported yet.
import fairseq_phrase.tasks.syntax_translation  # noqa: F401
from tests.support.commands import SIZES, TRAINING, losses, run
from tests.support.repository import REPOSITORY
from tests.support.selection import first_fast
from tests.support.structural_models import TABLE_1

sys.path.insert(0, str(REPOSITORY / "scripts"))
from rows import load_rows

CONFIGS = REPOSITORY / "configs"
ROWS = load_rows([CONFIGS / "tables" / "nist_zh_en_table1.yaml"])
#: The options of positions, and their defaults.
DEFAULTS = {
    "no_sequential_absolute": False,
    "sequential_relative": False,
    "structural_absolute": False,
    "structural_relative": False,
    "structural_fusion": "tanh",
    "structural_relation": "edge",
    "relative_clip": 16,
    "structural_clip": 16,
    "relative_keys_only": False,
}


def options_of(number: str) -> dict:
    """The options of positions in a row of the table."""
    model = ROWS[f"table1_{number}"]["model"]
    return {name: value for name, value in model.items() if name in DEFAULTS}


def flags(options: dict) -> list[str]:
    """The same as flags of fairseq-train."""
    arguments = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        arguments += {True: [flag], False: []}.get(value, [flag, str(value)])
    return arguments


def generated(command, data: Path, checkpoint: Path) -> dict[str, str]:
    """The translations of the validation set, each with its score."""
    output = command(
        generate_command, data, "--user-dir", "fairseq_phrase", "--task", "syntax_translation",
        "--path", checkpoint, "--gen-subset", "valid", "--beam", "2", "--max-len-a", "0",
        "--max-len-b", "8", "--batch-size", "50", "--cpu",
    )  # fmt: skip
    return dict(re.findall(r"^H-(\d+)\t(.*)$", output, re.MULTILINE))


def test_the_rows_have_the_positions_of_table_1():
    for number, positions in TABLE_1.items():
        assert options_of(number) == {**DEFAULTS, **positions}


# Unit tests build every row; test_every_encoder_trains.py resumes the first.
@pytest.mark.parametrize("number", first_fast(["9", "5"]))
def test_models_of_table_1_train_and_generate(number, command, data_directory, tmp_path):
    options = options_of(number)
    command(
        train_command, data_directory, "--user-dir", "fairseq_phrase", "--task",
        "syntax_translation", *TRAINING, *SIZES, "--arch", "structural_transformer_tiny",
        *flags(options), "--save-dir", tmp_path, "--max-tokens", "500", "--max-update", "3",
        "--disable-validation",
    )  # fmt: skip
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    assert state["optimizer_history"][-1]["num_updates"] == 3
    saved = {name: state["cfg"]["model"][name] for name in DEFAULTS}
    assert saved == options
    assert len(generated(command, data_directory, tmp_path / "checkpoint_last.pt")) == 100


def test_a_model_without_structure_trains_from_a_plain_fairseq_data_directory(
    command, data_directory, tmp_path
):
    plain = tmp_path / "plain"
    plain.mkdir()
    for path in data_directory.glob("*"):
        if re.search(r"(^dict\.(de|en)\.txt|\.(de|en)\.(bin|idx))$", path.name):
            (plain / path.name).symlink_to(path)
    command(
        train_command, plain, "--user-dir", "fairseq_phrase", "--task", "translation", *TRAINING,
        *SIZES, "--arch", "structural_transformer_tiny", *flags(options_of("7")), "--save-dir",
        tmp_path, "--max-tokens", "500", "--max-update", "1", "--disable-validation",
    )  # fmt: skip
    assert (tmp_path / "checkpoint_last.pt").exists()


@pytest.mark.parametrize(("number", "tables"), first_fast([("9", 8), ("4", 0)]))
def test_hydra_trains_from_the_file(number, tables, data_directory, tmp_path):
    """The file is model 9; the others are other values of its four positions."""
    positions = {
        name: value for name, value in options_of(number).items() if value in (True, False)
    }
    log = run(
        "fairseq-hydra-train", "--config-dir", CONFIGS, "--config-name", "structural",
        *(f"model.{name}={str(value).lower()}" for name, value in positions.items() if number != "9"),
        f"common.user_dir={REPOSITORY / 'fairseq_phrase'}", f"task.data={data_directory}",
        "common.log_interval=1", "model._name=structural_transformer_tiny", "common.cpu=true",
        *(f"+model.{size.removeprefix('--').replace('-', '_')}" for size in SIZES),
        "optimization.max_update=2", "optimization.update_freq=[1]", "dataset.num_workers=0",
        "dataset.max_tokens=500", "dataset.disable_validation=true",
        f"checkpoint.save_dir={tmp_path}", f"hydra.run.dir={tmp_path}",
    )  # fmt: skip
    assert sorted(losses(log)) == [1, 2]
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    # 2 layers; sequential and structural; keys and values
    assert len([name for name in state["model"] if "relative" in name]) == tables
    assert {name: state["cfg"]["model"][name] for name in DEFAULTS} == options_of(number)
