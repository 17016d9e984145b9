"""What tests of the methods share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fairseq_phrase.methods.common import one_by_one


@pytest.fixture
def alone_beyond(monkeypatch) -> Callable[[int], None]:
    """Set the length beyond which sentences are attended to alone: the sentences here are short."""
    return lambda length: monkeypatch.setattr(one_by_one, "LONG", length)
