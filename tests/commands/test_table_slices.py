"""Slices of the papers' tables: scripts from text to report, tiny models and a few updates.

One of each kind is run: translation with minimal pairs, translation with several references, labels,
formal languages, and pre-training. ``test_table_texts.py`` makes the data of the other tables, and
``test_table_scripts.py`` parses their commands.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.support.commands import run_script
from tests.support.multi30k import multi30k_of
from tests.support.report_table import rows_with_runs
from tests.support.table_slices import FEW, TINY, pipeline_of

SMALL = [
    "--max-update", "2", "--train-flags", "--max-tokens 200 --num-workers 0", "--generate-flags",
    "--max-len-a 0 --max-len-b 4 --beam 1",
]  # fmt: skip


def table_of(folder: Path) -> tuple[str, list[str]]:
    """The caption of a report, and the titles of the rows that have BLEU."""
    text = (folder / "report.md").read_text()
    caption = re.search(r"\*\*(.*)\*\*", text)[1]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")]
    bleu = [cell.strip() for cell in rows[0]].index("BLEU")
    return caption, [row[1].strip() for row in rows[1:] if row[bleu].strip() != "-"]


@pytest.mark.slow
def test_a_slice_of_the_table_of_syntax_comes_to_its_end_with_minimal_pairs(
    gold_corpus, trained_pipeline, tmp_path
):
    multi30k_of(gold_corpus, tmp_path / "multi30k")
    for side in ("src.en", "tgt.correct.de", "tgt.incorrect.de"):
        pairs = tmp_path / "contrastive" / "agreement"
        pairs.mkdir(parents=True, exist_ok=True)
        lines = (gold_corpus / f"test.{side[-2:]}").read_text().splitlines()[:25]
        ending = " nicht" if "incorrect" in side else ""
        (pairs / side).write_text("".join(f"{line}{ending}\n" for line in lines))
    out = tmp_path / "out"
    options = [
        "--max-update", "3", "--slice", "180", "--jobs", "2", "--train-flags",
        f"{TINY} --max-tokens 500 --num-workers 0", "--generate-flags",
        "--max-len-a 0 --max-len-b 5", "--rows", "2", "--seeds", "2", "--out", out,
    ]  # fmt: skip
    environment = {
        "FAIRSEQ_PHRASE_DATA": str(tmp_path),
        "FAIRSEQ_PHRASE_PARSER": pipeline_of("en", trained_pipeline),
    }
    run_script("which_syntax", *options, **environment)
    caption, titles = table_of(out / "report")
    assert "Multi30k en-de, small setting, only 3 updates, only 180 training pairs" in caption
    assert titles[:2] == ["Transformer (fairseq)", "+ relative positions"]
    text = (out / "report" / "report.md").read_text()
    assert "agreement" in text
    assert "test1" in text
    scored = out / "rows" / "relative" / "seed2" / "contrastive" / "agreement.incorrect.txt"
    assert len(re.findall(r"^H-\d+\t", scored.read_text(), re.MULTILINE)) == 20
    # Of some rows only, in a report of their own.
    some = ["--report-only", "--pairs-of", "relative"]
    run_script("which_syntax", *options, *some, **environment)
    assert table_of(out / "report.minimal_pairs")[1][0] == "+ relative positions"
    assert "agreement" in (out / "report.minimal_pairs" / "report.md").read_text()
    assert "agreement" not in (out / "report" / "report.md").read_text()


@pytest.mark.slow
def test_a_slice_of_the_nist_table_comes_to_its_end(gold_corpus, trained_pipeline, tmp_path):
    """With a corpus like a licensee's: two references of the development set, and a test set."""
    data, out = tmp_path / "nist", tmp_path / "out"
    data.mkdir()
    for name, copies in (
        ("train.de", ["train.zh"]), ("train.en", ["train.en"]),
        ("valid.de", ["dev.zh"]), ("valid.en", ["dev.en0", "dev.en1"]),
        ("test.de", ["test03.zh"]), ("test.en", ["test03.en"]),
    ):  # fmt: skip
        for copy in copies:
            shutil.copy(gold_corpus / name, data / copy)
    run_script(
        "nist_zh_en_table1", *FEW, "--slice", "180", "--rows", "table1_3", "--data", data, "--out", out,
        "--with-parsing", FAIRSEQ_PHRASE_PARSER=pipeline_of("de", trained_pipeline),
    )  # fmt: skip
    for name in ("dev", "test03"):
        caption, titles = table_of(out / f"report-{name}")
        assert f"{name}, first reference, only 4 updates, only 180 training pairs" in caption
        assert titles == ["3: tree"]
    dev = (out / "report-dev" / "report.md").read_text()
    assert "34.23" in dev
    assert "with parsing" in dev
    assert "34.23" not in (out / "report-test03" / "report.md").read_text()
    assert "nrefs:2" in (out / "bleu-of-all-references.txt").read_text()


