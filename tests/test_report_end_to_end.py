"""The report on what fairseq's own commands left."""

from __future__ import annotations

import sacrebleu
from commands import PHRASE, run
from report_table import records, table_lines

from fairseq_phrase.cli.report import main
from fairseq_phrase.report.generation import read_generation

TRAINING = [
    "--task", "syntax_translation", "--share-all-embeddings", "--optimizer", "adam", "--lr", "0.005",
    "--seed", "3", "--num-workers", "0", "--no-progress-bar", "--log-interval", "2", "--cpu",
    "--log-format", "json",
]  # fmt: skip


def test_the_report_reads_what_fairseqs_commands_print(data_directory, synthetic_corpus, tmp_path):
    folder = tmp_path / "k2" / "seed3"
    folder.mkdir(parents=True)
    user = ["--user-dir", "fairseq_phrase"]
    save = ["--save-dir", folder, *PHRASE, "--max-update", "6"]
    (folder / "train.log").write_text(run("fairseq-train", data_directory, *user, *TRAINING, *save))
    generated = run(
        "fairseq-generate", data_directory, *user, "--task", "syntax_translation", "--path",
        folder / "checkpoint_last.pt", "--beam", "2", "--max-len-b", "10", "--cpu", "--remove-bpe",
        "sentencepiece",
    )  # fmt: skip
    output = folder / "generate.txt"
    output.write_text(generated)
    reference = synthetic_corpus / "test.en"
    main([str(tmp_path / "k2"), "--reference", str(reference), "--out", str(tmp_path / "out")])
    (found,) = records(tmp_path / "out" / "runs.csv")
    hypotheses = read_generation(output).hypotheses
    references = reference.read_text().splitlines()
    assert len(hypotheses) == len(references) == 100
    assert float(found["BLEU"]) == sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert float(found["chrF"]) == sacrebleu.corpus_chrf(hypotheses, [references]).score
    assert (found["row"], found["seed"], found["updates"], found["beam"]) == ("k2", "3", "6", "2")
    assert int(found["parameters"]) > 10_000
    assert float(found["words_per_second"]) > 0
    assert float(found["sentences_per_second"]) > 0
    heading, _ = table_lines((tmp_path / "out" / "report.md").read_text())
    assert "sentences/s" in heading
    assert (tmp_path / "out" / "curves.png").is_file()
