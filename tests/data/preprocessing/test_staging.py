"""A data directory appears complete or not at all, also where another one was before."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fairseq_phrase.data.preprocessing.blocks import BlockFolder
from fairseq_phrase.data.preprocessing.manifests import key_of_blocks
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


# Blocks of a run that stops


def stop(folder, key, *, are_kept=True):
    """Start a run that stops after one block; return the number of blocks that it found."""
    with staging_area(folder) as area:
        blocks = area.open_blocks(key, are_kept=are_kept)
        number = len(list(blocks.glob("*/*")))
        BlockFolder(blocks / "train").write(number, b"")
    return number


def test_blocks_of_another_text_or_parser_are_refused_and_kept(tmp_path):
    assert stop(tmp_path, {"text": "1", "parser": "a"}) == 0
    message = f"{tmp_path / '.partial'} was made with text 1; this run has text 2: give the same"
    with pytest.raises(UserError, match=re.escape(message)):
        stop(tmp_path, {"text": "2", "parser": "a"})
    (note,) = tmp_path.rglob("key.json")
    key = note.read_bytes()
    note.write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"key\.json is damaged"):
        stop(tmp_path, {"text": "1", "parser": "a"})
    note.write_bytes(key)
    with pytest.raises(UserError, match=re.escape(message)):
        stop(tmp_path, {"text": "2", "parser": "a"}, are_kept=False)
    (tmp_path / ".partial" / "blocks" / "train" / "000000").unlink()
    (tmp_path / ".partial" / "blocks" / "spm.model").touch()
    assert stop(tmp_path, {"text": "2"}) == 0
    assert not (tmp_path / ".partial" / "blocks" / "spm.model").exists()


@pytest.mark.parametrize("name", ["files", "ready", "key.json", "blocks/train"])
def test_links_in_a_folder_of_a_stranger_are_not_followed(name, tmp_path):
    home, link = tmp_path / "home", tmp_path / "data" / ".partial" / name
    home.mkdir()
    (home / "letter").write_text("mine")
    link.parent.mkdir(parents=True)
    link.symlink_to(home / "letter" if name == "key.json" else home)
    with pytest.raises(UserError, match="is a link, which no run makes"):
        stop(tmp_path / "data", {"text": "1"})
    assert (home / "letter").read_text() == "mine"


def test_a_run_is_not_continued_with_trees_of_another_file_of_the_same_name():
    files = {Path("train/t.conllu"): "1", Path("valid/t.conllu"): "2"}
    corrected = {**files, Path("train/t.conllu"): "3"}
    assert key_of_blocks({}, files) != key_of_blocks({}, corrected)


def test_blocks_that_take_no_time_are_not_kept(tmp_path):
    key = {"text": "1"}
    assert stop(tmp_path, key, are_kept=False) == stop(tmp_path, key, are_kept=False) == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "strictest", "other"), [("strict", "True", "False"), ("on_error", "stop", "skip")]
)
def test_only_a_run_that_stops_at_lines_is_continued_with_another_value(
    name, strictest, other, tmp_path
):
    key = {"text of train": "1", name: strictest}
    stop(tmp_path, key)
    assert stop(tmp_path, {**key, name: other}) == 1
    with pytest.raises(UserError, match="give the same options and text"):
        stop(tmp_path, key)
