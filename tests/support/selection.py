"""Which of a test's parameters belong to the tests that a change needs."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def first_fast(values: Iterable, fast: int = 1) -> list:
    """Return a test's parameters, of which all but the first are slow: one more value takes long."""
    return [
        value if index < fast else pytest.param(*_tuple(value), marks=pytest.mark.slow)
        for index, value in enumerate(values)
    ]


def _tuple(value: object) -> tuple:
    return value if isinstance(value, tuple) else (value,)
