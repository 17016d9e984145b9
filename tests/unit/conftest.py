"""What unit tests share."""

from __future__ import annotations

import pytest
from fairseq.data import Dictionary

from fairseq_phrase.testing import make_dictionary


@pytest.fixture(scope="session")
def dictionary() -> Dictionary:
    """Thirty words. Tests do not change it."""
    return make_dictionary()
