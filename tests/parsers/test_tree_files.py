"""Files of trees beside the text: lost trees and lost lines cost their lines only, and are counted."""

import math
import re
from collections.abc import Iterator

import pytest

from fairseq_phrase.parsers import Unparsed
from fairseq_phrase.parsers import tree_files as module
from fairseq_phrase.parsers.ptb import BracketFiles

COUNT = 400


def texts(count: int = COUNT) -> list[str]:
    """Lines, some of which are equal to each other and some without text."""
    blank, short = ["", " "], ["yes .", "no ."]
    return [
        blank[number % 2] if number % 17 == 5
        else short[number % 2] if number % 7 == 3
        else f"w{number} of {number % 5} in line {number}"
        for number in range(count)
    ]  # fmt: skip


def tree(text: str) -> str:
    return f"(S {' '.join(f'(X {word})' for word in text.split())})" if text.strip() else ""


def read(folder, trees, lines) -> list:
    (folder / "text.en").write_text("".join(f"{line}\n" for line in lines))
    path = folder / "text.en.ptb"
    path.write_text("".join(f"{line}\n" for line in trees))
    return list(BracketFiles().read(path, iter(lines)))


def unparsed(parses) -> list[int]:
    """The lines without a parse, from 0."""
    return [number for number, parse in enumerate(parses) if isinstance(parse, Unparsed)]


def with_text(lines, numbers) -> list[int]:
    return [number for number in numbers if lines[number].strip()]


@pytest.mark.parametrize("size", [2, 38, 39, 40, 41, 42, 60, 200])
@pytest.mark.parametrize("first", [0, 1, 100])
def test_a_batch_of_lost_trees_costs_its_lines_and_is_counted(tmp_path, first, size):
    lines = texts()
    lost = range(first, first + size)
    trees = [tree(line) for number, line in enumerate(lines) if number not in lost]
    parses = read(tmp_path, trees, lines)
    missing = with_text(lines, lost)
    # A lost tree that is equal to one after the gap is not known to be lost, but that one is.
    assert len(unparsed(parses)) == len(missing)
    assert all(parse.words == line.split() for parse, line in zip(parses, lines, strict=True)
               if not isinstance(parse, Unparsed))  # fmt: skip
    counts = {
        int(match[1] or 1)
        for number in unparsed(parses)
        if (
            match := re.search(
                r": (?:a|(\d+)) trees? (?:is|are) missing before", parses[number].reason
            )
        )
    }
    assert sum(counts) == len(missing) or len(counts) > 1


def test_the_message_names_the_lost_trees_and_where(tmp_path):
    lines = [f"line number {number}" for number in range(1, 241)]
    trees = [tree(line) for line in [*lines[:100], *lines[160:]]]
    parses = read(tmp_path, trees, lines)
    assert unparsed(parses) == list(range(100, 160))
    assert {parse.reason for parse in parses[100:160]} == {
        f"{tmp_path / 'text.en.ptb'}, line 101: 60 trees are missing before this one: lines 101 to 160 "
        "of the text have none, and this tree is of line 161 (180 trees for 240 lines with text)"
    }


@pytest.mark.parametrize(("size", "limit"), [(2, 1000), (60, 1000), (60, 50)])
def test_trees_lost_at_the_end_are_counted(tmp_path, monkeypatch, size, limit):
    monkeypatch.setattr(module, "FAR_LINES", limit)  # 100,000
    lines = [f"line number {number}" for number in range(1, 101)]
    parses = read(tmp_path, map(tree, lines[:-size]), lines)
    assert unparsed(parses) == list(range(100 - size, 100))
    description = (
        f"{size} trees are missing at the end: lines {101 - size} to 100"
        if size < limit
        else f"trees are missing at the end: lines {101 - size} and later"
    )
    assert {parse.reason for parse in parses[-size:]} == {
        f"{tmp_path / 'text.en.ptb'}: {description} of the text have none ({100 - size} trees for 100 "
        "lines with text)"
    }


@pytest.mark.parametrize("size", [2, 38, 39, 40, 41, 60, 200])
def test_a_batch_of_lost_lines_costs_one_line(tmp_path, size):
    lines = [f"line number {number}" for number in range(COUNT)]
    parses = read(tmp_path, map(tree, lines), [*lines[:100], *lines[100 + size :]])
    assert unparsed(parses) == [100]
    assert f"line 101: {size} trees from here on are of no line of the text" in parses[100].reason


@pytest.mark.parametrize("malformed", [1, 2])
@pytest.mark.parametrize("size", [30, 39, 40, 60])
def test_malformed_trees_before_and_after_a_batch_of_lost_ones_cost_their_lines(
    tmp_path, size, malformed
):
    lines = [f"line number {number}" for number in range(COUNT)]
    broken = ["(S (X line)"] * malformed
    before, after = lines[: 100 - malformed], lines[100 + size + malformed :]
    trees = [*map(tree, before), *broken, *broken, *map(tree, after)]
    parses = read(tmp_path, trees, lines)
    assert unparsed(parses) == list(range(100 - malformed, 100 + size + malformed))


def test_a_line_that_fits_by_chance_does_not_end_a_search(tmp_path):
    """The lost lines have one that is equal to the next tree, and the line after it differs."""
    lines = [f"line number {number}" for number in range(COUNT)]
    lines[150] = lines[200]
    trees = [tree(line) for line in [*lines[:100], *lines[200:]]]
    assert unparsed(read(tmp_path, trees, lines)) == list(range(100, 200))


def test_the_far_search_for_trees_of_another_text_becomes_rarer(tmp_path, monkeypatch):
    searched, agrees = [], module.Reading.agrees

    def counted(self, ahead, index):
        searched.append(max(ahead, index) > module.NEAR)
        return agrees(self, ahead, index)

    # Count the comparisons far ahead.
    monkeypatch.setattr(module.Reading, "agrees", counted)
    lines = [f"line number {number}" for number in range(COUNT)]
    parses = read(tmp_path, [tree(f"tree {number}") for number in range(COUNT)], lines)
    assert len(unparsed(parses)) == COUNT
    assert 0 < sum(searched) < 6 * COUNT * math.log2(COUNT)


def test_a_long_corpus_is_not_read_ahead_while_its_trees_fit(tmp_path):
    lines = [f"line number {number}" for number in range(COUNT)]
    path = tmp_path / "text.en.ptb"
    path.write_text("".join(f"{tree(line)}\n" for line in lines))
    lines_read = []

    def counted() -> Iterator[str]:
        for line in lines:
            lines_read.append(line)
            yield line

    for number, _ in enumerate(BracketFiles().read(path, counted()), start=1):
        assert len(lines_read) <= number + 1