@pytest.mark.slow
def test_a_slice_of_the_table_of_classification_comes_to_its_end(tmp_path):
    data, out = tmp_path / "sst", tmp_path / "out"
    data.mkdir()
    trees = "(3 (2 A) (3 (4 good) (2 film)))\n(1 (2 A) (1 (0 bad) (2 film)))\n"
    for name, count in (("train", 20), ("dev", 3), ("test", 3)):
        (data / f"{name}.txt").write_text(trees * count)
    run_script(
        "sst_imdb_table", *SMALL[:4], "--rows", "tree,tree_lstm", "--data", data, "--slice", 60,
        "--out", out,
    )  # fmt: skip
    assert sorted(row["row"] for row in rows_with_runs(out / "report")) == ["tree", "tree_lstm"]
    text = (out / "report" / "report.md").read_text()
    assert "Classification, SST-5, all phrases in training, only 2 updates, only 60" in text
    assert "Training chose its best checkpoint by accuracy on the validation set." in text
    assert len((out / "raw" / "text" / "test.class").read_text().splitlines()) == 6
    assert "accuracy by length of the source" in (out / "report" / "report.html").read_text()
    assert (out / "report" / "confusion.png").is_file()


def test_a_slice_of_the_table_of_logical_forms_comes_to_its_end(english_parser, tmp_path):
    data, out = tmp_path / "geo", tmp_path / "out"
    data.mkdir()
    (data / "geo_train.tsv").write_text("what is the river ?\t_answer ( A , _river ( A ) )\n" * 70)
    (data / "geo_test.tsv").write_text("what is the lake ?\t_answer ( A , _lake ( A ) )\n" * 5)
    run_script(
        "semantic_parsing", *SMALL, "--slice", "300", "--rows", "additive_gate,additive", "--data",
        data, "--out", out, **english_parser,
    )  # fmt: skip
    rows = sorted(row["row"] for row in rows_with_runs(out / "report"))
    assert rows == ["additive", "additive_gate"]
    for row, place in (("additive_gate", "data-bin"), ("additive", "data-bin.without-places")):
        commands = (out / "rows" / row / "seed1" / "commands.sh").read_text()
        words = shlex.split(commands)
        data = {
            words[i + 1]
            for i, word in enumerate(words)
            if re.fullmatch("fairseq-(train|generate)", word)
        }
        assert data == {str(out / place)}
        assert ("<copy1>" in (out / place / "dict.en.txt").read_text()) == (row == "additive_gate")
    text = (out / "report" / "report.md").read_text()
    assert "all predicates occur in training" in text
    assert "5 of 5 references are not well-formed." in text


@pytest.mark.slow
def test_a_slice_of_the_tables_of_pre_training_comes_to_its_end(
    gold_corpus, english_parser, tmp_path
):
    """Objectives, and translation from two shares of the pairs, which starts from their checkpoints."""
    multi30k_of(gold_corpus, tmp_path / "multi30k")
    out = tmp_path / "out"
    options = [*SMALL, "--slice", "180", "--out", out, "--jobs", "2"]
    settings = {"FAIRSEQ_PHRASE_DATA": str(tmp_path), **english_parser}
    rows = ("--rows", "masked_lm,masked_phrases")
    run_script("pretraining", *options, "--part", "objectives", *rows, **settings)
    losses = (out / "report-objectives" / "losses.md").read_text()
    models = [line.split("|")[1].strip() for line in losses.splitlines() if line.startswith("| ")]
    assert models[1:] == ["masked_lm (fairseq)", "masked, phrases", "unigram model"]
    rows = ("--rows", "none,masked_phrases", "--fractions", "1/4,1")
    run_script("pretraining", *options, "--part", "translation", *rows, **settings)
    for fraction in ("1-4", "1"):
        folder = out / "translation" / f"fraction-{fraction}"
        row_names = [row["row"] for row in rows_with_runs(folder / "report")]
        assert row_names == ["none", "masked_phrases"]
        log = (folder / "rows" / "masked_phrases" / "seed1" / "train.log").read_text()
        assert "objectives/masked_phrases/seed1/checkpoint_best.pt" in log
    assert "| 1/4 | 1 |" in re.sub(" +", " ", (out / "translation" / "curve.md").read_text())
    assert (out / "translation" / "curve.png").is_file()
    manifest = json.loads((out / "text" / "syntax.en.json").read_text())
    manifest["splits"]["train"]["checksums"]["train.en.words.bin"] = "of other text"
    (out / "text" / "kept.syntax.en.json").write_text(json.dumps(manifest))
    message = run_script(
        "pretraining", *options, "--part", "translation", *rows, **settings, expect=1
    )
    assert "text is not what the kept runs were trained on: train.en.words.bin differ" in message
