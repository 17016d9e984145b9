"""Outputs that a command continues, keeps or joins: their key, and a lock for their writer.

A key maps names to short texts: options, and digests of content. It has everything that the output
depends on, so equal keys mean equal outputs.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from fairseq_phrase.errors import UserError, named_in_errors
from fairseq_phrase.text import read_json

Key = Mapping[str, str]
#: The largest number of differences in a message.
_SHOWN = 4


def require_same(recorded: Key, current: Key, output: str | Path, remedy: str) -> None:
    """Check that an output has the key of this run.

    Args:
        recorded: the key of the output.
        current: the key of this run.
        output: the file or folder, for the message.
        remedy: advice if they differ.

    Raises:
        UserError: the keys differ; the message has both values of each part.
    """
    names = [name for name in {**recorded, **current} if recorded.get(name) != current.get(name)]
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        first, second = (
            ", ".join(f"{name} {key.get(name, '(none)')}" for name in names[:_SHOWN]) + more
            for key in (recorded, current)
        )
        raise UserError(f"{output} was made with {first}; this run has {second}: {remedy}")


def as_bytes(key: Key) -> bytes:
    """Write a key as one line of JSON."""
    return json.dumps(dict(key), sort_keys=True).encode("ascii")


def read_key(line: bytes, path: Path) -> dict[str, str]:
    """Read a key that :func:`as_bytes` wrote.

    Args:
        path: the file of the line, for the message.

    Raises:
        UserError: the line is damaged.
    """
    try:
        return {str(name): str(value) for name, value in read_json(line).items()}
    except (ValueError, AttributeError):
        raise damaged(path) from None


def damaged(path: Path) -> UserError:
    """Return the error of a damaged record."""
    return UserError(
        f"{path} is damaged: it records how the files beside it were made. Remove all of them"
    )


@contextmanager
def only_writer(target: Path) -> Iterator[int]:
    """Let one process at a time write a file or a folder.

    The lock, ``FILE.lock`` or ``FOLDER/.lock``, belongs to this process and to processes that inherit its
    descriptor. It ends with them. The lock of a dead process is taken over.

    Args:
        target: the file, or an existing folder.

    Yields:
        The descriptor of the lock.
    """
    is_folder = target.is_dir()
    path = target / ".lock" if is_folder else target.with_name(f"{target.name}.lock")
    with named_in_errors(path):
        lock = None
        while lock is None:
            lock = _locked(path, target, "folder" if is_folder else "file")
    try:
        with named_in_errors(path):
            os.ftruncate(lock.fileno(), 0)
            os.write(lock.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield lock.fileno()
    finally:
        path.unlink(missing_ok=True)
        lock.close()


def _locked(path: Path, target: Path, kind: str) -> TextIO | None:
    """Open and lock a file; returns None if its last holder has meanwhile removed it."""
    lock = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - the lock ends when it is closed
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
            return lock
    except FileNotFoundError:
        pass
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read() or "a process"
        lock.close()
        raise UserError(
            f"another run ({holder}, or a command that it started) is at work in {target}: wait for it, "
            f"or name another {kind}"
        ) from None
    except OSError:
        lock.close()
        raise
    lock.close()
    return None


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that is complete, or unchanged if the process stops.

    It may be damaged if the machine stops, because the function does not wait for the disk. A special
    file, such as ``/dev/stdout``, is written directly.

    Raises:
        OSError: it cannot be written.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        with named_in_errors(path):
            path.write_bytes(content)
        return
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        error.filename = str(path)
        raise
