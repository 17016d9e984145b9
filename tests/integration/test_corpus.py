"""Parsing a corpus: the same parses whoever does it and however often it is stopped."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_phrase.cli.preprocess import main
from fairseq_phrase.corpus import engines
from fairseq_phrase.corpus import parsing as corpus_module
from fairseq_phrase.corpus.engines import EngineOptions, Job, run_jobs
from fairseq_phrase.corpus.parse_shards import ShardFolder, from_bytes, to_bytes
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import LineParser, Unparsed
from fairseq_phrase.parsers.pipeline import ParsingOptions, ParsingPipeline
from fairseq_phrase.parsers.whitespace import WhitespaceParser
from fairseq_phrase.store.manifest import Manifest
from fairseq_phrase.store.reader import ParseStore
from fairseq_phrase.text import read_lines

LINES = ["Ein Hund läuft .", "", "Zwei  Katzen", "\0 \u2028 👩‍👩‍👧", "x " * 50] * 3


@pytest.fixture
def spacy(trained_pipeline):
    return ParsingOptions(f"spacy:{trained_pipeline}", "from-dependencies")


def jobs(size=4):
    return [
        Job(number, 1 + start, LINES[start : start + size])
        for number, start in enumerate(range(0, len(LINES), size))
    ]


def shards(options, engine):
    return {done.job.number: done.shard for done in run_jobs(jobs(), options, engine)}


def files(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


# Shards


def test_a_shard_gives_back_what_went_in(spacy):
    parses = ParsingPipeline(spacy).parse(LINES)
    parses.append(Unparsed("because", parses[0]))
    for parse, copy in zip(parses, from_bytes(to_bytes(parses)), strict=True):
        if isinstance(parse, Unparsed):
            assert isinstance(copy, Unparsed)
            assert copy.reason == parse.reason
            parse, copy = parse.sentence, copy.sentence
        assert (copy.words, copy.space_before) == (parse.words, parse.space_before)
        assert (copy.deprels, copy.tags) == (parse.deprels, parse.tags)
        assert copy.tree.heads.tolist() == parse.tree.heads.tolist()
        assert copy.constituents == parse.constituents


def test_shards_of_another_text_or_parser_are_dropped(tmp_path):
    lines = ["Ein Hund"]
    ShardFolder(tmp_path, {"text": "1"}).write(0, lines, b"")
    assert ShardFolder(tmp_path, {"text": "1"}).holds(0, lines)
    assert not ShardFolder(tmp_path, {"text": "2"}).holds(0, lines)
    assert not ShardFolder(tmp_path, {"text": "1"}).holds(0, lines)


def test_a_note_of_another_run_that_is_no_text_is_replaced(tmp_path):
    (tmp_path / "key.json").write_bytes(b"\xff")
    ShardFolder(tmp_path, {"text": "1"}).write(0, ["a"], b"")
    assert ShardFolder(tmp_path, {"text": "1"}).holds(0, ["a"])


DAMAGE = {
    "cut short": lambda shard: shard[:-9],
    "a line less": lambda shard: b"".join(shard.splitlines(keepends=True)[:-1]),
    "another word": lambda shard: shard.replace(b"Hund", b"Kuh"),
    "empty": lambda shard: b"",
    "no text": lambda shard: bytes(range(256)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_shard_is_not_taken_for_whole(spacy, tmp_path, caplog, damage):
    folder = ShardFolder(tmp_path, {})
    folder.write(0, LINES, to_bytes(ParsingPipeline(spacy).parse(LINES)))
    assert folder.holds(0, LINES)
    (file,) = tmp_path.glob("*.jsonl")
    file.write_bytes(DAMAGE[damage](file.read_bytes()))
    assert not folder.holds(0, LINES)
    assert f"{file} is damaged" in caplog.text
    assert not file.exists()


texts = st.lists(st.text(st.characters(exclude_characters="\n"), max_size=5), max_size=5)


@given(texts, texts)
@settings(max_examples=50)
def test_a_shard_of_other_lines_is_not_taken_for_theirs(tmp_path_factory, lines, others):
    folder = ShardFolder(tmp_path_factory.mktemp("shards"), {})
    folder.write(0, lines, b"")
    assert folder.holds(0, lines)
    assert folder.holds(0, others) == (lines == others)


# Engines


@pytest.mark.parametrize("workers", [2, 3])
def test_processes_make_the_bytes_that_one_makes(spacy, workers):
    assert shards(spacy, EngineOptions(workers=workers)) == shards(spacy, EngineOptions())


def test_ray_makes_the_bytes_that_one_process_makes(spacy):
    assert shards(spacy, EngineOptions("ray", 2)) == shards(spacy, EngineOptions())


def test_a_ray_cluster_that_is_not_there_is_named():
    with pytest.raises(UserError, match="cannot connect to Ray at 'ray://localhost:1'"):
        shards(ParsingOptions(), EngineOptions("ray", 1, "ray://localhost:1"))


def test_a_ray_cluster_that_does_not_answer_is_given_up_in_time():
    """In a process of its own, because Ray's attempt goes on until the process ends."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        code = (
            "from fairseq_phrase.cli import run\n"
            "from fairseq_phrase.corpus import engines\n"
            "from fairseq_phrase.parsers.pipeline import ParsingOptions\n"
            "engines.RAY_TIMEOUT = 1\n"
            f"engine = engines.EngineOptions('ray', 1, '{address}')\n"
            "run('test', lambda _: list(engines.run_jobs([], ParsingOptions(), engine)), [])\n"
        )
        ended = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
        )
    assert ended.returncode == 2
    assert f"cannot connect to Ray at '{address}': no answer within 1 seconds" in ended.stderr


