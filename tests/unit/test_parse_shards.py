"""Shards of parses: only those of the same lines and parser are used again."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.data.preprocessing import parse_shards
from fairseq_phrase.data.preprocessing.parse_shards import (
    ShardFolder,
    packed,
    shards_in,
    unpacked,
)
from fairseq_phrase.errors import UserError
from fairseq_phrase.syntax.sentence import Expansion, ParsedSentence


def test_shards_of_another_text_or_parser_are_refused_and_kept(tmp_path):
    lines = ["Ein Hund"]
    ShardFolder(tmp_path, {"text": "1", "parser": "a"}).write(0, lines, b"")
    message = (
        f"{tmp_path} was made with text 1; this run has text 2: give the same options and text"
    )
    with pytest.raises(UserError, match=re.escape(message)):
        ShardFolder(tmp_path, {"text": "2", "parser": "a"})
    assert ShardFolder(tmp_path, {"text": "1", "parser": "a"}).holds(0, lines)


def test_a_folder_without_shards_takes_another_key(tmp_path):
    ShardFolder(tmp_path, {"text": "1"})
    ShardFolder(tmp_path, {"text": "2"}).write(0, ["a"], b"")
    assert ShardFolder(tmp_path, {"text": "2"}).holds(0, ["a"])


def test_a_damaged_key_is_named_and_its_shards_are_kept(tmp_path):
    ShardFolder(tmp_path, {"text": "1"}).write(0, ["a"], b"")
    (tmp_path / "key.json").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"key\.json is damaged"):
        ShardFolder(tmp_path, {"text": "1"})
    assert shards_in(tmp_path) == [0]


def test_words_that_the_text_does_not_spell_are_kept():
    words = ParsedSentence(["zu", "dem"], [True] * 2, expansions=[Expansion("zum", ("zu", "dem"))])
    assert next(unpacked(packed([words]))) == words


def test_many_shards_are_in_few_files(tmp_path, monkeypatch):
    monkeypatch.setattr(parse_shards, "_SHARDS_PER_FILE", 4)
    order = [5, 0, 9, 1, 3, 2, 8, 4, 7, 6]
    folder = ShardFolder(tmp_path, {})
    for number in order:
        folder.write(number, [str(number)], f"shard {number}".encode())
    assert sorted(path.name for path in tmp_path.glob("*.shards")) == [
        "000000.shards", "000001.shards", "000002.shards"
    ]  # fmt: skip
    assert sorted(shards_in(tmp_path)) == sorted(order)
    for again in (folder, ShardFolder(tmp_path, {})):
        for number in order:
            assert again.holds(number, [str(number)])
            assert again.read(number) == f"shard {number}".encode()


def test_files_of_shards_that_are_no_longer_needed_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(parse_shards, "_SHARDS_PER_FILE", 4)
    folder = ShardFolder(tmp_path, {})
    for number in range(10):
        folder.write(number, ["a"], b"x")
    for below, first_left in ((3, 0), (4, 4), (7, 4), (8, 8), (8, 8), (20, 20)):
        folder.remove_below(below)
        assert shards_in(tmp_path) == list(range(first_left, 10))
        assert [n for n in range(10) if folder.holds(n, ["a"])] == list(range(first_left, 10))


@given(st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=20)), max_size=9), st.data())
def test_whenever_a_run_is_killed_the_shards_before_are_there(tmp_path_factory, shards, data):
    path = tmp_path_factory.mktemp("shards")
    folder = ShardFolder(path, {})
    for number, shard in shards:
        folder.write(number, [str(number)], shard)
    file = path / "000000.shards"
    content = file.read_bytes() if shards else b""
    file.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    finished = shards_in(path)
    again = ShardFolder(path, {})
    there = dict(shards[: len(finished)])
    assert {n: again.read(n) for n in range(10) if again.holds(n, [str(n)])} == there
    again.write(3, ["3"], b"new")
    there[3] = b"new"
    last = ShardFolder(path, {})
    assert {n: last.read(n) for n in range(10) if last.holds(n, [str(n)])} == there


texts = st.lists(st.text(st.characters(exclude_characters="\n"), max_size=5), max_size=5)


@given(texts, texts)
def test_a_shard_of_other_lines_is_not_taken_for_theirs(tmp_path_factory, lines, others):
    folder = ShardFolder(tmp_path_factory.mktemp("shards"), {})
    folder.write(0, lines, b"")
    assert folder.holds(0, lines)
    assert folder.holds(0, others) == (lines == others)
