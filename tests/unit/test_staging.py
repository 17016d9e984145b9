"""A data directory appears complete or not at all, also where another one was before."""

from __future__ import annotations

import os

import pytest

from fairseq_phrase.data.preprocessing.staging import staging_area
from fairseq_phrase.errors import UserError

TEXT = ["train.de-en.de.bin", "train.de-en.de.idx", "train.de-en.en.bin", "syntax.de.json"]
COPIED = ["train.de-en.de.copied.bin", "train.de-en.de.copied.idx"]


def publish(folder, names, content):
    with staging_area(folder) as place:
        for name in names:
            (place.files / name).write_text(content)
        place.publish()


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("new", [[*TEXT, *COPIED], TEXT], ids=["words to copy", "none"])
@pytest.mark.parametrize("moves", range(1, 7))
def test_words_to_copy_are_those_of_the_text_also_if_a_run_was_stopped(
    tmp_path, monkeypatch, new, moves
):
    publish(tmp_path, [*TEXT, *COPIED, "notes"], "old")
    replace, moved = os.replace, []

    def stopping(*paths):
        if len(moved) == moves:
            raise OSError("the disk is full")
        moved.append(replace(*paths))

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", stopping)
        if moves <= len(new):
            with pytest.raises(UserError, match="the disk is full"):
                publish(tmp_path, new, "new")
        else:
            publish(tmp_path, new, "new")
    with staging_area(tmp_path):
        pass
    assert contents(tmp_path) == {**dict.fromkeys(new, "new"), "notes": "old"}