def test_jobs_are_read_as_they_are_needed():
    read = []
    stream = (read.append(job.number) or job for job in jobs(1))
    next(run_jobs(stream, ParsingOptions(), EngineOptions(workers=2)))
    assert len(read) <= 2 * 2 + 1


def test_a_worker_that_dies_costs_nothing_but_time(spacy, monkeypatch, tmp_path):
    mark = tmp_path / "died"
    monkeypatch.setenv("DIE_ONCE", str(mark))
    monkeypatch.setattr(engines, "_do", die_once)
    assert shards(spacy, EngineOptions(workers=2)) == shards(spacy, EngineOptions())
    assert mark.exists()


def die_once(job):
    mark = Path(os.environ["DIE_ONCE"])
    if job.number == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return engines._do_job(job)


def test_lines_that_kill_every_worker_are_named(spacy, monkeypatch):
    monkeypatch.setattr(engines, "_do", die)
    with pytest.raises(UserError, match=r"died 3 times while lines 1 to 4 were parsed"):
        shards(spacy, EngineOptions(workers=1 + 1))


def die(job):
    os.kill(os.getpid(), signal.SIGKILL)


# Lines without a parse


class Moody(LineParser):
    """A parser that fails over some lines, with the rest of the batch or alone."""

    version, fields = "moody 1", ("words",)

    def parse(self, lines):
        for line in lines:
            if "crash" in line:
                raise RuntimeError("I cannot")
        return WhitespaceParser().parse(lines)


def test_a_line_over_which_the_parser_fails_is_lost_alone(monkeypatch):
    monkeypatch.setattr("fairseq_phrase.parsers.pipeline.load_parser", lambda spec: Moody())
    parses = ParsingPipeline(ParsingOptions("moody")).parse(["a b", "a crash", "c"])
    assert [isinstance(parse, Unparsed) for parse in parses] == [False, True, False]
    assert parses[1].reason == "moody failed: RuntimeError: I cannot"
    assert parses[1].sentence.words == ["a", "crash"]


