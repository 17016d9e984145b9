"""Errors that are shown to the user."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any


class UserError(Exception):
    """Bad input: what is wrong, where, and what to do.

    Commands print only the message, without a traceback, and exit with status 2.
    """


def as_given(name: str, value: str = "") -> str:
    """Write an option of :func:`fairseq_phrase.load` as its reader gives it.

    Args:
        name: the flag without hyphens in front, ``source-parser``.

    Returns:
        ``--source-parser VALUE`` in a command, ``source_parser="VALUE"`` in Python.
    """
    program = Path(sys.argv[0] if sys.argv else "")
    if program.name.startswith("fairseq") or program.parent.name in ("cli", "fairseq_cli"):
        return f"--{name} {value}".rstrip()
    return name.replace("-", "_") + (f'="{value}"' if value else "")


@contextmanager
def needs(what: str, packages: str) -> Iterator[None]:
    """Import what is not part of every installation, in a block.

    Args:
        what: what cannot be done without it.
        packages: the argument of ``pip install``.

    Raises:
        UserError: it cannot be imported; with the reason if it is there.
    """
    try:
        yield
    except ModuleNotFoundError:
        raise UserError(f"{what}: pip install {packages}") from None
    except ImportError as error:
        raise UserError(
            f"{what}, which cannot be imported ({error}): pip install {packages}"
        ) from None


def load_entry(entry: EntryPoint, message: str) -> Any:
    """Load what an installed package offers, which must not end the command if it is broken.

    Args:
        message: what cannot be used; the reason comes after it.

    Raises:
        UserError: it cannot be imported.
    """
    try:
        return entry.load()
    except (ImportError, AttributeError, SystemExit) as error:
        raise UserError(f"{message}: {error}") from error


def file_of(error: OSError) -> str | None:
    """Return the file that an error is about.

    Python's copying functions name the file that they read first, also if the copy did not fit on the
    disk.
    """
    name: str | None = (is_full(error) and error.filename2) or error.filename
    return name


def is_full(error: OSError) -> bool:
    """Return whether a disk is full, or a file as large as it may be."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Add the file's name to an error of writing it: "No space left on device" has none."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def at(path: object, line: int | None = None) -> str:
    """Name a file, ``FILE``, or a line of it, from 1, ``FILE, line N``."""
    return str(path) if line is None else f"{path}, line {line}"
