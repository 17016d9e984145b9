"""The first pass: lines without a parse, and blocks of lines."""

from __future__ import annotations

import os
import random
from itertools import pairwise
from pathlib import Path

import pytest

from fairseq_phrase.cli.preprocess import main
from fairseq_phrase.data.preprocessing import texts
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import LineParser
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
    files = texts.files_of(text, None)
    with texts.unchanged(files):
        os.utime(text)  # only another date
    with open(text, "r+b") as stream:
        stream.seek(20 << 20)
        stream.write(b"x")
    with pytest.raises(UserError, match="has changed"), texts.unchanged(files):
        pass


def test_a_line_without_a_parse_stops_the_run_and_is_named(treebank, refused):
    message = refused(preprocess, treebank, treebank / "out", "--parser", "ptb")
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
    treebank, refused, on_error
):
    trees, out = treebank / "test.de.ptb", treebank / "out"
    trees.write_text("(S (X unfit))\n" * 30)
    options = ("--parser", "ptb", "--on-error", on_error, "--max-flat", "0.1")
    message = refused(preprocess, treebank, out, *options)
    assert f"4 of the 30 lines of {treebank}/test.de that were read so far have no parse" in message
    assert "raise --max-flat" in message
    for number in (1, 2, 3):
        assert f"\n  line {number}: {trees}, line {number}, column 7: word 1 is 'unfit'" in message
    assert "line 4: " not in message
    assert not out.exists()


# Blocks


class Slow(LineParser):
    """Words at white space, of a parser that takes time: its results are kept if a run fails."""

    version, fields = "slow 1", ("words",)

    def parse(self, lines):
        return WhitespaceParser().parse(lines)


def test_a_run_with_other_weights_does_not_go_on_with_what_is_parsed(
    treebank, block_lines, install_parser, interrupted, refused
):
    block_lines(10)
    weights, out, parser = treebank / "weights", treebank / "out", Slow()
    parser.files = [weights]
    install_parser(lambda: parser)
    weights.write_text("one")
    run = ("--parser", "of-test")
    with interrupted():
        preprocess(treebank, out, *run)
    weights.write_text("two")
    message = refused(preprocess, treebank, out, *run)
    assert "made with parser of de slow 1" in message
    assert f"give the same options and text, or remove {out / '.partial'}" in message
    weights.write_text("one")
    preprocess(treebank, out, *run)
    assert not (out / ".partial").exists()


def test_a_text_of_one_block_has_no_parts(treebank, refused):
    message = refused(preprocess, treebank, treebank / "out", "--parts", "2")
    assert "has 30 lines, and a part has at least 1000: give --parts 1 or none" in message


@pytest.mark.parametrize(("lines", "parts"), [(4200, 3), (4201, 3), (999_001, 1000), (1001, 2)])
def test_parts_have_the_same_number_of_lines(lines, parts):
    corpus = texts.Corpus("train.de", Path("train.de"), lines, "key", parts=parts)
    size = corpus.blocks // parts
    ends = [corpus.lines_before(number * size) for number in range(parts + 1)]
    sizes = [end - start for start, end in pairwise(ends)]
    assert (len(sizes), sum(sizes)) == (parts, lines)
    assert max(sizes) - min(sizes) <= 1
    chunks = list(map(len, corpus.chunks(range(lines + 1))))
    assert (len(chunks), sum(chunks)) == (corpus.blocks, lines)
    assert max(chunks) <= 1000
