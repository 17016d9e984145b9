"""Work that is done ahead in a background thread."""

from __future__ import annotations

import threading

import pytest

from fairseq_phrase.inference.raw_lines import ahead


def test_items_come_in_order():
    assert list(ahead(range(100), str)) == list(map(str, range(100)))


def test_the_next_item_is_made_while_the_caller_works_on_one():
    second_made = threading.Event()

    def items():
        yield 1
        second_made.set()
        yield 2

    found = ahead(items(), int)
    assert next(found) == 1
    assert second_made.wait(10)
    assert list(found) == [2]


def test_an_error_comes_after_the_items_before_it():
    def items():
        yield 1
        raise ValueError("broken")

    found = ahead(items(), int)
    assert next(found) == 1
    with pytest.raises(ValueError, match="broken"):
        next(found)


def test_the_thread_ends_when_the_caller_does():
    ended = threading.Event()

    def items():
        try:
            yield from range(10**9)
        finally:
            ended.set()

    found = ahead(items(), int)
    next(found)
    found.close()
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

    found = ahead(items(), work)
    next(found)
    assert begun.wait(10)
    found.close()
    assert ended.is_set()
    found = ahead(items(), int)
    assert [next(found), next(found)] == [1, 2]
    found.close()
    assert not never.is_set()
