"""Preprocessing that was stopped: it goes on where it was and gives the same files."""

from __future__ import annotations

import os

import pytest

from fairseq_phrase.cli.preprocess import main
from fairseq_phrase.data.store.outputs import only_writer
from fairseq_phrase.text import read_lines


def files(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def preprocess(folder, out, *options, splits=("train", "test")):
    prefixes = [f"--{split}pref={folder / split}" for split in splits]
    main(["-s", "de", "-t", "en", *prefixes, "--destdir", str(out), "--vocab-size", "40", *options])
    return out


@pytest.fixture(scope="module")
def text(synthetic_corpus, tmp_path_factory):
    """400 sentence pairs."""
    folder = tmp_path_factory.mktemp("text")
    for language in ("de", "en"):
        lines = list(read_lines(synthetic_corpus / f"train.{language}"))[:400]
        (folder / f"train.{language}").write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_damaged_blocks_are_parsed_again(
    text, tmp_path, trained_pipeline, block_lines, interrupted, jobs_done
):
    block_lines(50)
    options = ("--parser", f"spacy:{trained_pipeline}", "--vocab-size", "300")
    uninterrupted = preprocess(text, tmp_path / "whole", *options, splits=("train",))
    out = tmp_path / "out"
    with interrupted():
        preprocess(text, out, *options, splits=("train",))
    fifth, second = (out / ".partial" / "blocks" / "train" / f"00000{n}" for n in (5, 2))
    content = fifth.read_bytes()
    fifth.write_bytes(content[:60] + bytes([content[60] ^ 1]) + content[61:])
    second.write_bytes(second.read_bytes()[:-1])
    jobs_done.clear()
    preprocess(text, out, *options, splits=("train",))
    assert jobs_done == [2, 5]
    assert files(out) == files(uninterrupted)


def test_two_runs_do_not_work_in_one_folder(text, tmp_path, refused):
    (tmp_path / "out").mkdir()
    with only_writer(tmp_path / "out"):
        message = refused(preprocess, text, tmp_path / "out", splits=("train",))
    assert f"on {os.uname().nodename}, or a command that it started) is at" in message
