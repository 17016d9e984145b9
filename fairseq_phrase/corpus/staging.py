"""Where a data directory is made, so that nobody ever sees half of one."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairseq_phrase.errors import UserError


class Workplace:
    """``DIR/.partial``: what a run has finished so far. Use it as :func:`workplace` gives it.

    It lies within DIR, so that moving files needs no other file system even where DIR is a mount
    point.

    Args:
        destination: the data directory.

    Attributes:
        destination: the data directory.
        parses: folder of finished parses, which a later run goes on from.
        files: folder for the files of the data directory, empty at the start.
    """

    def __init__(self, destination: Path):
        self.destination = destination
        self._root = destination / ".partial"
        self.parses = self._root / "parses"
        self.files = self._root / "files"
        self._ready = self._root / "ready"

    def publish(self) -> None:
        """Move finished files to where they belong, manifests last: they vouch for the others."""
        os.replace(self.files, self._ready)
        self._move()
        shutil.rmtree(self._root, ignore_errors=True)

    def _move(self) -> None:
        # A run that was stopped here goes on here: see _start.
        for path in sorted(self._ready.iterdir(), key=lambda path: path.name.startswith("syntax.")):
            os.replace(path, self.destination / path.name)

    def _start(self) -> None:
        if self._ready.is_dir():
            self._move()
            shutil.rmtree(self._ready)
        shutil.rmtree(self.files, ignore_errors=True)
        self.files.mkdir(parents=True)

    def _leave(self) -> None:
        """Leave nothing but finished parses."""
        shutil.rmtree(self.files, ignore_errors=True)
        if not any(self.parses.rglob("*.jsonl")) and not self._ready.is_dir():
            shutil.rmtree(self._root, ignore_errors=True)


@contextmanager
def workplace(destination: Path) -> Iterator[Workplace]:
    """Work in ``DIR/.partial``; what fails or is stopped leaves what was there before.

    Raises:
        UserError: DIR cannot be written to, or another run is at work there.
    """
    is_new = not destination.exists()
    place = Workplace(destination)
    try:
        destination.mkdir(parents=True, exist_ok=True)
        with open(destination / ".lock", "wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"another run is at work in {destination}: wait for it, or name another folder"
                ) from None
            try:
                place._start()
                yield place
            finally:
                place._leave()
                (destination / ".lock").unlink(missing_ok=True)
    except OSError as error:
        where = error.filename or f"cannot write to {destination}"
        raise UserError(f"{where}: {error.strerror or error}") from error
    finally:
        if is_new and destination.is_dir() and not any(destination.iterdir()):
            destination.rmdir()
