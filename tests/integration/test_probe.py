"""``fairseq-phrase-probe`` on a trained model that needs trees, with a parser of raw text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fairseq_cli import train as fairseq_train

# Importing these registers the task and the models, as --user-dir does in fairseq's commands.
import fairseq_phrase.models.tree_transformer
import fairseq_phrase.tasks.syntax_translation  # noqa: F401
from fairseq_phrase.cli import probe
from tests.support.commands import SIZES, TRAINING, run_script


@pytest.fixture
def checkpoint(data_directory, tmp_path, command) -> Path:
    command(
        fairseq_train, data_directory, "--task", "syntax_translation", *TRAINING, "--arch",
        "tree_transformer_tiny", *SIZES, "--max-tokens", "1000", "--max-update", "2",
        "--disable-validation", "--save-dir", tmp_path / "saved",
    )  # fmt: skip
    return tmp_path / "saved" / "checkpoint_last.pt"


@pytest.fixture
def tasks(synthetic_corpus, tmp_path) -> Path:
    """A task that any vector can learn: whether a sentence is longer than the median."""
    lines = (synthetic_corpus / "train.de").read_text(encoding="utf-8").splitlines()[:300]
    median = sorted(len(line.split()) for line in lines)[150]
    folder = tmp_path / "tasks"
    folder.mkdir()
    for split, part in (("va", lines[:200]), ("te", lines[200:])):
        rows = [f"{line}\t{len(line.split()) > median}\n" for line in part]
        (folder / f"sentence_length.{split}.txt").write_text("".join(rows), encoding="utf-8")
    return folder


def test_a_tree_transformer_is_probed_layer_by_layer(
    checkpoint, tasks, trained_pipeline, tmp_path, capsys
):
    arguments = [
        "--path", str(checkpoint), "--tasks", str(tasks), "--layer", "all", "--hidden", "20",
        "--l2", "0.001", "--out", str(tmp_path / "out"), "--cpu",
    ]  # fmt: skip
    # The data are from gold trees, which new text does not have.
    with pytest.raises(SystemExit):
        probe.main(arguments)
    assert "name a parser for it with --source-parser" in capsys.readouterr().err
    probe.main([*arguments, "--source-parser", f"spacy:{trained_pipeline}"])
    printed = capsys.readouterr().out
    assert "saved/checkpoint_last.pt" in printed
    results = json.loads((tmp_path / "out" / "probing.json").read_text())
    assert results["tasks"]["sentence_length"]["sentences"] == [160, 40, 100]
    assert [one["layer"] for one in results["results"]] == [0, 1, 2]
    majority = results["tasks"]["sentence_length"]["majority"]
    assert max(one["accuracy"] for one in results["results"]) > majority + 0.1
    assert (tmp_path / "out" / "probing.md").read_text() == printed
    assert (tmp_path / "out" / "probing.png").stat().st_size > 5000


def test_the_script_prints_the_averages_of_the_papers_table(tasks, tmp_path):
    path = tmp_path / "table" / "rows" / "transformer" / "seed1" / "average.pt"
    path.parent.mkdir(parents=True)
    path.touch()
    output = run_script("probing_table3", tmp_path / "table", "--tasks", tasks, "--dry-run")
    command, paper = output.index("fairseq-phrase-probe --path"), output.index("Table 3")
    assert command < paper
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in output[paper:].splitlines()
    ]
    assert [row for row in cells if len(row) == 4][-3:] == [
        ["Transformer-Base", "77.60", "65.00", "74.61"],
        ["+ relative sequential positions", "76.50", "64.98", "75.03"],
        ["+ structural positions", "76.22", "65.87", "75.12"],
    ]
