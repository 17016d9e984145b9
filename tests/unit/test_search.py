"""The search for translations of lines in batches."""

from __future__ import annotations

import pytest

import fairseq_phrase
from fairseq_phrase import parsers
from fairseq_phrase.inference import search
from tests.support.small_checkpoints import ChainParser, make_checkpoint, make_data


@pytest.fixture
def translator(tmp_path, monkeypatch):
    monkeypatch.setitem(parsers._BUILT_IN, "chain", parsers._BuiltIn("chain", ChainParser))
    data = make_data(tmp_path / "data")
    checkpoint = make_checkpoint(tmp_path / "a.pt", data, "--arch", "transformer")
    return fairseq_phrase.load(checkpoint, data, device="cpu")


def test_how_long_a_translation_may_be_does_not_depend_on_other_lines(translator, monkeypatch):
    """This model ends no translation, so each one is as long as it may be."""
    monkeypatch.setattr(search, "longest_target", lambda source: 2 * source)
    lines = ["der", "Hund", "der Hund schläft der Hund", "schläft der"]
    together = [found[0] for found in translator.hypotheses(lines)]
    assert [one.tokens for one in together] == [5, 5, 13, 7]
    assert [one.text for one in together] == [translator.translate(line) for line in lines]


def test_a_translation_may_be_twice_as_long_as_its_source():
    lengths = (1, 100, 101, 200, 201)
    assert [search.longest_target(length) for length in lengths] == [200, 200, 400, 400, 600]
