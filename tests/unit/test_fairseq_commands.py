"""Messages of fairseq's commands."""

from __future__ import annotations

import pytest

from fairseq_phrase.compat.commands import as_user_error
from fairseq_phrase.errors import UserError


@pytest.mark.parametrize(
    "error", [ValueError("valid1"), OSError(2, "none"), RuntimeError(), Exception("sample")]
)
def test_an_error_that_replaces_another_is_caught_like_it(error):
    replacement = as_user_error(error, "name all sets")
    assert isinstance(replacement, UserError)
    assert isinstance(replacement, type(error))
    assert str(replacement) == "name all sets"
