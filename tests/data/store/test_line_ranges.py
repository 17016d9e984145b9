"""Numbers of lines as ranges, against plain lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.data.store.manifest import LineRanges

LINES = st.sets(st.integers(1, 30)).map(sorted)


def ranges_of(lines):
    ranges = LineRanges()
    for line in lines:
        ranges.append(line)
    return ranges


@given(left_out=LINES)
def test_lines_outside_are_numbered_as_in_a_list_without_the_others(left_out):
    ranges = ranges_of(left_out)
    outside = [line for line in range(1, 60) if line not in left_out]
    for read in (ranges, LineRanges(str(ranges))):
        assert [read.number_outside(index) for index in range(29)] == outside[:29]
        for line in range(1, 45):
            expected = outside.index(line) if line in outside else None
            assert read.index_outside(line) == expected


@given(one=LINES, other=LINES)
def test_ranges_of_several_files_are_united(one, other):
    other = [line + 30 for line in other]
    united = LineRanges.united([str(ranges_of(other)), str(ranges_of(one))])
    outside = [line for line in range(1, 90) if line not in [*one, *other]]
    assert [united.number_outside(index) for index in range(25)] == outside[:25]


def test_ranges_are_written_shortly():
    assert str(ranges_of([1, 2, 3, 5, 7, 8])) == "1-3,5,7-8"
    assert str(LineRanges("")) == ""