@pytest.fixture
def treebank(tmp_path):
    """30 pairs with trees, those of lines 2 and 29 not those of the text."""
    letters = random.Random(0)
    words = ["".join(letters.choices("abcdefghijklmnop", k=6)) for _ in range(30)]
    lines = [f"{word} is here ." for word in words]
    tree = "(S (NP (NN {})) (VP (VBZ is) (ADVP (RB here))) (. .))\n"
    for split in ("train", "test"):
        for language in ("de", "en"):
            (tmp_path / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines))
        trees = [tree.format(line.split()[0]) for line in lines]
        trees[1], trees[28] = tree.format("other"), "(S (NP\n"
        (tmp_path / f"{split}.de.ptb").write_text("".join(trees))
    return tmp_path


def preprocess(folder, out, *options, splits=("train", "test")):
    prefixes = [f"--{split}pref={folder / split}" for split in splits]
    main(["-s", "de", "-t", "en", *prefixes, "--destdir", str(out), "--vocab-size", "40", *options])
    return out


def test_a_line_without_a_parse_stops_the_run_and_is_named(treebank, capsys):
    with pytest.raises(SystemExit) as stopped:
        preprocess(treebank, treebank / "out", "--parser", "ptb")
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert "train.de, line 2: " in message
    assert "train.de.ptb, line 2: word 1 is 'other', and the text has '" in message
    assert "--on-error skip" in message
    assert not (treebank / "out").exists()


def test_lines_without_a_parse_are_left_out_and_counted_but_test_sets_stay_whole(treebank, capsys):
    out = preprocess(treebank, treebank / "out", "--parser", "ptb", "--on-error", "skip")
    printed = capsys.readouterr().out
    assert "train: 28 sentence pairs" in printed
    assert "left out: 2 without a parse" in printed
    record = Manifest.load(out, "de").splits
    assert (record["train.de-en"].sentences, record["train.de-en"].unparsed_skipped) == (28, 2)
    assert (record["test.de-en"].sentences, record["test.de-en"].unparsed_flat) == (30, 2)


def test_lines_without_a_parse_get_flat_trees_and_are_counted(treebank, capsys):
    out = preprocess(treebank, treebank / "out", "--parser", "ptb", "--on-error", "flat")
    assert "2 flat trees of de" in capsys.readouterr().out
    store = ParseStore(out, "train.de-en", "de", {"spans", "words"})
    whole_words = [span for span in store[1]["spans"].tolist() if span[1] - span[0] > 1]
    assert [span[:2] for span in whole_words] == [[0, 4]]
    assert Manifest.load(out, "de").splits["train.de-en"].unparsed_flat == 2


# Interrupted runs


@pytest.fixture(scope="module")
def text(synthetic_corpus, tmp_path_factory):
    """400 sentence pairs."""
    folder = tmp_path_factory.mktemp("text")
    for language in ("de", "en"):
        lines = list(read_lines(synthetic_corpus / f"train.{language}"))[:400]
        (folder / f"train.{language}").write_text("".join(f"{line}\n" for line in lines))
    return folder


