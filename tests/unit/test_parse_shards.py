"""Shards of parses: only those of the same lines and parser are used again."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_phrase.data.preprocessing.parse_shards import ShardFolder, from_bytes, to_bytes
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
    assert [*tmp_path.glob("*.jsonl")]


def test_words_that_the_text_does_not_spell_are_kept_and_older_shards_are_read():
    words = ParsedSentence(["zu", "dem"], [True] * 2, expansions=[Expansion("zum", ("zu", "dem"))])
    shard = to_bytes([words])
    assert next(from_bytes(shard)) == words
    *older, expansions = json.loads(shard)
    assert expansions
    assert next(from_bytes(json.dumps(older).encode())) == replace(words, expansions=[])


texts = st.lists(st.text(st.characters(exclude_characters="\n"), max_size=5), max_size=5)


@given(texts, texts)
@settings(max_examples=50)
def test_a_shard_of_other_lines_is_not_taken_for_theirs(tmp_path_factory, lines, others):
    folder = ShardFolder(tmp_path_factory.mktemp("shards"), {})
    folder.write(0, lines, b"")
    assert folder.holds(0, lines)
    assert folder.holds(0, others) == (lines == others)
