"""``fairseq-phrase-probe`` on a trained model that needs trees, with a parser of raw text."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from fairseq_cli import train as fairseq_train

# Importing these registers the task and the models, as --user-dir does in fairseq's commands.
import fairseq_phrase.tasks.syntax_translation  # noqa: F401
from fairseq_phrase.cli import preprocess, probe
from tests.support.commands import SIZES, TRAINING, run_script
from tests.support.shared import Checkpoints


@pytest.fixture
def checkpoint(data_directory, tmp_path_factory) -> Path:
    models = {"tree": ["--task", "syntax_translation", "--arch", "tree_transformer_tiny"]}
    return Checkpoints(tmp_path_factory, data_directory, models)["tree"]


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
    checkpoint, tasks, trained_pipeline, tmp_path, capsys, refused
):
    arguments = [
        "--path", str(checkpoint), "--tasks", str(tasks), "--layer", "all", "--hidden", "20",
        "--l2", "0.001", "--out", str(tmp_path / "out"), "--device", "cpu",
    ]  # fmt: skip
    # The data are from gold trees, which new text does not have.
    assert "name a parser for it, " in refused(probe.main, arguments)
    probe.main([*arguments, "--source-parser", f"spacy:{trained_pipeline}"])
    printed = capsys.readouterr().out
    assert f"{checkpoint.parent.name}/checkpoint_last.pt" in printed
    results = json.loads((tmp_path / "out" / "probing.json").read_text())
    assert results["tasks"]["sentence_length"]["sentences"] == [160, 40, 100]
    assert [result["layer"] for result in results["results"]] == [0, 1, 2]
    majority = results["tasks"]["sentence_length"]["majority"]
    assert max(result["accuracy"] for result in results["results"]) > majority + 0.1
    assert (tmp_path / "out" / "probing.md").read_text() == printed
    assert (tmp_path / "out" / "probing.png").stat().st_size > 5000


@pytest.mark.parametrize("option", ["--device", "--out", "--baseline"])
def test_what_cannot_be_used_is_named_before_anything_is_trained(
    option, checkpoint, tasks, tmp_path, capsys
):
    file = tmp_path / "file"
    file.touch()
    value = {"--device": "cuda:77", "--out": str(file), "--baseline": "zebra"}[option]
    with pytest.raises(SystemExit) as ended:
        probe.main(["--path", str(checkpoint), "--tasks", str(tasks), option, value])
    assert ended.value.code == 2
    assert value in capsys.readouterr().err


@pytest.fixture
def dry_table(tmp_path) -> Path:
    """The folder of a table from English, as far as a dry run looks at it."""
    folder = tmp_path / "table"
    for path in ("rows/transformer/seed1/average.pt", "data-bin/syntax.en.json"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    return folder


def probing_command(output: str) -> list[str]:
    """The words of the command that probes, from a dry run."""
    return shlex.split(re.search(r"^fairseq-phrase-probe --path .*$", output, re.MULTILINE)[0])


def test_the_script_makes_top_constituents_only_if_they_are_missing(dry_table, tasks):
    folder = str(dry_table / "probing" / "tasks")
    arguments = ["probing_table3", dry_table, "--tasks", tasks, "--dry-run"]
    output = run_script(*arguments)
    assert "--make top_constituents" in output
    assert probing_command(output).count(folder) == 1
    (tasks / "top_constituents.txt").touch()
    output = run_script(*arguments)
    assert "--make top_constituents" not in output
    assert folder not in probing_command(output)


def test_the_script_finds_trees_in_any_folders(dry_table, tasks, tmp_path):
    trees = tmp_path / "wsj"
    arguments = ["probing_table3", dry_table, "--tasks", tasks, "--trees", trees, "--dry-run"]
    (trees / "00").mkdir(parents=True)
    refused = run_script(*arguments, expect=1)
    assert f"error: --trees {trees}: there is no *.mrg file" in refused
    files = [trees / "00" / "wsj_0001.mrg", trees / "01" / "wsj_0101.mrg", trees / "wsj_2400.mrg"]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    printed = run_script(*arguments).replace("\\ ", " ")  # blanks are quoted
    assert f"--trees {' '.join(map(str, files))} --out" in printed


def test_the_script_refuses_a_table_of_another_language(dry_table, tasks):
    (dry_table / "data-bin" / "syntax.en.json").rename(dry_table / "data-bin" / "syntax.de.json")
    output = run_script("probing_table3", dry_table, "--tasks", tasks, "--dry-run", expect=1)
    assert output == (
        f"error: {dry_table}/data-bin has no syntax.en.json: the tasks are English, and so the table "
        "must translate from English\n"
    )


@pytest.fixture
def trained_table(synthetic_corpus, tmp_path, command) -> Path:
    """The folder of a table from English with a row of one layer and two seeds."""
    folder = tmp_path / "table"
    texts = [f"--{name}pref={synthetic_corpus / name}" for name in ("train", "valid", "test")]
    options = ["--vocab-size", "300", "--joined-dictionary", "--parser", "none"]
    data = ["--destdir", str(folder / "data-bin")]
    preprocess.main(["-s", "en", "-t", "de", *texts, *data, *options])
    for seed in ("1", "2"):
        saved = folder / "rows" / "transformer" / f"seed{seed}"
        command(
            fairseq_train, folder / "data-bin", "--task", "syntax_translation", *TRAINING, "--arch",
            "transformer", *SIZES, "--encoder-layers", "1", "--seed", seed, "--max-tokens", "500",
            "--max-update", "2", "--disable-validation", "--save-dir", saved,
        )  # fmt: skip
        (saved / "checkpoint_last.pt").rename(saved / "average.pt")
    return folder


@pytest.fixture
def senteval_tasks(synthetic_corpus, tmp_path) -> Path:
    """A task in SentEval's format: whether a sentence is longer than the median, called its depth."""
    lines = (synthetic_corpus / "train.en").read_text(encoding="utf-8").splitlines()[:100]
    median = sorted(len(line.split()) for line in lines)[50]
    splits = ["tr"] * 60 + ["va"] * 20 + ["te"] * 20
    rows = [
        f"{split}\t{len(line.split()) > median}\t{line}\n"
        for split, line in zip(splits, lines, strict=True)
    ]
    folder = tmp_path / "senteval"
    folder.mkdir()
    (folder / "tree_depth.txt").write_text("".join(rows), encoding="utf-8")
    return folder


