"""The table of the held-out losses of pre-training."""

from __future__ import annotations

import csv
import logging
import sys

import pytest
import yaml

from tests.support.attaching import write_lines
from tests.support.commands import run
from tests.support.repository import REPOSITORY

sys.path.append(str(REPOSITORY / "scripts"))
import pretraining_losses


@pytest.fixture
def text(tmp_path):
    write_lines(tmp_path / "raw.en", ["a man sleeps .", "the dog sees a man ."] * 20)
    texts = [
        argument
        for split in ("train", "valid", "test")
        for argument in (f"--{split}pref", tmp_path / "raw")
    ]
    run(
        "fairseq-phrase-preprocess", "-s", "en", "--only-source", "--parser", "none",
        "--vocab-size", "20", "--destdir", tmp_path / "text", *texts,
    )  # fmt: skip
    return tmp_path / "text"


def test_seeds_are_averaged_and_kept_losses_need_no_model(text, tmp_path, caplog):
    caplog.set_level(
        logging.INFO, "fairseq"
    )  # the script changes it; after the test it is as before
    rows = {
        "masked": {"title": "masked", "task": {"_name": "pretraining"}},
        "masked_lm": {"title": "fairseq", "task": {"_name": "masked_lm"}},
        "unfinished": {"title": "unfinished"},
    }
    (tmp_path / "rows.yaml").write_text(yaml.safe_dump({"rows": rows}))
    tests = {("masked", 1): 3.0, ("masked", 2): 4.0, ("masked_lm", 1): 2.0}
    for (row, seed), loss in tests.items():
        folder = tmp_path / "runs" / row / f"seed{seed}"
        folder.mkdir(parents=True)
        lines = [f"epoch 00{n} | valid on 'valid' subset | loss {loss + 1 / n} |" for n in (1, 2)]
        write_lines(folder / "train.log", lines)
        (folder / "validate-test.txt").write_text(f"test | x 1 | loss {loss} | ppl {2**loss}\n")
    (tmp_path / "runs" / "masked_lm" / "seed1" / "validate-test-without-ends.txt").write_text(
        "test | loss 2.5 | ppl 5.66\n"
    )
    (tmp_path / "runs" / "unfinished" / "seed1").mkdir(parents=True)

    arguments = [tmp_path / "runs", "--data", text, "--rows", tmp_path / "rows.yaml"]
    arguments += ["--out", tmp_path / "report"]
    pretraining_losses.main([*map(str, arguments)])

    with open(tmp_path / "report" / "losses.csv", newline="") as stream:
        losses = {line["model"]: line for line in csv.DictReader(stream)}
    assert list(losses) == ["masked", "fairseq", "unigram model"]
    masked, fairseq = losses["masked"], losses["fairseq"]
    assert (masked["seeds"], masked["test loss"], masked["sd of test loss"]) == (
        "2",
        "3.500",
        "0.707",
    )
    assert (masked["first valid loss"], masked["last valid loss"]) == ("4.500", "4.000")
    assert (fairseq["seeds"], fairseq["test loss"], fairseq["sd of test loss"]) == (
        "1",
        "2.500",
        "",
    )
