"""The scripts of the papers' tables: each command of each row, slices that come to the end, bad input."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import REPOSITORY, shared_data, shared_pipeline
from fairseq import options

import fairseq_phrase.models.phrase_transformer
import fairseq_phrase.models.structural_transformer
import fairseq_phrase.models.tree_transformer
import fairseq_phrase.tasks.syntax_translation  # noqa: F401
from fairseq_phrase.cli import average, preprocess, report, synthetic

TINY = " ".join(
    f"--{side}-{name} {value}"
    for side in ("encoder", "decoder")
    for name, value in (
        ("layers", 1), ("embed-dim", 16), ("ffn-embed-dim", 16), ("attention-heads", 2)
    )
)  # fmt: skip
FEW = [
    "--max-update", "4", "--train-flags", f"{TINY} --max-tokens 500 --update-freq 1 --num-workers 0",
    "--generate-flags", "--max-len-a 0 --max-len-b 5", "--jobs", "2", "--slice", "300",
]  # fmt: skip
OWN = {"preprocess": preprocess, "average": average, "report": report, "synthetic": synthetic}
DRY = "--dry-run"


def script(name: str, *arguments: object, expect: int = 0, **environment: str) -> str:
    """Run a script in an environment that is ready; return what it printed."""
    commands = Path(sys.executable).parent
    finished = subprocess.run(
        ["bash", f"scripts/{name}.sh", *map(str, arguments)],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "FAIRSEQ_PHRASE_READY": "1",
            "FAIRSEQ_PHRASE_PARSER": "spacy:any",
            **environment,
        },
        capture_output=True,
        text=True,
    )
    output = finished.stdout + finished.stderr
    assert finished.returncode == expect, output[-4000:]
    return output


def printed_commands(output: str) -> list[list[str]]:
    """The words of each command that a dry run prints, without redirections."""
    lines = (shlex.split(line, comments=True) for line in output.splitlines() if "\x1b" not in line)
    return [[word for word in words if word[0] not in "<>"] for words in lines if words]


@pytest.fixture
def parse(monkeypatch):
    """Let a command's own parser read its flags: an unknown one, or a bad value, ends the test."""
    monkeypatch.chdir(REPOSITORY)
    stock = {
        "fairseq-train": options.get_training_parser,
        "fairseq-generate": options.get_generation_parser,
        "fairseq-interactive": options.get_interactive_generation_parser,
    }

    def parsed(words: list[str]):
        name, *arguments = words
        if name in stock:
            return options.parse_args_and_arch(stock[name](), arguments)
        if name.startswith("fairseq-phrase-"):
            return OWN[name.removeprefix("fairseq-phrase-")]._parser().parse_args(arguments)
        return None

    return parsed


TABLES = {
    "multi30k_table1": ("configs/multi30k_table1/rows.yaml", ["--setting", "tuned"]),
    "multi30k_table1 paper": ("configs/multi30k_table1/rows.yaml", ["--setting", "paper"]),
    "wmt14_table2": ("configs/wmt14_table2/base/rows.yaml", ["--size", "base"]),
    "wmt14_table2 big": (
        "configs/wmt14_table2/big/rows.yaml",
        ["--size", "big", "--gpus-per-run", "4", "--precision", "bf16"],
    ),
    "iwslt14_trees": ("configs/iwslt14_trees/rows.yaml", ["--fractions", "1/4,1"]),
    "nist_zh_en_table1": ("configs/structural/rows.yaml", ["--data", "tests"]),
}


@pytest.mark.parametrize("table", TABLES)
def test_every_flag_of_every_command_of_every_row_is_known(table, tmp_path, parse):
    titles, arguments = TABLES[table]
    rows = list(yaml.safe_load((REPOSITORY / titles).read_text()))
    out = tmp_path / "out"
    output = script(
        table.split()[0], DRY, "--with-parsing", *arguments, "--seeds", "1,2", "--out", out
    )
    commands = printed_commands(output)
    trained = [Path(words[-2]) for words in commands if words[0] == "fairseq-train"]
    repeated = 2 if "--fractions" in arguments else 1
    assert [path.parent.name for path in trained] == (rows + rows) * repeated
    for words in commands:
        parse(words)
    assert not out.exists(), "nothing was run"


