"""The key of a run in parts: with which options it is continued."""

from __future__ import annotations

import pytest

from fairseq_phrase.data.preprocessing.parts import WrittenParts
from fairseq_phrase.data.preprocessing.staging import StagingArea
from fairseq_phrase.errors import UserError


@pytest.mark.parametrize(
    ("name", "strictest", "other"), [("strict", "True", "False"), ("on_error", "stop", "skip")]
)
def test_only_a_run_that_stops_at_lines_is_continued_with_another_value(
    name, strictest, other, tmp_path
):
    area = StagingArea(tmp_path, in_parts=True)
    key = {"text of train": "1", name: strictest}
    WrittenParts(area, key)
    with pytest.raises(UserError, match="give the same options and text"):
        WrittenParts(area, {**key, name: other, "text of train": "2"})
    WrittenParts(area, {**key, name: other})
    with pytest.raises(UserError, match="give the same options and text"):
        WrittenParts(area, key)
