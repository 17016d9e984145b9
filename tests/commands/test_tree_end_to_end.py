"""The tree Transformer by the real commands, on the synthetic corpus with its bracketed trees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from fairseq_cli import generate as fairseq_generate
from fairseq_cli import train as fairseq_train

# Importing these registers the task and the models, as --user-dir does in fairseq's commands.
import fairseq_phrase.tasks.syntax_translation  # noqa: F401
from fairseq_phrase.cli import analyze, plot
from fairseq_phrase.cli import preprocess as preprocess_command
from fairseq_phrase.data.store.identity import Identity
from fairseq_phrase.data.store.manifest import Manifest
from tests.support.commands import SIZES, TRAINING, losses, run, train
from tests.support.repository import REPOSITORY
from tests.support.selection import first_fast

TREE = ["--arch", "tree_transformer_tiny", *SIZES, "--max-tokens", "2000"]


@pytest.fixture(scope="module")
def tree_data(synthetic_corpus, tmp_path_factory) -> Path:
    """The synthetic corpus with the constituents of its .ptb files; a test set of 20 sentences."""
    folder = tmp_path_factory.mktemp("trees")
    for suffix in ("de", "en", "de.ptb"):
        lines = (synthetic_corpus / f"test.{suffix}").read_text().splitlines(keepends=True)
        (folder / f"test.{suffix}").write_text("".join(lines[:20]))
    preprocess_command.main(
        ["-s", "de", "-t", "en", "--parser", "ptb", "--trainpref", str(synthetic_corpus / "train"),
         "--validpref", str(synthetic_corpus / "valid"), "--testpref", str(folder / "test"),
         "--vocab-size", "500", "--joined-dictionary", "--destdir", str(folder / "data")]
    )  # fmt: skip
    return folder / "data"


@pytest.fixture(scope="module")
def trained(tree_data, tmp_path_factory) -> tuple[Path, str]:
    save = tmp_path_factory.mktemp("trained")
    return save, train(tree_data, save, *TREE, "--max-epoch", "1")


def translations(printed: str) -> dict[str, str]:
    return dict(re.findall(r"^H-(\d+)\t[^\t]*\t(.*)$", printed, re.MULTILINE))


def test_it_trains_translates_batches_as_single_sentences_and_aligns(trained, tree_data, command):
    after = losses(trained[1])
    assert len(after) > 10
    assert after[max(after)] < 0.85 * after[1]
    arguments = [
        tree_data, "--user-dir", "fairseq_phrase", "--task", "syntax_translation", "--path",
        trained[0] / "checkpoint_last.pt", "--beam", "3", "--max-len-b", "20", "--cpu",
        "--remove-bpe", "sentencepiece",
    ]  # fmt: skip
    together = run("fairseq-generate", *arguments, "--batch-size", "20", "--print-alignment")
    arguments.remove("--user-dir")
    arguments.remove("fairseq_phrase")  # imported here already
    alone = command(fairseq_generate, *arguments, "--batch-size", "1")
    assert len(translations(together)) == 20
    assert translations(together) == translations(alone)
    assert len(re.findall(r"^A-\d+\t\d+-\d+", together, re.MULTILINE)) == 20


def test_pictures_and_tables_are_made_of_the_checkpoint(trained, tree_data, tmp_path, capsys):
    common = [str(tree_data), "--path", str(trained[0] / "checkpoint_last.pt")]
    plot.main(["tree", *common, "--line", "4", "--out", str(tmp_path / "t.svg")])
    assert (tmp_path / "t.svg").stat().st_size > 10_000
    analyze.main(["attention", *common, "--out", str(tmp_path / "shares.md")])
    table = (tmp_path / "shares.md").read_text()
    assert table in capsys.readouterr().out
    row = r"^\| (?:cross|self) +\| +[12] \| +\d+\.\d% \| +\d+\.\d% \|$"
    assert len(re.findall(row, table, re.MULTILINE)) == 4
    for command, message in (
        (["attention", *common, "--subset", "test7"], "test7"),
        (["attention", common[0], "--path", "nowhere.pt"], "nowhere.pt is not there"),
    ):
        with pytest.raises(SystemExit) as ended:
            analyze.main(command)
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


ABLATIONS = [
    ["--no-hierarchical-embeddings"],
    ["--no-subtree-masking"],
    ["--no-hierarchical-embeddings", "--no-subtree-masking"],
    ["--tree-encoder-only", "--tree-one-label", "--checkpoint-activations"],
    ["--tree-convention", "released", "--tree-max-vertical", "3", "--tree-max-horizontal", "4"],
]


@pytest.mark.parametrize("options", first_fast(ABLATIONS), ids=lambda options: " ".join(options))
def test_every_ablation_trains_saves_loads_and_translates(tree_data, tmp_path, command, options):
    task = [tree_data, "--task", "syntax_translation"]
    command(
        fairseq_train, *task, *TRAINING, *TREE, *options, "--save-dir", tmp_path, "--max-update", "2",
        "--disable-validation",
    )  # fmt: skip
    path = tmp_path / "checkpoint_last.pt"
    state = torch.load(path, weights_only=True)
    for name in options:
        if name.startswith("--"):
            saved = state["cfg"]["model"][name[2:].replace("-", "_")]
            assert saved not in (None, False, "paper", 50, 100)
    accumulations = {key for key in state["model"] if "accumulation" in key}
    assert any(key.startswith("decoder") for key in accumulations) != (
        "--tree-encoder-only" in options
    )
    assert any(key.endswith("vertical") for key in accumulations) != (
        "--no-hierarchical-embeddings" in options
    )
    printed = command(
        fairseq_generate, *task, "--path", path, "--beam", "2", "--max-len-b", "5", "--cpu"
    )
    assert len(translations(printed)) == 20


def test_constituents_serve_as_phrases(tree_data, tmp_path, command):
    arguments = [tree_data, "--task", "syntax_translation"]
    options = ["--arch", "phrase_transformer_tiny", *SIZES, "--max-tokens", "2000"]
    command(
        fairseq_train, *arguments, *TRAINING, *options, "--phrase-source", "constituency",
        "--phrase-max-length", "5", "--save-dir", tmp_path, "--max-update", "2", "--disable-validation",
    )  # fmt: skip
    path = tmp_path / "checkpoint_last.pt"
    printed = command(
        fairseq_generate, *arguments, "--path", path, "--beam", "2", "--max-len-b", "5", "--cpu"
    )
    assert len(translations(printed)) == 20


@pytest.mark.parametrize("config", first_fast(["tree_tiny", "tree_iwslt"]))
def test_hydra_trains_from_every_configuration_file(tree_data, tmp_path, config):
    sizes = [argument.removeprefix("--").replace("-", "_") for argument in SIZES]
    run(
        "fairseq-hydra-train", "--config-dir", REPOSITORY / "configs", "--config-name", config,
        f"common.user_dir={REPOSITORY / 'fairseq_phrase'}", f"task.data={tree_data}",
        "task.source_lang=de", "task.target_lang=en", "dataset.num_workers=0",
        *(f"+model.{size}" for size in sizes), "model.tree_max_vertical=7",
        "optimization.max_update=1", "common.cpu=true", f"checkpoint.save_dir={tmp_path}",
        f"hydra.run.dir={tmp_path}",
    )  # fmt: skip
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    arch = {"tree_tiny": "tree_transformer_tiny", "tree_iwslt": "tree_transformer_iwslt_de_en"}
    assert state["cfg"]["model"]["_name"] == arch[config]
    labels = Manifest.load(tree_data, "de").labels["spans"]
    record = Identity.from_dict(state["task_state"]["identity"], tmp_path)
    assert record.entries["spans-labels"].value == labels
    assert state["model"]["encoder.layers.1.self_attn.accumulation.vertical"].shape == (7, 8)
