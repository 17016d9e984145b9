"""Errors that are shown to the user."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UserError(Exception):
    """Invalid input. The message has the error, its location, and advice.

    Commands print only the message, without a traceback, and exit with status 2. Characters that control
    a terminal are escaped: the message may quote a stranger's file.
    """

    def __str__(self) -> str:
        return without_controls(super().__str__())


#: Characters that control a terminal, or change the direction of text; not tabs and line feeds.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def without_controls(text: str) -> str:
    """Escape control characters, such as those that clear a terminal."""
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def as_given(name: str, value: str = "") -> str:
    """Write an option of :func:`fairseq_phrase.load` as the user writes it.

    Args:
        name: the flag without hyphens in front, ``source-parser``.

    Returns:
        ``--source-parser VALUE`` in a command, ``source_parser="VALUE"`` in Python.
    """
    program = Path((sys.argv or [""])[0].removesuffix("/__main__.py"))  # python -m fairseq_phrase
    if program.name.startswith("fairseq") or program.parent.name in ("cli", "fairseq_cli"):
        return f"--{name} {value}".rstrip()
    return name.replace("-", "_") + (f'="{value}"' if value else "")


def file_of(error: OSError) -> str | None:
    """Return the file that an error concerns.

    Python's copying functions name the file that they read, even if the copy does not fit on the disk.
    """
    name: str | None = error.filename
    return (error.filename2 or name) if is_full(error) else name


def is_full(error: OSError) -> bool:
    """Return whether the disk is full or the file has reached its largest size."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def named_in_errors(path: str | Path) -> Iterator[None]:
    """Add the file's name to a write error: "No space left on device" has none."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def location(path: object, line: int | None = None) -> str:
    """Name a file, ``FILE``, or a line of it, from 1, ``FILE, line N``."""
    return str(path) if line is None else f"{path}, line {line}"