def test_the_check_of_flags_finds_unknown_ones(parse, capsys):
    with pytest.raises(SystemExit):
        parse(["fairseq-train", "D", "--arch", "tree_transformer", "--no-such-flag"])
    assert "unrecognized arguments: --no-such-flag" in capsys.readouterr().err


def test_several_gpus_train_a_run_on_the_same_batch_and_one_translates(parse):
    output = script("wmt14_table2", DRY, "--gpus", "0,1,2,3", "--gpus-per-run", "4", "--rows", "1")
    training, translating = (
        parse(next(words for words in printed_commands(output) if words[0] == name))
        for name in ("fairseq-train", "fairseq-generate")
    )
    assert training.distributed_world_size == 4
    assert (training.update_freq, training.max_tokens) == ([2], 4096)
    assert translating.distributed_world_size == 1
    assert (translating.beam, translating.lenpen) == (4, 0.6)


def pipeline_of(language: str, fallback: Path) -> str:
    """A parser of a language for the scripts."""
    return f"spacy:{shared_pipeline({'en': 'en_ewt_sm', 'de': 'de_ud_sm'}[language]) or fallback}"


def table_of(folder: Path) -> tuple[str, list[str]]:
    """The caption of a report, and the titles of the rows that have BLEU."""
    text = (folder / "report.md").read_text()
    caption = re.search(r"\*\*(.*)\*\*", text)[1]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")]
    bleu = [cell.strip() for cell in rows[0]].index("BLEU")
    return caption, [row[1].strip() for row in rows[1:] if row[bleu].strip() != "-"]


def test_a_slice_of_the_wmt_table_comes_to_its_end(synthetic_corpus, trained_pipeline, tmp_path):
    data = []
    if shared_data("wmt") is None:
        for path in synthetic_corpus.iterdir():
            shutil.copy(path, tmp_path / path.name.replace("valid", "dev"))
        data = ["--data", tmp_path]
    environment = {"FAIRSEQ_PHRASE_PARSER": pipeline_of("en", trained_pipeline)}
    if not data:
        environment["FAIRSEQ_PHRASE_DATA"] = str(shared_data("wmt").parent)
    out = tmp_path / "out"
    rows = ["--rows", "transformer,structural_9"]
    script("wmt14_table2", *FEW, *rows, *data, "--out", out, **environment)
    caption, titles = table_of(out / "report")
    assert "only 4 updates, only 300 training pairs" in caption
    assert titles == ["Transformer-Base (fairseq)", "+ relative sequential PE + structural PE"]
    # What is in a folder cannot be taken for a table of other settings.
    refused = script("wmt14_table2", *rows, "--out", out, expect=1)
    assert "name another folder with --out" in refused


def test_a_slice_of_the_tree_table_comes_to_its_end_with_a_curve(trained_pipeline, tmp_path):
    script(
        "iwslt14_trees", *FEW, "--rows", "tree_neither", "--fractions", "1/2,1", "--out", tmp_path,
        FAIRSEQ_PHRASE_PARSER=pipeline_of("de", trained_pipeline),
    )  # fmt: skip
    for fraction in ("1/2", "1"):
        folder = tmp_path / f"fraction-{fraction.replace('/', '-')}"
        caption, titles = table_of(folder / "report")
        assert f"{fraction} of the training data" in caption
        assert "only 4 updates, only 300 training pairs" in caption
        assert titles == ["Tree Transformer, neither of the two"]
    texts = [tmp_path / f"fraction-{name}" / "raw" / "train.de" for name in ("1-2", "1")]
    half, whole = (text.read_text().splitlines() for text in texts)
    assert half == whole[::2]
    assert "| 1/2 | 1 |" in (tmp_path / "curve.md").read_text()
    assert (tmp_path / "curve.png").is_file()


