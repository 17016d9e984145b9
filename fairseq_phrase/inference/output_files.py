"""Files of translations of a large text: its parts, and what an interrupted run has written."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.forced import Line


class Shard(NamedTuple):
    """One of several parts of a text, which consists of whole chunks.

    Attributes:
        number: its number, from 1.
    """

    number: int
    parts: int

    def holds(self, first: int, total: int) -> bool:
        """Return whether it has the chunk that begins with a line, counted from 1."""
        return (first - 1) * self.parts // total == self.number - 1

    def path(self, whole: Path) -> Path:
        """Return the file of this part's translations, beside that of the whole text."""
        return whole.with_name(f"{whole.name}.{self.number}-of-{self.parts}")


def partial_path(path: Path, options: str, files: Iterable[Path]) -> Path:
    """Return the file of translations that are not all there: another one for other options or files."""
    read = [(str(one), one.stat().st_size, one.stat().st_mtime_ns) for one in files]
    digest = hashlib.sha256(f"{options}{read}".encode()).hexdigest()[:12]
    return path.with_name(f"{path.name}.{digest}.partial")


def unwritten(
    chunks: Iterator[tuple[int, list[Line]]],
    stream: BinaryIO,
    each: int,
    skipped: Callable[[int], object],
) -> Iterator[tuple[int, list[Line]]]:
    """Yield the chunks that an earlier run did not write whole, and remove the rest of what it wrote.

    Args:
        stream: the file that it wrote, open to read and to append.
        each: the number of lines that are written for each line.
        skipped: is called with the number of lines of each chunk that is there.
    """
    kept = 0
    stream.seek(0)
    for first, lines in chunks:
        found = list(islice(stream, each * len(lines)))
        if len(found) == each * len(lines) and found[-1].endswith(b"\n"):
            kept += sum(map(len, found))
            skipped(len(lines))
        else:
            stream.truncate(kept)
            yield first, lines
            break
    yield from chunks


def join_shards(whole: Path, parts: int, expected: int) -> list[str]:
    """Write the translations of all parts to one file; return the files of parts that are not there.

    Raises:
        UserError: the parts have more or fewer lines.
    """
    shards = [Shard(number, parts).path(whole) for number in range(1, parts + 1)]
    if missing := [shard.name for shard in shards if not shard.is_file()]:
        return missing
    joined = whole.with_name(f"{whole.name}.{os.getpid()}.partial")
    lines = []
    with open(joined, "wb") as stream:
        for shard in shards:
            with open(shard, "rb") as part:
                lines.append(sum(1 for _ in part))
                part.seek(0)
                shutil.copyfileobj(part, stream)
    if sum(lines) != expected:
        joined.unlink()
        raise UserError(
            f"{whole}.1-of-{parts} to {parts}-of-{parts} have {lines} lines, and the text needs "
            f"{expected} in all: remove those that other options or another text made"
        )
    os.replace(joined, whole)
    return []