#: Shards of 10 lines. After each one, the run says so and waits for a line on standard input, if
#: that is open. Whoever started the run so decides how far it gets.
GATED = """
import sys
from fairseq_phrase.corpus import parsing
from fairseq_phrase.corpus.parse_shards import ShardFolder
write = ShardFolder.write
def gated(*arguments):
    write(*arguments)
    print("shard", flush=True)
    sys.stdin.readline()
ShardFolder.write = gated
parsing.SHARD_LINES, parsing.LINES_PER_WORKER = 10, 1
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
    return subprocess.Popen([sys.executable, str(script), *options], **pipes, text=True)


def wait_for_shards(run, count):
    """Let a run write so many shards; it waits after the last one."""
    for number in range(count):
        if number:
            let_on(run, 1)
        assert "shard\n" in iter(run.stdout.readline, "")


def let_on(run, shards):
    """Let a run write so many shards more, without waiting for them."""
    run.stdin.write("\n" * shards)
    run.stdin.flush()


def let_end(run):
    """Let a run go on to its end; returns its messages."""
    messages = run.communicate()[1]
    assert run.returncode == 0, messages
    return messages


def finished(out):
    return sum(1 for _ in (out / ".partial" / "parses").rglob("*.jsonl"))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_run_goes_on_where_it_was_and_gives_the_same_files(
    text, tmp_path, trained_pipeline, workers
):
    whole = tmp_path / "whole"
    let_end(start(text, whole, trained_pipeline, workers))
    out, moments = tmp_path / "out", random.Random(workers)
    shards_at_kill = []
    for _ in range(4):
        run, before = start(text, out, trained_pipeline, workers), finished(out)
        # Four times at most 9 of 40 shards, those during the kill included: the run never ends.
        wanted = moments.randint(1, 5)
        wait_for_shards(run, wanted)
        assert finished(out) == before + wanted
        let_on(run, moments.randint(0, 3))
        run.kill()
        run.communicate()
        assert run.returncode == -signal.SIGKILL
        shards_at_kill.append(finished(out))
    assert shards_at_kill == sorted(shards_at_kill)
    assert shards_at_kill[0] > 0
    let_end(start(text, out, trained_pipeline, workers))
    assert files(out) == files(whole)
    assert not (out / ".partial").exists()


def test_broken_shards_and_those_of_other_lines_are_parsed_again(
    text, tmp_path, trained_pipeline, monkeypatch
):
    monkeypatch.setattr(corpus_module, "SHARD_LINES", 50)
    options = ("--parser", f"spacy:{trained_pipeline}", "--vocab-size", "300")
    whole = preprocess(text, tmp_path / "whole", *options, splits=("train",))
    monkeypatch.setattr("fairseq_phrase.corpus.preprocess.binarize", interrupted)
    out = tmp_path / "out"
    with pytest.raises(SystemExit):
        preprocess(text, out, *options, splits=("train",))
    monkeypatch.undo()
    monkeypatch.setattr(corpus_module, "SHARD_LINES", 50)
    shards = sorted((out / ".partial").rglob("*.jsonl"))
    assert len(shards) == 8
    shards[1].write_bytes(shards[1].read_bytes()[:-7])
    shards[2].write_bytes(shards[5].read_bytes())
    again = []
    run = corpus_module.run_jobs
    monkeypatch.setattr(
        corpus_module,
        "run_jobs",
        lambda jobs, *rest: run((again.append(job.number) or job for job in jobs), *rest),
    )
    preprocess(text, out, *options, splits=("train",))
    assert again == [1, 2]
    assert files(out) == files(whole)


def test_a_finished_parse_is_not_done_again(text, tmp_path, trained_pipeline, monkeypatch):
    monkeypatch.setattr(corpus_module, "SHARD_LINES", 50)
    calls = []
    run = corpus_module.run_jobs

    def counted(jobs, *rest):
        return run((calls.append(job.number) or job for job in jobs), *rest)

    monkeypatch.setattr(corpus_module, "run_jobs", counted)
    monkeypatch.setattr("fairseq_phrase.corpus.preprocess.binarize", interrupted)
    parser = f"spacy:{trained_pipeline}"
    for _ in range(2):
        with pytest.raises(SystemExit) as stopped:
            preprocess(text, tmp_path / "out", "--parser", parser, "--vocab-size=300",
                       splits=("train",))  # fmt: skip
        assert stopped.value.code == 130
    assert calls == list(range(8))


def interrupted(*arguments):
    raise KeyboardInterrupt


def test_two_runs_do_not_work_in_one_folder(text, tmp_path, trained_pipeline, capsys):
    run = start(text, tmp_path / "out", trained_pipeline, 1)
    wait_for_shards(run, 1)
    with pytest.raises(SystemExit):
        preprocess(text, tmp_path / "out", splits=("train",))
    assert "another run is at work in" in capsys.readouterr().err
    let_end(run)
