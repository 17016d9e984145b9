"""Slices of the tables of labelling and pre-training: scripts from text to report, a few updates."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.commands import run_script
from tests.support.multi30k import multi30k_of
from tests.support.report_table import records, rows_with_runs

SMALL = ["--max-update", "2", "--train-flags", "--max-tokens 200 --num-workers 0"]


def table_of(script: str, rows: str, out: Path, *options: object, **settings: str) -> str:
    """Run a slice of a table: its report, in which just these rows have runs."""
    run_script(script, *SMALL, "--rows", rows, "--out", out, *options, **settings)
    assert sorted(row["row"] for row in rows_with_runs(out / "report")) == sorted(rows.split(","))
    return (out / "report" / "report.md").read_text()


def test_a_slice_of_the_table_of_tagging_comes_to_its_end_on_a_sample_of_the_treebank(
    english_parser, tmp_path
):
    data, out = tmp_path / "wsj", tmp_path / "out"
    tree = "( (S (NP (DT The) (NN dog)) (VP (VBZ sleeps)) (. .)) )\n"
    for section in ("00", "01"):
        (data / section).mkdir(parents=True)
        for number in range(5):
            (data / section / f"wsj_{section}{number:02}.mrg").write_text(tree * 10)
    text = table_of("ptb_tagging_table2", "transformer", out, "--data", data, **english_parser)
    assert f"**Part-of-speech tagging, Penn Treebank ({data}) (the paper's numbers: " in text
    assert ", only 2 updates" in text
    assert "unknown words" in text
    assert "Training chose its best checkpoint by accuracy on the validation set." in text
    assert (out / "report" / "confusion.png").is_file()
    texts = [(out / "raw" / "labels" / f"{name}.tag").read_text() for name in ("train", "test")]
    assert [len(set(text.splitlines())) for text in texts] == [1, 1]
    assert texts[1].startswith("DT NN VBZ .")


def test_a_slice_of_the_table_of_chunking_comes_to_its_end(english_parser, tmp_path):
    data, out = tmp_path / "conll2000", tmp_path / "out"
    data.mkdir()
    sentence = "The DT B-NP\ndog NN I-NP\nsleeps VBZ B-VP\n. . O\n\n"
    for name, count in (("train", 40), ("test", 5)):
        (data / f"{name}.txt").write_text(sentence * count)
    options = ("--data", data, "--slice", 30)
    text = table_of("chunking", "transformer", out, *options, **english_parser)
    assert "Chunking, CoNLL-2000, only 2 updates, only 30 training" in text
    assert {"F1_mean", "accuracy_mean"} <= set(records(out / "report" / "report.csv")[0])


def test_a_slice_of_the_table_of_classification_comes_to_its_end(tmp_path):
    data, out = tmp_path / "sst", tmp_path / "out"
    data.mkdir()
    trees = "(3 (2 A) (3 (4 good) (2 film)))\n(1 (2 A) (1 (0 bad) (2 film)))\n"
    for name, count in (("train", 20), ("dev", 3), ("test", 3)):
        (data / f"{name}.txt").write_text(trees * count)
    options = ("--data", data, "--slice", 60)
    text = table_of("sst_imdb_table", "tree,tree_lstm", out, *options)
    assert "Classification, SST-5, all phrases in training, only 2 updates, only 60" in text
    assert len((out / "raw" / "labels" / "test.class").read_text().splitlines()) == 6
    assert "accuracy by length of the source" in (out / "report" / "report.html").read_text()


def test_a_slice_of_the_table_of_reviews_labels_long_ones_too(
    synthetic_corpus, english_parser, tmp_path
):
    data, out = tmp_path / "imdb", tmp_path / "out"
    data.mkdir()
    lines = (synthetic_corpus / "train.en").read_text().splitlines()
    reviews = [" ".join(lines[start : start + 2]) for start in range(0, 1000, 2)]
    # One review is longer than the model's positions.
    for name, texts in (("train", reviews), ("test", [*reviews[:2], " ".join(lines[:200])])):
        rows = [f"{'pos' if i % 2 else 'neg'}\t5\t{i}\t{text}\n" for i, text in enumerate(texts)]
        (data / f"{name}.tsv").write_text("".join(rows))
    options = ("--task", "imdb", "--data", data, "--slice", 500)
    text = table_of("sst_imdb_table", "tree", out, *options, **english_parser)
    assert "Classification, IMDB, reviews cut to 1,024 tokens" in text
    labels = next((out / "rows").rglob("labels-test.txt")).read_text().split()
    assert len(labels) == 3
    assert set(labels) <= {"pos", "neg"}


def test_a_slice_of_the_tables_of_pre_training_comes_to_its_end(
    synthetic_corpus, english_parser, tmp_path
):
    """Objectives, and translation from two shares of the pairs, which starts from their checkpoints."""
    multi30k_of(synthetic_corpus, tmp_path / "multi30k")
    out = tmp_path / "out"
    options = [*SMALL, "--slice", "300", "--out", out, "--jobs", "2", "--generate-flags"]
    options += ["--max-len-a 0 --max-len-b 4 --beam 1"]
    settings = {"FAIRSEQ_PHRASE_DATA": str(tmp_path), **english_parser}
    rows = ("--rows", "masked_lm,masked_phrases")
    run_script("pretraining", *options, "--part", "objectives", *rows, **settings)
    losses = (out / "report-objectives" / "losses.md").read_text()
    named = [line.split("|")[1].strip() for line in losses.splitlines() if line.startswith("| ")]
    assert named[1:] == ["masked_lm (fairseq)", "masked, phrases", "unigram model"]
    rows = ("--rows", "none,masked_phrases", "--fractions", "1/4,1")
    run_script("pretraining", *options, "--part", "translation", *rows, **settings)
    for fraction in ("1-4", "1"):
        folder = out / "translation" / f"fraction-{fraction}"
        found = [row["row"] for row in rows_with_runs(folder / "report")]
        assert found == ["none", "masked_phrases"]
        log = (folder / "rows" / "masked_phrases" / "seed1" / "train.log").read_text()
        assert "objectives/masked_phrases/seed1/checkpoint_best.pt" in log
    assert (out / "translation" / "curve.png").is_file()
    other = json.loads((out / "text" / "syntax.en.json").read_text())
    other["splits"]["train"]["checksums"]["train.en.words.bin"] = "of other text"
    (out / "text" / "kept.syntax.en.json").write_text(json.dumps(other))
    said = run_script("pretraining", *options, "--part", "translation", *rows, **settings, expect=1)
    assert "text is not what the kept runs were trained on: train.en.words.bin differ" in said