def test_a_slice_of_the_nist_table_comes_to_its_end(synthetic_corpus, trained_pipeline, tmp_path):
    """With a corpus like a licensee's: two references of the development set, and a test set."""
    data, out = tmp_path / "nist", tmp_path / "out"
    data.mkdir()
    for name, copies in (
        ("train.de", ["train.zh"]), ("train.en", ["train.en"]),
        ("valid.de", ["dev.zh"]), ("valid.en", ["dev.en0", "dev.en1"]),
        ("test.de", ["test03.zh"]), ("test.en", ["test03.en"]),
    ):  # fmt: skip
        for copy in copies:
            shutil.copy(synthetic_corpus / name, data / copy)
    script(
        "nist_zh_en_table1", *FEW, "--rows", "table1_3", "--data", data, "--out", out, "--with-parsing",
        FAIRSEQ_PHRASE_PARSER=pipeline_of("de", trained_pipeline),
    )  # fmt: skip
    for name in ("dev", "test03"):
        caption, titles = table_of(out / f"report-{name}")
        assert f"{name}, first reference, only 4 updates, only 300 training pairs" in caption
        assert titles == ["3: tree"]
    dev = (out / "report-dev" / "report.md").read_text()
    assert "34.23" in dev
    assert "with parsing" in dev
    assert "34.23" not in (out / "report-test03" / "report.md").read_text()
    assert "nrefs:2" in (out / "bleu-of-all-references.txt").read_text()


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("wmt14_table2", ["--size", "huge"], "--size huge: expected one of base big"),
        ("wmt14_table2", ["--sise", "big"], "unknown option '--sise'"),
        ("wmt14_table2", [""], "unknown option ''"),
        ("wmt14_table2", ["--slice"], "--slice needs a value"),
        ("wmt14_table2", ["--slice", "many"], "--slice many: expected a number"),
        ("wmt14_table2", ["--precision", "fp8"], "--precision fp8: expected one of fp32 fp16 bf16"),
        ("wmt14_table2", ["--bpe-codes", "codes"], "--bpe-codes is for text that you have"),
        ("wmt14_table2", [DRY, "--gpus-per-run", "3"], "update_freq 8 on one GPU, which 3 cannot"),
        ("wmt14_table2", [DRY, "--rows", "structural_1"], "no row structural_1"),
        ("iwslt14_trees", ["--direction", "en-fr"], "without --data, --direction en-fr: expected"),
        ("iwslt14_trees", ["--fractions", "2/3"], "--fractions 2/3: expected 1 or 1/K"),
        ("nist_zh_en_table1", [], "the LDC's text cannot be downloaded"),
        ("nist_zh_en_table1", ["--data", "/nowhere"], "--data /nowhere: there is no such folder"),
        ("multi30k_table1", ["--setting", "best"], "--setting best: expected one of tuned paper"),
    ],
)
def test_bad_options_are_named(name, arguments, message, tmp_path):
    out = tmp_path / "out"
    assert message in script(name, "--out", out, *arguments, expect=1)
    assert not out.exists()


def test_help_says_which_options_there_are():
    for name in dict.fromkeys(table.split()[0] for table in TABLES):
        output = script(name, "--help")
        assert "Options of this table:" in output
        assert "--gpus-per-run N" in output


def test_an_environment_that_is_not_ready_is_named(tmp_path):
    shutil.copy(shutil.which("dirname"), tmp_path)
    output = script(
        "wmt14_table2", DRY, "--out", tmp_path / "out", expect=1, PATH=f"{tmp_path}:/usr/bin:/bin"
    )
    assert "PATH finds no fairseq-train" in output
