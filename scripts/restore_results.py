"""Continue a table whose results were kept, on any machine: add rows or seeds to it.

    python scripts/restore_results.py results/which_syntax.synthetic4k.de-en.gold.cpu runs/more
    bash scripts/which_syntax.sh --corpus synthetic --trees gold --train-size 4000 --max-update 2000 \
        --rows transformer,relation_tree --out runs/more

The folder gets the runs that keep_results.py kept, as finished runs: their translations and logs. The
table's script, with the options in `provenance.txt`, makes the data again, trains missing runs, and
reports on all. It stops if the data differ from the kept runs' data. The kept runs lack models. To train
one again, remove its folder, or name the others:

    python scripts/restore_results.py results/multi30k_table1.de-en.cpu runs/more --rows transformer,tree

Translations that were encrypted need their password: --password. SLOG's is in its authors' README.

Runs from which others start (pretraining.sh's objectives) are not restored: they are trained again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from tempfile import TemporaryDirectory

from keep_results import ARCHIVE, ENCRYPTED, INNER, encrypted, read_archive, write

# In a restored folder: which outputs it was restored from, see digest().
RESTORED = "restored.txt"
_NO_MODEL = b"restored from kept results: the model is not here\n"


def restore(
    results: Path,
    table: Path,
    rows: set[str] | None = None,
    password: str | None = None,
    whole: bool = False,
) -> int:
    """Copy kept results (of these rows) into an empty folder of a table; return the number of runs.

    ``whole`` also copies files outside rows: the runs from which others start, and their losses.

    Raises:
        SystemExit: the archive has no runs; a row is not among them; or the translations
            are encrypted, and the password is missing or wrong.
    """
    outputs = read_archive(results / ARCHIVE)
    if not any("runs" in Path(name).parts for name in outputs):
        sys.exit(f"{results / ARCHIVE} has no runs")
    contents = outputs | translations(results, password)
    files = {
        Path(*("rows" if part == "runs" else part for part in Path(name).parts)): content
        for name, content in contents.items()
        if "runs" in Path(name).parts
    }
    rows_there = {row_of(path) for path in files}
    if rows is not None and rows - rows_there:
        missing = ", ".join(sorted(rows - rows_there))
        sys.exit(f"{results} has no {missing}: its rows are {', '.join(sorted(rows_there))}")
    for name in ("settings", "provenance.txt", "parser.txt"):
        if (results / name).is_file():
            shutil.copy(results / name, table / name)
    for path in results.glob("**/syntax.*.json"):
        # scripts/same_data.py compares the data with it when they are made again.
        manifest = table / path.relative_to(results).with_name(f"kept.{path.name}")
        write(manifest, path.read_bytes())
    if whole:
        for name, content in contents.items():
            if "runs" not in Path(name).parts:
                write(table / name, content)
        for path in results.glob("report*/losses.*"):
            write(table / path.relative_to(results), path.read_bytes())
    write(table / RESTORED, digest(results, outputs).encode())
    runs = set()
    for path, content in files.items():
        if rows is None or row_of(path) in rows:
            write(table / path, content)
            runs.add(Path(*path.parts[: path.parts.index("rows") + 3]))
    for run in runs:
        # The steps that rows.py makes before the translations.
        write(table / run / "train.done", b"")
        write(table / run / "average.txt", _NO_MODEL)
    return len(runs)


def digest(results: Path, outputs: dict[str, bytes] | None = None) -> str:
    """Return a hash of the kept outputs of a table's runs; ``outputs`` if the archive is read already."""
    if outputs is None:
        outputs = read_archive(results / ARCHIVE)
    hashed = hashlib.sha256()
    for name, content in sorted(outputs.items()):
        hashed.update(name.encode() + hashlib.sha256(content).digest())
    if (results / ENCRYPTED).is_file():
        hashed.update((results / ENCRYPTED).read_bytes())
    return hashed.hexdigest() + "\n"


def translations(results: Path, password: str | None) -> dict[str, bytes]:
    """Return the encrypted translations by their names; empty if none are encrypted."""
    archive = results / ENCRYPTED
    if not archive.is_file():
        return {}
    if password is None:
        sys.exit(f"{archive} is encrypted: give its --password")
    with encrypted(archive, password, "r") as archived, TemporaryDirectory() as folder:
        try:
            return read_archive(Path(archived.extract(INNER, folder)))
        except RuntimeError:
            sys.exit(f"{archive}: --password is not the right one")


def row_of(path: Path) -> str:
    """Return the row that a run's file belongs to: [part/]rows/ROW/seedN/…."""
    return path.parts[path.parts.index("rows") + 1]


def restore_table(
    results: Path,
    table: Path,
    rows: set[str] | None = None,
    password: str | None = None,
    whole: bool = False,
) -> int:
    """Restore into a new folder, which exists only if all was restored; see :func:`restore`.

    Raises:
        SystemExit: the folder exists, or the results cannot be restored.
    """
    if not (results / ARCHIVE).is_file():
        sys.exit(f"{results} has no {ARCHIVE}: name a folder that keep_results.py wrote")
    if table.exists():
        sys.exit(f"{table} is there already; name a new folder")
    table.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".restored-", dir=table.parent))
    try:
        count = restore(results, staging, rows, password, whole)
        staging.chmod(0o755)
        os.replace(staging, table)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return count


def main() -> None:
    """Restore the results named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="the folder that keep_results.py wrote")
    parser.add_argument("table", type=Path, help="a new folder, for --out of the table's script")
    parser.add_argument("--rows", metavar="NAMES", help="only these, separated by commas (all)")
    parser.add_argument("--password", help=f"that of {ENCRYPTED}, if there is one")
    args = parser.parse_args()
    rows = set(args.rows.split(",")) if args.rows else None
    count = restore_table(args.results, args.table, rows, args.password)
    print(f"restored {count} runs in {args.table}")


if __name__ == "__main__":
    main()
