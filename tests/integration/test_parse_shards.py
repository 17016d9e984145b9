"""Shards of a parser's parses: nothing is lost in them, and damage is noticed."""

from __future__ import annotations

import pytest

from fairseq_phrase.data.preprocessing.parse_shards import ShardFolder, from_bytes, to_bytes
from fairseq_phrase.parsers import Unparsed
from fairseq_phrase.parsers.pipeline import ParsingOptions, ParsingPipeline
from tests.support.hostile import LINES


@pytest.fixture
def spacy(trained_pipeline):
    return ParsingOptions(f"spacy:{trained_pipeline}", "from-dependencies")


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
