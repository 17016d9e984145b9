"""What must be true of every parsed sentence."""

from __future__ import annotations


def assert_well_formed(sentence, fields):
    count = len(sentence.words)
    assert len(sentence.space_before) == count
    assert all(word and not any(map(str.isspace, word)) for word in sentence.words)
    if "heads" in fields:
        assert len(sentence.tree) == len(sentence.deprels) == len(sentence.tags) == count
        assert all(sentence.deprels)
        assert all(sentence.tags)
