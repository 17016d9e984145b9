"""Which of a test's parameters belong to the tests that a change needs."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def first_of_each(values: Iterable[tuple]) -> list:
    """Return a test's parameters, of which all but the first with the same first value are slow."""
    values = list(values)
    firsts = {value[0]: index for index, value in reversed([*enumerate(values)])}
    return [
        value if firsts[value[0]] == index else pytest.param(*value, marks=pytest.mark.slow)
        for index, value in enumerate(values)
    ]
