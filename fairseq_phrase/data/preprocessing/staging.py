"""A staging area: a data directory appears complete or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairseq_phrase.data.preprocessing.parse_shards import shards_in
from fairseq_phrase.data.store.copied_words import copied_path
from fairseq_phrase.data.store.outputs import only_writer
from fairseq_phrase.errors import UserError, file_of

#: The end of the names of records of written parts.
WRITTEN = ".written"


class StagingArea:
    """``DIR/.partial``: the results of a run so far. :func:`staging_area` opens it.

    It is inside DIR, so files are moved within one file system even if DIR is a mount point.

    Attributes:
        parses: folder of finished parses, with which a later run continues.
        files: folder for the files of the data directory, empty at the start, unless the run has parts
            and continues.
        written: with parts (``--parts``), folder of the parts that are written so far.
    """

    def __init__(self, destination: Path, *, in_parts: bool = False):
        self.destination, self._in_parts = destination, in_parts
        self._root = destination / ".partial"
        self.parses = self._root / "parses"
        self.files = self._root / "files"
        self.written = self._root / "written"
        self._ready = self._root / "ready"

    def publish(self) -> None:
        """Move finished files into the data directory, manifests last.

        Earlier files of words to copy are deleted if the text is new: they belong to the old text.
        """
        os.replace(self.files, self._ready)
        self._move()
        shutil.rmtree(self._root, ignore_errors=True)

    def _move(self) -> None:
        # If a run is stopped here, the next one finishes the move (_start).
        for path in sorted(self._ready.iterdir()):
            if path.is_dir():  # a part
                (self.destination / path.name).mkdir(exist_ok=True)
                _move_files(path, self.destination / path.name)
        _move_files(self._ready, self.destination)

    def _start(self) -> None:
        if self._ready.is_dir():
            self._move()
            shutil.rmtree(self._ready)
            shutil.rmtree(self.written, ignore_errors=True)
        if self._has_written() and not self._in_parts:
            raise UserError(
                f"{self._root} has parts of a text, which a run with --parts wrote: give the same "
                f"options, or remove {self._root}"
            )
        if not self._has_written():
            shutil.rmtree(self.files, ignore_errors=True)
        self.files.mkdir(parents=True, exist_ok=True)

    def _has_written(self) -> bool:
        return any(self.written.glob(f"*{WRITTEN}"))

    def _leave(self) -> None:
        """Delete everything except finished parses and written parts."""
        if self._has_written():
            return
        shutil.rmtree(self.files, ignore_errors=True)
        shutil.rmtree(self.written, ignore_errors=True)
        if not shards_in(self.parses) and not self._ready.is_dir():
            shutil.rmtree(self._root, ignore_errors=True)


def _move_files(source: Path, target: Path) -> None:
    """Move the files of a folder, manifests last."""
    files = (path for path in source.iterdir() if path.is_file())
    for path in sorted(files, key=lambda path: (path.name.startswith("syntax."), path.name)):
        if path.suffix == ".bin":
            # The new words to copy, if any, are moved later, in the order of names.
            for suffix in (".bin", ".idx"):
                old = copied_path(target / path.stem)
                old.with_name(old.name + suffix).unlink(missing_ok=True)
        os.replace(path, target / path.name)


@contextmanager
def staging_area(destination: Path, *, in_parts: bool = False) -> Iterator[StagingArea]:
    """Open ``DIR/.partial``. If the run fails or is stopped, DIR's files are unchanged.

    Args:
        in_parts: whether the run has parts, with which a later run continues.

    Raises:
        UserError: DIR is not writable, or another run uses it.
    """
    is_new = not destination.exists()
    area = StagingArea(destination, in_parts=in_parts)
    try:
        destination.mkdir(parents=True, exist_ok=True)
        with only_writer(destination):
            try:
                area._start()
                yield area
            finally:
                area._leave()
    except OSError as error:
        where = file_of(error) or f"cannot write to {destination}"
        raise UserError(f"{where}: {error.strerror or error}") from error
    finally:
        if is_new and destination.is_dir() and not any(destination.iterdir()):
            destination.rmdir()
