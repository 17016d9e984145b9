"""Reading and writing text files line by line, for any characters; and Markdown."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fairseq_phrase.errors import UserError, location, named_in_errors

#: JSON of this project is nested less than 10 times.
_DEEPEST = 50
_BOM = "\N{BYTE ORDER MARK}"
_OTHER_SPACE = re.compile(r"[^\S ]")
# Control and format characters, such as zero-width spaces and marks of direction.
_CONTROL = r"\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f"
_FORMAT = r"\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
_INVISIBLE_WORD = re.compile(rf"(?<!\S)[{_CONTROL}{_FORMAT}]+(?!\S)")
# Where Markdown reads a character as markup: "_" only at the end of a word, "<" only before a possible
# tag, "&" only before a possible entity.
_MARKUP = re.compile(r"[\\`*\[\]|]|~(?=~)|(?<!\w)_|_(?!\w)|<(?=[a-zA-Z/!?])|&(?=#?\w+;)")


def read_json(text: str | bytes) -> Any:
    """Read JSON that a stranger may have written.

    Raises:
        ValueError: it is not JSON, or is nested too deeply for the functions that read it.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {_DEEPEST} times") from None
    parts = [value]
    for _ in range(_DEEPEST):
        inner = (
            p.values() if isinstance(p, dict) else p for p in parts if isinstance(p, dict | list)
        )
        parts = [part for values in inner for part in values]
        if not parts:
            return value
    raise ValueError(f"it is nested more than {_DEEPEST} times")


def find_text(prefix: str, language: str) -> Path:
    """Find ``PREFIX.LANGUAGE`` or ``PREFIX.LANGUAGE.gz``.

    Raises:
        UserError: neither file exists, or both do and have different content.
    """
    plain = Path(f"{prefix}.{language}")
    packed = Path(f"{plain}.gz")
    if plain.is_file() and packed.is_file():
        pairs = zip_longest(read_lines(plain), read_lines(packed))
        for number, (line, packed_line) in enumerate(pairs, start=1):
            if line != packed_line:
                raise UserError(
                    f"{location(plain, number)}: {packed} has another line here, so it is unclear which "
                    "text is meant: remove or rename one of the files"
                )
    for path in (plain, packed):
        if path.exists() and not path.is_dir():
            require_file(path, "text")
            return path
    raise UserError(f"neither {plain} nor {plain}.gz is there")


def named_path(argument: str) -> tuple[str, Path]:
    """Split ``[NAME=]PATH`` into the name, which may be empty, and the path, which may contain ``=``."""
    is_path = Path(argument).exists()
    name, _, path = ("", "", argument) if is_path else argument.rpartition("=")
    return name, Path(path)


def require_file(path: Path, kind_of_file: str) -> None:
    """Check that a file exists and can be read more than once.

    Raises:
        UserError: it is missing, a folder or a pipe.
    """
    if path.is_file():
        return
    if path.exists():
        kind = "a folder" if path.is_dir() else "a pipe, and it is read more than once"
        raise UserError(f"the {kind_of_file} {path} is {kind}: name a file")
    raise UserError(f"the {kind_of_file} {path} is not there")


def read_lines(path: Path) -> Iterator[str]:
    r"""Yield a text file's lines, without their ends.

    Lines end only at ``\n``; a ``\r`` before it is dropped. Characters like U+2028 do not end a line. A
    byte order mark is also dropped.

    Args:
        path: a text file, compressed if it ends in ``.gz``.

    Raises:
        UserError: the file is missing, not gzip, or not UTF-8 (with the line).
    """
    return decoded_lines(_lines_with_ends(path), path)


def _lines_with_ends(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as stream:
            yield from stream
    except FileNotFoundError:
        raise UserError(f"{path} is not there") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} is not a whole gzip file: {error}") from None


def decoded_lines(stream: Iterable[bytes], name: str | Path) -> Iterator[str]:
    """Yield the lines of a stream of bytes, as :func:`read_lines` does.

    Args:
        stream: lines with their ends.

    Raises:
        UserError: a line is not UTF-8.
    """
    for number, line in enumerate(stream, start=1):
        try:
            text = line.decode("utf-8").rstrip("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise UserError(f"{location(name, number)}: not UTF-8 ({error.reason})") from None
        yield text.removeprefix(_BOM) if number == 1 else text


def plain_spaces(line: str) -> str:
    """Replace each character of white space, such as U+00A0 or U+2028, by a space.

    fairseq separates tokens at white space of any kind, so a token cannot contain it. Invisible words
    are removed.
    """
    return _INVISIBLE_WORD.sub("", _OTHER_SPACE.sub(" ", line))


def is_invisible(word: str) -> bool:
    """Return whether a word, without white space, has only control and format characters."""
    return _INVISIBLE_WORD.fullmatch(word) is not None


@contextmanager
def written_together(folder: Path) -> Iterator[Path]:
    """Write files that appear in a folder together, once all of them are complete.

    After an error the folder is unchanged. Other files in it never change.

    Yields:
        A temporary folder in it, whose files are moved to the folder at the end.
    """
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder))
    try:
        with named_in_errors(folder):
            yield staging
        for path in sorted(staging.iterdir()):
            os.replace(path, folder / path.name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if is_new and not any(folder.iterdir()):
            folder.rmdir()


def digest_of(*paths: Path) -> str:
    """Return the SHA-256 of a file's content, or for several files the SHA-256 of their digests.

    A process reads a file again only if its size, date or inode has changed.
    """
    return joined_digest([_digest(path, *stamp_of(path)) for path in paths])


def joined_digest(digests: Sequence[str]) -> str:
    """Return one digest of several files' digests; that of a single file is its own."""
    return (
        digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    )


def stamp_of(path: Path) -> tuple[int, int, int]:
    """Return a file's size, date of last change and inode, which change when it is written again."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


@lru_cache(maxsize=4096)
def _digest(path: Path, *_stamp: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def escape_markdown(text: str) -> str:
    r"""Escape a text, such as a title, for unchanged display by Markdown, in one line.

    >>> print(escape_markdown("a|b [c] <d>"))
    a\|b \[c\] \<d>
    """
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split("\n")))


def markdown_code(text: str) -> str:
    """Write a text as code, in one line."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if len(fence) > 1 else ""
    return fence + space + " ".join(text.split("\n")) + space + fence


def markdown_table(
    headings: Sequence[str], lines: Sequence[Sequence[str]], texts: int | None = None
) -> str:
    """Format cells as a Markdown table.

    >>> print(markdown_table(["model", "BLEU"], [["Transformer", "9.50"]], texts=1))
    | model       |   BLEU |
    |:------------|-------:|
    | Transformer |   9.50 |

    Args:
        lines: the rows' cells as text; they are escaped.
        texts: how many columns, from the left, are text; the others are numbers, aligned on the right.
            If None, all are text.

    Returns:
        The table, without a newline at its end.
    """
    from tabulate import tabulate

    cells = [list(map(escape_markdown, line)) for line in (headings, *lines)]
    # Numbers are already formatted: tabulate would read "0.050" as 0.05.
    numbers = 0 if texts is None else len(headings) - texts
    table: str = tabulate(
        cells[1:], headers=cells[0], tablefmt="github" if texts is None else "pipe",
        disable_numparse=True, colalign=["left"] * (len(headings) - numbers) + ["right"] * numbers,
    )  # fmt: skip
    return table
