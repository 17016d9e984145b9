"""Raw lines that are refused before they are translated."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fairseq_phrase.batch.raw_input import RawInput
from fairseq_phrase.batch.raw_tokens import SourceDictionary
from fairseq_phrase.errors import UserError
from fairseq_phrase.store.copied_words import place


def make_input(folder, *entries):
    """The input of data whose subword model cuts words into letters, and its dictionary."""
    dictionary = SourceDictionary()
    for entry in ("▁", "d", "e", "r", *entries):
        dictionary.add_symbol(entry)
    made = RawInput(str(folder), "de", dictionary)
    made._segmenter = SimpleNamespace(word_pieces=list)
    return made, dictionary


def check(made, dictionary, line):
    tokens = dictionary.encode_line(line, add_if_not_exist=False)
    made.check_is_cut([line], [tokens], lambda text: text)


@pytest.mark.parametrize("places", [(), (place(1), place(2))], ids=["unknown", "places"])
def test_a_raw_line_is_refused_also_where_its_unknown_words_have_places(tmp_path, places):
    with pytest.raises(UserError, match=r"'der' is unknown; .* cuts it into '▁ d e r': use"):
        check(*make_input(tmp_path, *places), "der")


@pytest.mark.parametrize("line", ["▁ d e r", "▁ x", "x"], ids=["known", "cut", "unknown letter"])
def test_other_lines_with_places_are_translated(tmp_path, line):
    check(*make_input(tmp_path, place(1)), line)
