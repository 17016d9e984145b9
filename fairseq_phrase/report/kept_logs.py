"""Logs of runs: separate files, or members of the compressed archive in a table's results."""

from __future__ import annotations

import functools
import lzma
import tarfile
from collections.abc import Iterator
from pathlib import Path

from fairseq_phrase.errors import UserError
from fairseq_phrase.text import read_lines

ARCHIVE = "logs.tar.xz"


def has_log(path: Path) -> bool:
    """Tell whether a log exists, as a file or in an archive in a folder above it.

    Raises:
        UserError: the archive is damaged.
    """
    return path.is_file() or _archived(path) is not None


def log_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a log, without their ends.

    Args:
        path: the log's path; for an archived log, its path before. ``runs/ROW/seed1/train.log`` is the
            member of that name in ``logs.tar.xz`` beside ``runs``.

    Raises:
        UserError: the log is missing or not UTF-8, or the archive is damaged.
    """
    text = None if path.is_file() else _archived(path)
    if text is None:
        yield from read_lines(path)
    else:
        yield from text.split("\n")[:-1] if text.endswith("\n") else text.split("\n")


def _archived(path: Path) -> str | None:
    whole = path.absolute()
    for folder in whole.parents:
        archive = folder / ARCHIVE
        if archive.is_file():
            members = _members(archive, archive.stat().st_mtime_ns)
            return members.get(whole.relative_to(folder).as_posix())
    return None


@functools.lru_cache(maxsize=4)
def _members(archive: Path, changed: int) -> dict[str, str]:
    """Read an archive once; ``changed`` is its modification time, so that a new archive is read again."""
    return read_archive(archive)


def read_archive(archive: Path) -> dict[str, str]:
    """Return the logs in an archive, by their names.

    Raises:
        UserError: the archive is damaged.
    """
    found = {}
    try:
        with tarfile.open(archive, "r:xz") as stream:
            for member in stream:
                file = stream.extractfile(member)
                if file is not None:
                    found[member.name] = file.read().decode("utf-8", errors="replace")
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise UserError(f"{archive} is not a whole archive of logs: {error}") from None
    return found
