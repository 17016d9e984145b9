"""Lines that are longer than a model can read."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.inference.raw_lines import Line, RawLines, halves


class Letters:
    """Splits lines into a subword for each character."""

    def encode(self, lines, parses=()):
        return [SimpleNamespace(subwords=list(line)) for line in lines]


def segments(line, limit):
    """The segments of a line for a model that takes this many tokens, with the end of sentence."""
    (chunk,) = RawLines(str, Letters(), limit).chunks([(1, [Line(line)])])
    return ["".join(segment.subwords) for segment in chunk.segments[0]]


def test_a_line_that_fits_is_not_split():
    assert segments("It rains. It pours.", 20) == ["It rains. It pours."]


@pytest.mark.parametrize(
    ("line", "limit", "expected"),
    [
        ("It rains. It pours.", 19, ["It rains.", "It pours."]),
        ("A. It rains. It pours.", 15, ["A. It rains.", "It pours."]),
        ("He said “No.” She left.", 20, ["He said “No.”", "She left."]),
        ("下雨了。我们在家。", 8, ["下雨了。", "我们在家。"]),
        ("one two three four", 12, ["one two", "three four"]),
        ("abcdefgh", 5, ["abcd", "efgh"]),
    ],
)
def test_a_line_is_split_where_a_reader_would_split_it(line, limit, expected):
    assert segments(line, limit) == expected


@given(st.text("ab .!?。\u2028", min_size=1, max_size=200), st.integers(4, 50))
def test_segments_fit_and_lose_only_white_space(line, limit):
    lines = segments(line, limit)
    assert all(len(segment) < limit for segment in lines)
    assert "".join("".join(lines).split()) == "".join(line.split())


@given(st.text(min_size=2, max_size=50))
def test_both_halves_are_shorter(text):
    assert all(len(half) < len(text) for half in halves(text))
