"""Recurrent models learn to copy longer sequences than in training, and to order."""

from __future__ import annotations

import re

import pytest

from tests.support.commands import run

MODEL = [
    "--user-dir", "fairseq_phrase", "--arch", "seq2seq", "--attention", "dot", "--cell", "gru",
    "--share-all-embeddings",
    *(f"--{side}-{size}=64" for side in ("encoder", "decoder") for size in ("embed-dim", "hidden-size")),
]  # fmt: skip
POINTER = [
    "--copy",
    "pointer",
    "--encoder-bidirectional",
    "--encoder-hidden-size",
    32,
    "--dropout",
    0,
]
TRAINING = [
    "--optimizer", "adam", "--lr", "0.01", "--clip-norm", "1", "--lr-scheduler", "polynomial_decay",
    "--warmup-updates", "50", "--criterion", "cross_entropy", "--batch-size", "64", "--seed", "1",
    "--num-workers", "0", "--no-progress-bar", "--cpu", "--disable-validation", "--save-interval", "99",
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "longest", "options", "updates", "least"),
    [
        ("copy", 10, ["--dropout", "0.1"], 500, 1.0),
        ("order", 4, POINTER, 600, 0.95),
    ],
)
def test_dot_attention_learns_it(tmp_path, kind, longest, options, updates, least):
    text, data = tmp_path / "text", tmp_path / "data"
    sizes = ["--train", 20_000 if kind == "order" else 6000, "--test", 500, "--max-words", longest]
    run("fairseq-phrase-synthetic", "--kind", kind, "--out", text, *sizes)
    run(
        "fairseq-preprocess", "--source-lang", "de", "--target-lang", "en", "--joined-dictionary",
        "--trainpref", text / "train", "--testpref", text / "test", "--destdir", data,
    )  # fmt: skip
    run(
        "fairseq-train", data, *MODEL, *options, *TRAINING, "--save-dir", tmp_path,
        "--max-update", updates, "--total-num-update", updates,
    )  # fmt: skip
    output = run(
        "fairseq-generate", data, "--user-dir", "fairseq_phrase", "--cpu", "--beam", 1,
        "--path", tmp_path / "checkpoint_last.pt", "--batch-size", 100,
    )  # fmt: skip
    hypotheses = dict(re.findall(r"^H-(\d+)\t\S+\t(.*)$", output, re.MULTILINE))
    targets = dict(re.findall(r"^T-(\d+)\t(.*)$", output, re.MULTILINE))
    assert len(hypotheses) == 500
    right = sum(hypotheses[number] == target for number, target in targets.items()) / len(targets)
    assert right >= least, f"{right:.3f} of the sequences"
