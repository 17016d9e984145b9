"""Lines without a parse: the run stops, leaves them out or gives them flat trees."""

from __future__ import annotations

import random

import pytest

from fairseq_phrase.cli.preprocess import main
from fairseq_phrase.store.manifest import Manifest
from fairseq_phrase.store.reader import ParseStore


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