@pytest.mark.slow
def test_a_slice_of_the_script_comes_to_its_report(trained_table, senteval_tasks, english_parser):
    output = run_script(
        "probing_table3", trained_table, "--tasks", senteval_tasks, "--max-sentences", 40, "--seeds",
        "1,2", **english_parser,
    )  # fmt: skip
    out = trained_table / "probing"
    sentences = (out / "raw" / "sentences.en").read_text().splitlines()
    tasks = [senteval_tasks / "tree_depth.txt", out / "tasks" / "top_constituents.txt"]
    texts = [{line.split("\t")[2] for line in path.read_text().splitlines()} for path in tasks]
    assert texts[1] <= texts[0] == set(sentences)
    results = json.loads((out / "probing.json").read_text())
    assert list(results["tasks"]) == ["tree_depth", "top_constituents"]
    assert results["tasks"]["tree_depth"]["sentences"] == [40, 10, 10]
    assert [results["results"][place]["checkpoint"][-16:] for place in (0, -1)] == [
        "seed1/average.pt", "seed2/average.pt",
    ]  # fmt: skip
    rows = [
        [cell.strip() for cell in line.split("|")[1:5]]
        for line in (out / "probing.md").read_text().splitlines()
        if line.startswith("| transformer")
    ]
    assert [row[:3] for row in rows] == [["transformer", layer, "2"] for layer in "01"]
    assert all(" ± " in row[3] for row in rows)
    assert (out / "probing.md").read_text() in output
    assert (out / "probing.png").is_file()
