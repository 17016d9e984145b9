"""Shards of a parser's parses: nothing is lost in them, and damage is noticed."""

from __future__ import annotations

import pytest

from fairseq_phrase.data.preprocessing.parse_shards import ShardFolder, packed, shards_in, unpacked
from fairseq_phrase.parsers import Unparsed
from fairseq_phrase.parsers.pipeline import ParsingOptions, ParsingPipeline
from tests.support.hostile import LINES


@pytest.fixture
def spacy(trained_pipeline):
    return ParsingOptions(f"spacy:{trained_pipeline}", "from-dependencies")


def test_a_shard_gives_back_what_went_in(spacy):
    parses = ParsingPipeline(spacy).parse(LINES)
    parses.append(Unparsed("because", parses[0]))
    for parse, copy in zip(parses, unpacked(packed(parses)), strict=True):
        if isinstance(parse, Unparsed):
            assert isinstance(copy, Unparsed)
            assert copy.reason == parse.reason
            parse, copy = parse.sentence, copy.sentence
        assert (copy.words, copy.space_before) == (parse.words, parse.space_before)
        assert (copy.deprels, copy.tags) == (parse.deprels, parse.tags)
        assert copy.tree.heads.tolist() == parse.tree.heads.tolist()
        assert copy.constituents == parse.constituents


DAMAGE = {
    "truncated": lambda content: content[:-9],
    "another byte": lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    "empty": lambda content: b"",
    "another file": lambda content: bytes(range(256)),
    "another heading": lambda content: b"x" + content[1:],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_shard_is_not_taken_for_whole(spacy, tmp_path, caplog, damage):
    folder, shard = ShardFolder(tmp_path, {}), packed(ParsingPipeline(spacy).parse(LINES))
    folder.write(0, LINES, shard)
    assert folder.holds(0, LINES)
    (file,) = tmp_path.glob("*.shards")
    file.write_bytes(DAMAGE[damage](file.read_bytes()))
    folder = ShardFolder(tmp_path, {})
    assert not folder.holds(0, LINES)
    assert ("is damaged" in caplog.text) == (damage == "another byte")
    folder.write(0, LINES, shard)
    for again in (folder, ShardFolder(tmp_path, {})):
        assert again.holds(0, LINES)
        assert again.read(0) == shard
    assert shards_in(tmp_path)[-1] == 0
