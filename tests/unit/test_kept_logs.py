"""Logs that are files, and logs that are in an archive."""

from __future__ import annotations

import io
import lzma
import tarfile
from pathlib import Path

import pytest

from fairseq_phrase.errors import UserError
from fairseq_phrase.report.kept_logs import has_log, log_lines


def write_archive(path, members):
    with tarfile.open(path, "w:xz") as archive:
        for name, text in members.items():
            data = text.encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def test_a_log_is_found_in_the_archive_of_a_folder_above_it(tmp_path, monkeypatch):
    write_archive(tmp_path / "logs.tar.xz", {"runs/a/seed1/train.log": "one\ntwo\n"})
    run = tmp_path / "runs" / "a" / "seed1"
    run.mkdir(parents=True)
    assert list(log_lines(run / "train.log")) == ["one", "two"]
    assert not has_log(run / "generate-test.log")
    with pytest.raises(UserError, match=r"generate-test\.log is not there"):
        list(log_lines(run / "generate-test.log"))
    monkeypatch.chdir(tmp_path / "runs")
    assert has_log(Path("a/seed1/train.log"))


def test_a_file_goes_before_the_archive_and_a_new_archive_is_read_anew(tmp_path):
    write_archive(tmp_path / "logs.tar.xz", {"train.log": "old\n"})
    assert list(log_lines(tmp_path / "train.log")) == ["old"]
    (tmp_path / "logs.tar.xz").unlink()
    write_archive(tmp_path / "logs.tar.xz", {"train.log": "new\n"})
    assert list(log_lines(tmp_path / "train.log")) == ["new"]
    (tmp_path / "train.log").write_text("mine\n")
    assert list(log_lines(tmp_path / "train.log")) == ["mine"]


@pytest.mark.parametrize("content", [b"no archive", lzma.compress(b"no tar"), b""])
def test_a_damaged_archive_is_named(tmp_path, content):
    (tmp_path / "logs.tar.xz").write_bytes(content)
    with pytest.raises(UserError, match=r"logs\.tar\.xz is not a whole archive"):
        has_log(tmp_path / "train.log")
