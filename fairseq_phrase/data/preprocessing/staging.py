"""A staging area: a data directory appears complete or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairseq_phrase.data.store.copied_words import copied_path
from fairseq_phrase.data.store.outputs import (
    Key,
    as_bytes,
    only_writer,
    read_key,
    require_same,
    write_atomically,
)
from fairseq_phrase.errors import UserError, file_of

# With these values a run stops at lines that it leaves out with others. The blocks before it stopped have
# no such lines, so a run with other values may use them.
_STRICTEST = {"on_error": "stop", "strict": "True"}


class StagingArea:
    """``DIR/.partial``: the results of a run so far. :func:`staging_area` opens it.

    It is inside DIR, so files are moved within one file system even if DIR is a mount point.

    Attributes:
        files: folder for the files of the data directory, empty at the start.
    """

    def __init__(self, destination: Path):
        self.destination = destination
        self._root = destination / ".partial"
        self.files = self._root / "files"
        self._ready = self._root / "ready"
        self._keeps_blocks = True

    def open_blocks(self, key: Key, *, are_kept: bool) -> Path:
        """Return the folder of blocks, with those of an earlier run of this key.

        Args:
            are_kept: whether blocks are kept if the run fails: they take time.

        Raises:
            UserError: the blocks that an earlier run kept are of another key.
        """
        note, blocks = self._root / "key.json", self._root / "blocks"
        recorded = {}
        if note.is_file() and self._has_blocks():
            recorded = read_key(note.read_bytes(), note)
        if recorded:
            loosened = {
                name: key[name] for name, value in _STRICTEST.items() if recorded.get(name) == value
            }
            remedy = f"give the same options and text, or remove {self._root}"
            require_same({**recorded, **loosened}, key, self._root, remedy)
        else:
            shutil.rmtree(blocks, ignore_errors=True)
        self._keeps_blocks = are_kept
        write_atomically(note, as_bytes(key if are_kept else {}))
        blocks.mkdir(exist_ok=True)
        return blocks

    def publish(self) -> None:
        """Move finished files into the data directory.

        Earlier files of words to copy are deleted if the text is new: they belong to the old text.
        """
        os.replace(self.files, self._ready)
        self._move()
        shutil.rmtree(self._root, ignore_errors=True)

    def _move(self) -> None:
        # If a run is stopped here, the next one finishes the move (_start).
        parts = [path for path in sorted(self._ready.iterdir()) if path.is_dir()]
        for folder in (*parts, self._ready):
            target = self.destination / folder.relative_to(self._ready)
            target.mkdir(exist_ok=True)
            files = (path for path in folder.iterdir() if path.is_file())
            # Manifests are last.
            for path in sorted(
                files, key=lambda path: (path.name.startswith("syntax."), path.name)
            ):
                if path.suffix == ".bin":
                    # The new words to copy, if any, are moved later, in the order of names.
                    for suffix in (".bin", ".idx"):
                        old = copied_path(target / path.stem)
                        old.with_name(old.name + suffix).unlink(missing_ok=True)
                os.replace(path, target / path.name)

    def _start(self) -> None:
        # Folders of strangers may have links to the user's files. rglob does not follow them.
        for path in (self._root, *self._root.rglob("*")):
            if path.is_symlink():
                raise UserError(f"{path} is a link, which no run makes: remove {self._root}")
        if self._ready.is_dir():
            self._move()
            shutil.rmtree(self._root)
        shutil.rmtree(self.files, ignore_errors=True)
        self.files.mkdir(parents=True, exist_ok=True)

    def _has_blocks(self) -> bool:
        return any(self._root.glob("blocks/*/*"))

    def _leave(self) -> None:
        """Delete everything except blocks that are kept, and files that are being moved."""
        shutil.rmtree(self.files, ignore_errors=True)
        if not (self._ready.is_dir() or (self._keeps_blocks and self._has_blocks())):
            shutil.rmtree(self._root, ignore_errors=True)


@contextmanager
def staging_area(destination: Path) -> Iterator[StagingArea]:
    """Open ``DIR/.partial``. If the run fails or is stopped, DIR's files are unchanged.

    Raises:
        UserError: DIR is not writable, or another run uses it.
    """
    is_new = not destination.exists()
    area = StagingArea(destination)
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
