"""The tree Transformer by the real commands, on the synthetic corpus with its bracketed trees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fairseq_cli import generate as fairseq_generate

# Importing these registers the task and the models, as --user-dir does in fairseq's commands.
import fairseq_phrase.tasks.syntax_translation  # noqa: F401
from fairseq_phrase.cli import analyze, plot
from fairseq_phrase.cli import preprocess as preprocess_command
from tests.support.commands import SIZES, losses, run, train, translations

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
