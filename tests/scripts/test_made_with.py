"""Data of a table are made once, and are those of the options and texts of every later call."""

from __future__ import annotations

import gzip
import sys

import pytest

from tests.support.repository import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))
from made_with import main


@pytest.fixture
def made_with(tmp_path, monkeypatch):
    """Return a function that records or checks, and returns the message."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "data-bin").mkdir()
    (tmp_path / "raw/train.de").write_text("ein Hund\n")
    (tmp_path / "raw/train.en.gz").write_bytes(gzip.compress(b"a dog\n"))
    (tmp_path / "raw/train.fr").write_text("of another table\n")
    (tmp_path / "model").write_text("subwords\n")

    monkeypatch.chdir(tmp_path)

    def run(action, *words):
        try:
            main([action, "data-bin", *words])
        except SystemExit as stopped:
            return str(stopped)
        return ""

    return run


WORDS = ["-s", "de", "-t", "en", "--trainpref", "raw/train", "--vocab-size", "80", "--lines", "-1"]


def test_data_without_a_record_are_accepted(made_with):
    assert made_with("check", *WORDS) == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*WORDS, "--parser", "spacy:de"], ""),
        (WORDS, ""),  # this call leaves the parser open
        (
            [*WORDS, "--parser", "none"],
            "with --parser spacy:de; this run has --parser none: remove",
        ),
        ([*WORDS, "--vocab-size", "80"], "--vocab-size 80; this run has --vocab-size 80 80"),
        ([*WORDS, "--dropout", "0"], "(none); this run has --dropout 0"),
        (WORDS[:-2], "with --lines -1; this run has --lines (none)"),
        ([*WORDS, "--testpref", "raw/train"], "this run has --testpref train.de "),
        (
            [word.replace("80", "100") for word in WORDS],
            "--vocab-size 80; this run has --vocab-size 100",
        ),
    ],
)
def test_options_are_compared(made_with, words, message):
    made_with("record", *WORDS, "--parser", "spacy:de")
    output = made_with("check", *words)
    assert message in output
    assert bool(message) == output.startswith("error: data-bin was made with ")


@pytest.mark.parametrize("name", ["train.de", "train.en.gz", "train.fr", "train.de.conllu"])
def test_texts_are_compared_by_their_contents(made_with, tmp_path, name):
    made_with("record", *WORDS)
    (tmp_path / "raw" / name).write_bytes(gzip.compress(b"another\n"))
    output = made_with("check", *WORDS)
    assert (f"--trainpref {name} " in output) == (name != "train.fr")


def test_texts_that_are_not_here_are_not_compared(made_with, tmp_path):
    words = [*WORDS, "--model", str(tmp_path / "model")]
    made_with("record", *words)
    for name in ("raw/train.de", "raw/train.en.gz", "model"):
        (tmp_path / name).unlink()
    assert made_with("check", *words) == ""
    (tmp_path / "model").write_text("others\n")
    assert "--model model " in made_with("check", *words)
