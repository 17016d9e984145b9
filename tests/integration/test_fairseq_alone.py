"""``--user-dir fairseq_phrase`` with fairseq's own task and model, on today's torch (docs/compat.md)."""

from __future__ import annotations

import re

from fairseq_phrase.cli import average as average_command
from tests.support.attaching import write_lines
from tests.support.commands import SIZES, TRAINING, losses, run

STOCK = ["--user-dir", "fairseq_phrase", "--task", "translation"]


def test_a_stock_model_trains_resumes_is_averaged_and_translates_every_sentence(
    data_directory, tmp_path
):
    save, average = tmp_path / "save", tmp_path / "average.pt"
    training = [
        "fairseq-train", data_directory, *STOCK, "--arch", "transformer", *TRAINING, *SIZES,
        "--max-tokens", "1000", "--save-dir", save, "--save-interval-updates", "2",
        "--disable-validation",
    ]  # fmt: skip
    run(*training, "--max-update", "2")
    assert sorted(losses(run(*training, "--max-update", "4"))) == [3, 4]
    checkpoints = [save / f"checkpoint_1_{updates}.pt" for updates in (2, 4)]
    average_command.main([*map(str, checkpoints), "--out", str(average)])
    printed = run(
        "fairseq-generate", data_directory, *STOCK, "--path", average, "--cpu", "--max-len-b", "8"
    )
    found = sorted(map(int, re.findall(r"^H-(\d+)\t", printed, re.MULTILINE)))
    # Stock fairseq drops the last four.
    assert found == list(range(100))


def test_masked_lm_takes_sentences_with_numpy_2(tmp_path):
    write_lines(tmp_path / "train.en", ["a man sleeps .", "the dog sees a man in a park ."] * 20)
    run(
        "fairseq-phrase-preprocess", "-s", "en", "--only-source", "--trainpref", tmp_path / "train",
        "--validpref", tmp_path / "train", "--parser", "none", "--vocab-size", "20",
        "--destdir", tmp_path / "data",
    )  # fmt: skip
    printed = run(
        "fairseq-train", tmp_path / "data", "--user-dir", "fairseq_phrase", "--task", "masked_lm",
        "--sample-break-mode", "eos", "--tokens-per-sample", "64", "--arch", "roberta",
        "--encoder-embed-dim", "8", "--encoder-ffn-embed-dim", "8", "--encoder-attention-heads", "2",
        "--encoder-layers", "1", "--criterion", "masked_lm", "--optimizer", "adam", "--lr", "0.01",
        "--batch-size", "4", "--no-save", "--max-update", "3", "--num-workers", "0", "--cpu",
        "--no-progress-bar", "--log-format", "simple", "--log-interval", "1",
    )  # fmt: skip
    assert sorted(losses(printed)) == [1, 2, 3]
