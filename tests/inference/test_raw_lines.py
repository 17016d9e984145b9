"""Work that is done ahead in a background thread."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.raw_lines import (
    Line,
    RawLines,
    ahead,
    numbered,
    parallel_lines,
    ready,
)


def test_items_come_in_order():
    assert list(ahead(range(100), str)) == list(map(str, range(100)))


def test_the_next_item_is_made_while_the_caller_works_on_one():
    second_made = threading.Event()

    def items():
        yield 1
        second_made.set()
        yield 2

    iterator = ahead(items(), int)
    assert next(iterator) == 1
    assert second_made.wait(10)
    assert list(iterator) == [2]


def test_an_error_comes_after_the_items_before_it():
    def items():
        yield 1
        raise ValueError("broken")

    iterator = ahead(items(), int)
    assert next(iterator) == 1
    with pytest.raises(ValueError, match="broken"):
        next(iterator)


def test_the_thread_ends_when_the_caller_does():
    ended = threading.Event()

    def items():
        try:
            yield from range(10**9)
        finally:
            ended.set()

    iterator = ahead(items(), int)
    next(iterator)
    iterator.close()
    assert ended.wait(10)


def test_closing_waits_for_the_work_on_an_item_but_for_no_further_input():
    begun, ended, never = threading.Event(), threading.Event(), threading.Event()

    def items():
        yield from (1, 2)
        never.wait(10)

    def work(item):
        if item == 2:
            begun.set()
            never.wait(0.2)
            ended.set()
        return item

    iterator = ahead(items(), work)
    next(iterator)
    assert begun.wait(10)
    iterator.close()
    assert ended.is_set()
    iterator = ahead(items(), int)
    assert [next(iterator), next(iterator)] == [1, 2]
    iterator.close()
    assert not never.is_set()


def test_what_is_ready_comes_together_but_no_more_than_the_depth():
    all_made = threading.Event()

    def items():
        yield 1
        assert first_taken.wait(10)
        yield from range(2, 9)
        all_made.set()
        assert ended.wait(10)

    first_taken, ended = threading.Event(), threading.Event()
    chunks = ready(items(), int, 8)
    assert next(chunks) == [1]
    first_taken.set()
    assert all_made.wait(10)
    assert next(chunks) == [2, 3, 4, 5, 6, 7, 8]
    ended.set()
    assert list(chunks) == []
    assert list(map(len, ready(range(9), int, 2)))[:-1].count(3) == 0


class SlowParser:
    """Makes a segment of each line; it parses the second chunk only after an event."""

    def __init__(self):
        self.may_go_on = threading.Event()
        self.parsed = []

    def encode(self, lines, parses=()):
        assert not self.parsed or self.may_go_on.wait(10), "the first line waited for the next ones"
        self.parsed.append(list(lines))
        return [SimpleNamespace(subwords=list(line)) for line in lines]


def test_the_first_line_is_translated_before_the_second_is_parsed():
    parser = SlowParser()
    chunks = RawLines(str, parser, 10).chunks(
        numbered((Line(str(number)) for number in range(100)), 50)
    )
    assert len(next(chunks).lines) == 1
    parser.may_go_on.set()
    assert [len(chunk.lines) for chunk in chunks] == [3, 12, 48, 36]
    assert [line for lines in parser.parsed for line in lines] == list(map(str, range(100)))


def test_a_line_of_a_conversation_is_there_before_the_next_one_is_sent():
    answered = threading.Semaphore(1)

    def conversation():
        for line in "abcdefg":
            assert answered.acquire(timeout=10), "the line before was not answered"
            yield Line(line)

    parser = SlowParser()
    parser.may_go_on.set()
    for chunk in RawLines(str, parser, 10).chunks(numbered(conversation(), 512, live=True)):
        assert len(chunk.lines) == 1
        answered.release()
    assert parser.parsed == [[line] for line in "abcdefg"]


@pytest.mark.parametrize(
    ("targets", "parses", "message"),
    [
        (["a", "b"], ["p"], "the list of parses has 1 lines, and .* has more"),
        (["a", "b"], ["p"] * 3, "list of parses has more: expected one for each line"),
        (["a"], None, "file.txt has 1 lines, and the source has more"),
        (["a", "", "c"], None, "the source has 2 lines, and .*file.txt has more"),
    ],
)
def test_each_line_has_one_translation_and_one_parse(targets, parses, message, tmp_path):
    (tmp_path / "file.txt").write_text("".join(f"{target}\n" for target in targets))
    with pytest.raises(UserError, match=message):
        list(parallel_lines(["l", "m"], tmp_path / "file.txt", parses))
    lines = [Line("l", "a", "p"), Line("m", "", "q")]
    assert list(parallel_lines(["l", "m"], ["a", ""], ["p", "q"])) == lines
    assert list(parallel_lines(["l", "m"])) == [Line("l"), Line("m")]
