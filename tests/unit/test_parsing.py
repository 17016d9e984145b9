"""Parses on their way to those who ask for them, and lines that have none."""

from __future__ import annotations

import os
import random
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from tqdm import tqdm

from fairseq_phrase.cli.preprocess import main
from fairseq_phrase.data.preprocessing import parsing
from fairseq_phrase.data.preprocessing.engines import EngineOptions
from fairseq_phrase.data.preprocessing.parse_shards import ShardFolder, shards_in, unpacked
from fairseq_phrase.data.preprocessing.parts import blocks_of_parts
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import LineParser
from fairseq_phrase.parsers.pipeline import ParsingOptions, ParsingPipeline
from fairseq_phrase.parsers.whitespace import WhitespaceParser


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


def test_one_changed_byte_of_a_large_text_is_noticed(tmp_path):
    text = tmp_path / "train.de"
    with open(text, "wb") as stream:
        stream.truncate(40 << 20)
    files = parsing.files_of(text, None)
    with parsing.unchanged(files):
        os.utime(text)  # only another date
    with open(text, "r+b") as stream:
        stream.seek(20 << 20)
        stream.write(b"x")
    with pytest.raises(UserError, match="has changed"), parsing.unchanged(files):
        pass


def test_a_line_without_a_parse_stops_the_run_and_is_named(treebank, capsys):
    with pytest.raises(SystemExit) as stopped:
        preprocess(treebank, treebank / "out", "--parser", "ptb")
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert "train.de, line 2: " in message
    assert "train.de.ptb, line 2, column 12: word 1 is 'other', and the text has '" in message
    assert "--on-error skip" in message
    assert not (treebank / "out").exists()


def test_lines_without_a_parse_are_left_out_and_counted_but_test_sets_stay_whole(treebank, capsys):
    out = preprocess(
        treebank, treebank / "out", "--parser", "ptb", "--on-error", "skip", "--max-flat", "0.1"
    )
    printed = capsys.readouterr().out
    assert "train: 28 sentence pairs" in printed
    assert "left out: 2 without a parse" in printed
    record = Manifest.load(out, "de").splits
    assert (record["train.de-en"].sentences, record["train.de-en"].unparsed_skipped) == (28, 2)
    assert (record["test.de-en"].sentences, record["test.de-en"].unparsed_flat) == (30, 2)


def test_lines_without_a_parse_get_flat_trees_and_are_counted(treebank, capsys):
    out = preprocess(
        treebank, treebank / "out", "--parser", "ptb", "--on-error", "flat", "--max-flat", "1"
    )
    assert "2 flat trees of de" in capsys.readouterr().out
    store = ParseStore(out, "train.de-en", "de", {"spans", "words"})
    whole_words = [span for span in store[1]["spans"].tolist() if span[1] - span[0] > 1]
    assert [span[:2] for span in whole_words] == [[0, 4]]
    assert Manifest.load(out, "de").splits["train.de-en"].unparsed_flat == 2


@pytest.mark.parametrize("on_error", ["skip", "flat"])
def test_more_flat_trees_than_the_allowed_share_are_refused_with_the_first_causes(
    treebank, capsys, on_error
):
    trees = treebank / "test.de.ptb"
    trees.write_text("(S (X unfit))\n" * 30)
    with pytest.raises(SystemExit) as stopped:
        preprocess(
            treebank,
            treebank / "out",
            "--parser",
            "ptb",
            "--on-error",
            on_error,
            "--max-flat",
            "0.1",
        )
    message = capsys.readouterr().err
    assert stopped.value.code == 2
    assert (
        f"4 of the 30 lines of {treebank / 'test.de'} that were read so far have no parse"
        in message
    )
    assert "raise --max-flat" in message
    for number in (1, 2, 3):
        assert f"\n  line {number}: {trees}, line {number}, column 7: word 1 is 'unfit'" in message
    assert "line 4: " not in message
    assert not (treebank / "out").exists()


# Parses of this process and of shards


