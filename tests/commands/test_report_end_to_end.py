"""The report on what fairseq's own commands left."""

from __future__ import annotations

import os
import subprocess

import pytest
import sacrebleu

from fairseq_phrase.cli.report import main
from fairseq_phrase.lab.report.generation import read_generation
from tests.support.commands import PHRASE, run
from tests.support.report_table import records, table_lines
from tests.support.repository import REPOSITORY
from tests.support.warm_start import commands, python

TRAINING = [
    "--task", "syntax_translation", "--share-all-embeddings", "--optimizer", "adam", "--lr", "0.005",
    "--seed", "3", "--num-workers", "0", "--no-progress-bar", "--log-interval", "2", "--cpu",
    "--log-format", "json",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(data_directory, tmp_path_factory):
    """A run: a training of 6 updates, and its translation of the test set."""
    folder = tmp_path_factory.mktemp("rows") / "k2" / "seed3"
    folder.mkdir(parents=True)
    user = ["--user-dir", "fairseq_phrase"]
    save = ["--save-dir", folder, *PHRASE, "--max-update", "6"]
    (folder / "train.log").write_text(run("fairseq-train", data_directory, *user, *TRAINING, *save))
    generated = run(
        "fairseq-generate", data_directory, *user, "--task", "syntax_translation", "--path",
        folder / "checkpoint_last.pt", "--beam", "2", "--max-len-b", "10", "--cpu", "--remove-bpe",
        "sentencepiece",
    )  # fmt: skip
    (folder / "generate.txt").write_text(generated)
    return folder


def test_the_report_reads_what_fairseqs_commands_print(folder, synthetic_corpus, tmp_path):
    reference = synthetic_corpus / "test.en"
    main([str(folder.parent), "--reference", str(reference), "--out", str(tmp_path / "out")])
    (record,) = records(tmp_path / "out" / "runs.csv")
    hypotheses = read_generation(folder / "generate.txt").hypotheses
    references = reference.read_text().splitlines()
    assert len(hypotheses) == len(references) == 100
    assert float(record["BLEU"]) == sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert float(record["chrF"]) == sacrebleu.corpus_chrf(hypotheses, [references]).score
    assert (record["row"], record["seed"], record["updates"], record["beam"]) == (
        "k2",
        "3",
        "6",
        "2",
    )
    assert int(record["parameters"]) > 10_000
    assert float(record["words_per_second"]) > 0
    assert float(record["sentences_per_second"]) > 0
    heading, _ = table_lines((tmp_path / "out" / "report.md").read_text())
    assert "sentences/s" in heading
    assert (tmp_path / "out" / "curves.png").is_file()


def test_minimal_pairs_are_scored_and_reported(folder, data_directory, synthetic_corpus, tmp_path):
    pairs = tmp_path / "pairs"
    german, english = (
        (synthetic_corpus / f"test.{name}").read_text().splitlines() for name in ("de", "en")
    )
    # Twice the sentence is less probable, whatever the model.
    twice = [f"{line} {line}" for line in english]
    for name, count in (("length", len(english)), ("few", 7)):
        (pairs / f"{name}.mt").mkdir(parents=True)
        for file, lines in (
            ("src.de", german),
            ("tgt.correct.en", english),
            ("tgt.incorrect.en", twice),
        ):
            (pairs / f"{name}.mt" / file).write_text("".join(f"{line}\n" for line in lines[:count]))
    subprocess.run(
        [
            python(), "scripts/contrastive.py", str(pairs), "--data", str(data_directory),
            "--runs", str(folder.parent), "-s", "de", "-t", "en", "--parser", "none", "--work",
            str(tmp_path / "work"), "--checkpoint", "checkpoint_last.pt", "--generate-flags=--cpu",
        ],
        check=True, cwd=REPOSITORY,
        env={**os.environ, "PATH": f"{commands()}:{os.environ['PATH']}"},
    )  # fmt: skip
    main(
        [
            str(folder.parent), "--reference", str(synthetic_corpus / "test.en"), "--out",
            str(tmp_path / "out"), "--contrastive", str(pairs),
        ]
    )  # fmt: skip
    (record,) = records(tmp_path / "out" / "runs.csv")
    assert float(record["length total"]) == float(record["few total"]) == 1
    assert 0 <= float(record["length mean"]) <= 1
