"""Download a file, resume an interrupted download, and check the result.

    python scripts/download.py URL FILE [--sha256 SUM]

An unfinished download is kept in FILE.partial. Without SUM the checksum of the first download is
written to FILE.sha256, and later downloads must have it. The first download is then checked only by its
length and https, so http:// without a checksum is refused. If you know a checksum, put it into
FILE.sha256 before the first download.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from tqdm import tqdm

_BLOCK = 1 << 16


def fetch(url: str, partial: Path) -> None:
    """Download the rest of a file.

    Args:
        url: its address.
        partial: the unfinished download, to which the rest is appended. It need not exist.

    Raises:
        SystemExit: the download fails or is incomplete. The downloaded part is kept.
    """
    have = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            resumed = answer.status == 206
            have = have if resumed else 0
            total = None if answer.length is None else have + answer.length
            with (
                open(partial, "ab" if resumed else "wb") as out,
                tqdm(
                    total=total, initial=have, unit="B", unit_scale=True, desc=partial.stem
                ) as bar,
            ):
                while block := answer.read(_BLOCK):
                    out.write(block)
                    bar.update(len(block))
    except urllib.error.HTTPError as error:
        # "Range not satisfiable" for a file of exactly this size: the download was already complete.
        size = re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range") or "")
        if error.code == 416 and size is not None and int(size[1]) == have:
            return
        sys.exit(f"cannot download {url}: {error}")
    except (OSError, HTTPException) as error:
        sys.exit(f"cannot download {url}: {error}; run again to go on from there")
    # A broken connection ends like a finished one.
    have = partial.stat().st_size
    if total is not None and have != total:
        sys.exit(
            f"{url} broke off after {have:,} of {total:,} bytes; run again to go on from there"
        )


def checksum(path: Path) -> str:
    """Return a file's SHA-256."""
    sha = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            sha.update(block)
    return sha.hexdigest()


def download(url: str, file: Path, expected: str | None) -> None:
    """Download a file if it does not exist yet.

    Args:
        url: its address.
        file: its path on this machine.
        expected: its SHA-256; None to record it, or to use the recorded one.

    Raises:
        SystemExit: the download fails, or the file's checksum differs.
    """
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    record = file.with_name(f"{file.name}.sha256")
    if expected is None and record.exists():
        expected = record.read_text(encoding="ascii").split()[0]
    if expected is None and not _is_authentic(url):
        sys.exit(f"{url}: http without a checksum is not safe: use https, or give --sha256 SUM")
    fetch(url, partial)
    digest = checksum(partial)
    if expected is None:
        print(
            f"{url}: no checksum is known for it; later downloads must have that of this one, {digest}, "
            f"which is recorded in {record}"
        )
        record.write_text(f"{digest}  {file.name}\n", encoding="ascii")
    elif digest != expected:
        partial.unlink()
        sys.exit(f"{url} is not what it was (sha256 {digest}, expected {expected})")
    os.replace(partial, file)


def _is_authentic(url: str) -> bool:
    """Return whether a download from a URL cannot be changed on the way."""
    parts = urlsplit(url)
    return parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="where it is")
    parser.add_argument("file", type=Path, help="where it goes")
    parser.add_argument("sum", nargs="?", help="the same as --sha256")
    parser.add_argument("--sha256", metavar="SUM", help="the checksum that it must have")
    options = parser.parse_args()
    download(options.url, options.file, options.sha256 or options.sum)
