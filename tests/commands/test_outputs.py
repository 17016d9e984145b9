"""Keys and locks of outputs: what made a file, and who writes it."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from fairseq_phrase.data.store.outputs import (
    as_bytes,
    only_writer,
    read_key,
    require_same,
    write_atomically,
)
from fairseq_phrase.errors import UserError, file_of
from fairseq_phrase.inference.bundle import new_folder, write_weights
from fairseq_phrase.lab.pictures.figures import new_figure, save
from fairseq_phrase.text import written_together


def test_both_sides_of_a_difference_are_named(tmp_path):
    recorded, current = {"beam": "5", "seed": "1"}, {"beam": "4", "seed": "1", "text": "a.de 12"}
    require_same(recorded, dict(reversed(recorded.items())), "out", "")
    with pytest.raises(UserError) as refused:
        require_same(recorded, current, "out.en", "remove it")
    assert str(refused.value) == (
        "out.en was made with beam 5, text (none); this run has beam 4, text a.de 12: remove it"
    )
    assert read_key(as_bytes(current), tmp_path) == current
    for damaged in (b"", b"{", b"[]", b"\xff"):
        with pytest.raises(UserError, match=f"{tmp_path} is damaged"):
            read_key(damaged, tmp_path)


HOLDER = """
import sys
from pathlib import Path
from fairseq_phrase.data.store.outputs import only_writer
with only_writer(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.mark.fast(1)
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_lock_names_its_process_and_is_taken_over_when_that_is_dead(tmp_path, kind):
    target = tmp_path / "out"
    if kind == "folder":
        target.mkdir()
    lock = target / ".lock" if kind == "folder" else tmp_path / "out.lock"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(target)], **pipes) as holder:
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(UserError) as refused, only_writer(target):
            pass
        assert f"another run (process {holder.pid} on {os.uname().nodename}" in str(refused.value)
        assert f"is at work in {target}: wait for it, or name another {kind}" in str(refused.value)
        holder.send_signal(signal.SIGKILL)
    assert lock.exists()
    with only_writer(target):
        assert lock.read_text() == f"process {os.getpid()} on {os.uname().nodename}"
    assert not lock.exists()


def test_a_lock_that_its_holder_removed_is_not_held_by_another(tmp_path, monkeypatch):
    """The file that was opened is removed before it is locked, and a third process makes a new one."""
    target, held = tmp_path / "out", ExitStack()
    flock, calls = fcntl.flock, []

    def overtaken(lock, operation):
        calls.append(lock)
        if len(calls) == 1:
            (tmp_path / "out.lock").unlink()
            held.enter_context(only_writer(target))
        flock(lock, operation)

    monkeypatch.setattr(fcntl, "flock", overtaken)
    with held, pytest.raises(UserError, match="is at work in"), only_writer(target):
        pass


def write_together(path):
    with written_together(path.parent) as staging:
        (staging / path.name).write_bytes(b"a" * 20)


def write_figure(path):
    save(new_figure(Path("a.png"), (1, 1)), path)


def write_bundle_weights(path):
    with new_folder(path.with_name("bundle")) as folder:
        write_weights({"weight": torch.zeros(9)}, folder / path.name)


@pytest.mark.parametrize(
    ("write", "named"),
    [
        (lambda path: write_atomically(path, b"a" * 20), "file.png"),
        (write_together, ""),
        (write_figure, "file.png"),
        (write_bundle_weights, "bundle.partial/file.png"),
    ],
)
def test_a_full_disk_is_named_and_what_was_there_is_kept(tmp_path, write, named):
    path = tmp_path / "file.png"
    path.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as large:
            write(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file_of(large.value) == str(tmp_path / named)
    if write is not write_figure:  # not written together with others
        assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file.png"]


def test_what_is_no_plain_file_is_written_as_it_is(tmp_path):
    with pytest.raises(OSError, match="No space left") as full:
        write_atomically(Path("/dev/full"), b"a")
    assert file_of(full.value) == "/dev/full"
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_atomically(tmp_path / "link", b"a")
    assert (tmp_path / "file").read_bytes() == b"a"


def test_one_process_makes_a_folder(tmp_path):
    out = tmp_path / "new" / "bundle"
    with new_folder(out) as folder:
        (folder / "file").touch()
        with pytest.raises(UserError, match="at work in"), new_folder(out):
            pass
    assert [path.name for path in out.parent.iterdir()] == ["bundle"]
    assert (out / "file").exists()


PRINTS = """
import sys
from fairseq_phrase.cli.command import CommandParser, command, standard_stream
@command(lambda: CommandParser(prog="prints"))
def main(args):
    standard_stream("stdout").write(b"a" * int(sys.argv[1]))
main([])
"""


@pytest.mark.parametrize("size", [3, 100_000])
def test_standard_output_that_is_full_is_named(size):
    """At once, or when the command ends."""
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [sys.executable, "-c", PRINTS, str(size)],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        )
    assert ended.stderr == b"prints: error: standard output: No space left on device\n"
    assert ended.returncode == 2
