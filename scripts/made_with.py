"""Record the options and texts with which data were made, or check that they are those of this call.

    python scripts/made_with.py record data-bin -s de -t en --trainpref raw/train --vocab-size 8000
    python scripts/made_with.py check data-bin -s de -t en --trainpref raw/train --vocab-size 4000

A script of a table makes its data once. If its options or texts have changed since then, a report would
describe other data than the runs have. Files, and the texts that a prefix names (``raw/train.de``,
``raw/train.en.gz``), are compared by their contents. Files that are not here are not compared, because
only the data and the test sets are needed on another machine. Data without a record, which earlier
versions made, are accepted.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from glob import glob
from pathlib import Path

from fairseq_phrase.data.store.outputs import as_bytes, read_key, require_same, write_atomically
from fairseq_phrase.errors import UserError
from fairseq_phrase.text import digest_of

RECORD = "made-with.json"
_FLAG = re.compile(r"--?[a-z][\w-]*")


def key_of(words: list[str]) -> dict[str, str]:
    """Return the values of options, and the digests of the files that they name."""
    flags: dict[str, list[str]] = {}
    for word in words:
        if _FLAG.fullmatch(word):
            flag = word
        flags.setdefault(flag, [])
        flags[flag] += [] if word == flag else [word]
    languages = [*flags.get("-s", []), *flags.get("-t", [])]
    key: dict[str, str] = {}
    for flag, values in flags.items():
        files = [path for value in values for path in files_of(value, languages)]
        for path in files:  # files of one name are in several folders
            name = f"{flag} {path.name}"
            key[name] = f"{key.get(name, '')} {digest_of(path)[:16]}".lstrip()
        if not files and not flag.endswith("pref"):
            key[flag] = " ".join(values)
    return key


def files_of(value: str, languages: list[str]) -> list[Path]:
    """Return the file that a value names, or the texts of its prefixes."""
    if Path(value).is_file():
        return [Path(value)]
    prefixes = value.split(",") if "/" in value else []
    patterns = [f"{prefix}.{language}" for prefix in prefixes for language in languages]
    paths = (Path(path) for pattern in patterns for path in (*glob(pattern), *glob(f"{pattern}.*")))
    return sorted(path for path in paths if path.is_file() and path.suffix != ".partial")


def check(folder: Path, current: dict[str, str]) -> None:
    """Compare the record of data with the options and texts of this call.

    Raises:
        UserError: they differ.
    """
    note = folder / RECORD
    if not note.is_file():
        return
    recorded = read_key(note.read_bytes(), note)
    # A value that named files then, or names them now, and an option that this call leaves open
    open_ = {
        name for name in recorded if name not in current and (" " in name or name == "--parser")
    }
    files = {name.partition(" ")[0] for name in recorded if " " in name}
    current = {name: value for name, value in current.items() if " " in name or name not in files}
    require_same(
        {name: value for name, value in recorded.items() if name not in open_},
        current,
        folder,
        "remove it to make it again, with the runs of these data, or name another folder with --out",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Record, or check."""
    action, folder, *words = sys.argv[1:] if arguments is None else arguments
    key = key_of(words)
    if action == "record":
        write_atomically(Path(folder) / RECORD, as_bytes(key))
        return
    try:
        check(Path(folder), key)
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