class Slow(LineParser):
    """Words at white space, in shards as the parses of slow parsers are."""

    version, fields = "slow 1", ("words",)

    def parse(self, lines):
        return WhitespaceParser().parse(lines)


LINES = [f"line {number}" for number in range(400)]


@pytest.fixture
def parsed(monkeypatch, tmp_path):
    """Parses 400 lines in shards of 150."""
    monkeypatch.setattr("fairseq_phrase.parsers.pipeline.load_parser", lambda spec: Slow())
    monkeypatch.setattr(parsing, "SHARD_LINES", 150)

    def start(engine=EngineOptions()):  # noqa: B008 - it does not change
        corpus = parsing.Corpus("train.de", tmp_path / "train.de", len(LINES), "key")
        pipeline = ParsingPipeline(ParsingOptions("slow"))
        return parsing.ParseStream(corpus, LINES, pipeline, tmp_path, engine, "stop").read()

    return start


def lines_of(chunks):
    """The lines of parses, and of shards of parses."""
    parses = (unpacked(chunk) if isinstance(chunk, bytes) else chunk for chunk in chunks)
    return [" ".join(parse.words) for chunk in parses for parse in chunk]


def test_what_this_process_parses_is_not_read_from_shards(parsed, monkeypatch):
    monkeypatch.setattr(ShardFolder, "read", None)
    assert lines_of(parsed()) == LINES


def test_this_process_parses_when_it_is_asked_for_parses(parsed, tmp_path):
    chunks = parsed()
    assert not shards_in(tmp_path)
    assert [len(shards_in(tmp_path)) for _ in chunks] == [1, 2, 3]


@pytest.mark.parametrize("lost", [(), (0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_finished_shards_come_between_those_that_are_parsed_now(
    parsed, tmp_path, monkeypatch, lost
):
    assert lines_of(parsed()) == LINES
    assert shards_in(tmp_path) == [0, 1, 2]
    holds = ShardFolder.holds
    monkeypatch.setattr(
        ShardFolder, "holds", lambda folder, n, lines: n not in lost and holds(folder, n, lines)
    )
    assert lines_of(parsed()) == LINES
    assert shards_in(tmp_path) == [0, 1, 2, *lost]


def test_shards_of_a_parser_whose_weights_have_changed_are_refused(parsed, tmp_path, monkeypatch):
    weights = tmp_path / "weights"
    monkeypatch.setattr(Slow, "files", [weights])
    monkeypatch.setattr(Slow, "is_instant", False)
    for content in ("one", "one"):
        weights.write_text(content)
        assert lines_of(parsed()) == LINES
    weights.write_text("two")
    with pytest.raises(UserError, match=r"made with parser slow 1 \w+; this run has parser slow 1"):
        parsed()
    assert shards_in(tmp_path) == [0, 1, 2]


def test_finished_shards_need_no_progress_bar(parsed, monkeypatch):
    """As with ``TQDM_DISABLE=1``."""
    assert lines_of(parsed()) == LINES
    monkeypatch.setattr(parsing, "LINES_PER_WORKER", 1)
    monkeypatch.setattr(parsing, "tqdm", partial(tqdm, disable=True))
    assert lines_of(parsed(EngineOptions(workers=2))) == LINES


@pytest.mark.parametrize(("lines", "parts"), [(4200, 3), (4201, 3), (999_001, 1000), (1001, 2)])
def test_parts_have_the_same_number_of_lines(lines, parts):
    corpus = parsing.Corpus("train.de", Path("train.de"), lines, "key", parts=parts)
    ends = [corpus.lines_before(block.stop) for block in blocks_of_parts(corpus)]
    sizes = [end - start for start, end in pairwise([0, *ends])]
    assert (len(sizes), sum(sizes)) == (parts, lines)
    assert max(sizes) - min(sizes) <= 1
    chunks = list(map(len, corpus.chunks(range(lines + 1))))
    assert (len(chunks), chunks[-1]) == (corpus.blocks + 1, 1)  # the surplus item
    assert max(chunks) <= 1000
