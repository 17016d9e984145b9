"""Preprocessing that was stopped: it goes on where it was and gives the same files."""

from __future__ import annotations

import os
import random
import signal
import subprocess

import pytest

from fairseq_phrase.cli.preprocess import main
from fairseq_phrase.data.preprocessing import texts
from fairseq_phrase.text import read_lines
from tests.support.warm_start import python


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


#: Blocks of 10 lines. After each one, the run says so and waits for a line on standard input, if
#: that is open. Whoever started the run so decides how far it gets.
GATED = """
import sys
from fairseq_phrase.data.preprocessing import engines, texts
from fairseq_phrase.data.preprocessing.parsing import BlockFolder
write = BlockFolder.write
def gated(*arguments):
    write(*arguments)
    print("block", flush=True)
    sys.stdin.readline()
BlockFolder.write = gated
texts.BLOCK_LINES, engines.LINES_PER_PARSER = 10, 1
from fairseq_phrase.cli.preprocess import main
if __name__ == "__main__":
    main(sys.argv[1:])
"""


def start(text, out, parser, workers):
    script = text / "gated.py"
    script.write_text(GATED)
    options = ["-s", "de", "-t", "en", "--trainpref", str(text / "train"), "--destdir", str(out)]
    options += ["--vocab-size", "300", "--parser", f"spacy:{parser}", "--workers", str(workers)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([python(), str(script), *options], **pipes, text=True)


def wait_for_blocks(run, count):
    """Let a run write so many blocks; it waits after the last one."""
    for number in range(count):
        if number:
            let_on(run, 1)
        assert "block\n" in iter(run.stdout.readline, "")


def let_on(run, blocks):
    """Let a run write so many blocks more, without waiting for them."""
    run.stdin.write("\n" * blocks)
    run.stdin.flush()


def let_end(run):
    """Let a run go on to its end; returns its messages."""
    messages = run.communicate()[1]
    assert run.returncode == 0, messages
    return messages


def finished(out):
    return sum(not path.suffix for path in out.glob(".partial/blocks/*/*"))


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory, trained_pipeline):
    """The files of a run that nobody stops, with one worker: two give the same."""
    out = tmp_path_factory.mktemp("whole")
    let_end(start(text, out, trained_pipeline, workers=1))
    return files(out)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_run_goes_on_where_it_was_and_gives_the_same_files(
    text, tmp_path, trained_pipeline, whole, workers
):
    out, moments = tmp_path / "out", random.Random(workers)
    blocks_at_kill = []
    for _ in range(2):
        run, before = start(text, out, trained_pipeline, workers), finished(out)
        # Twice at most 9 of 40 blocks, those during the kill included: the run never ends.
        count = moments.randint(1, 5)
        wait_for_blocks(run, count)
        assert finished(out) == before + count
        let_on(run, moments.randint(0, 3))
        run.kill()
        run.communicate()
        assert run.returncode == -signal.SIGKILL
        blocks_at_kill.append(finished(out))
    assert blocks_at_kill == sorted(blocks_at_kill)
    assert blocks_at_kill[0] > 0
    let_end(start(text, out, trained_pipeline, workers))
    assert files(out) == whole
    assert not (out / ".partial").exists()


def test_damaged_blocks_are_parsed_again(
    text, tmp_path, trained_pipeline, monkeypatch, interrupted, jobs_done
):
    monkeypatch.setattr(texts, "BLOCK_LINES", 50)
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


def test_a_finished_parse_is_not_done_again(
    text, tmp_path, trained_pipeline, monkeypatch, interrupted, jobs_done
):
    monkeypatch.setattr(texts, "BLOCK_LINES", 50)
    options = ("--parser", f"spacy:{trained_pipeline}", "--vocab-size=300")
    for _ in range(2):
        with interrupted():
            preprocess(text, tmp_path / "out", *options, splits=("train",))
    assert jobs_done == list(range(8))


def test_two_runs_do_not_work_in_one_folder(text, tmp_path, trained_pipeline, refused):
    run = start(text, tmp_path / "out", trained_pipeline, 1)
    wait_for_blocks(run, 1)
    assert f"on {os.uname().nodename}, or a command that it started) is at" in refused(
        preprocess, text, tmp_path / "out", splits=("train",)
    )
    let_end(run)
