"""Shards of parses: only those of the same lines and parser are used again."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_phrase.corpus.parse_shards import ShardFolder


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


texts = st.lists(st.text(st.characters(exclude_characters="\n"), max_size=5), max_size=5)


@given(texts, texts)
@settings(max_examples=50)
def test_a_shard_of_other_lines_is_not_taken_for_theirs(tmp_path_factory, lines, others):
    folder = ShardFolder(tmp_path_factory.mktemp("shards"), {})
    folder.write(0, lines, b"")
    assert folder.holds(0, lines)
    assert folder.holds(0, others) == (lines == others)
