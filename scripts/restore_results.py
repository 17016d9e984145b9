"""Go on with a table whose results were kept, on any machine: add rows or seeds to it.

    python scripts/restore_results.py results/multi30k_table1.de-en runs/more
    bash scripts/multi30k_table1.sh --direction de-en --seeds 4,5 --out runs/more

The folder gets the runs that keep_results.py kept, as finished ones: their translations and logs. The
table's script, with the options in `provenance.txt`, makes the data again, trains what is missing, and
reports on all. It stops if the data are not those of the kept runs. The kept runs have no models. To
train one again, remove its folder, or name the others:

    python scripts/restore_results.py results/multi30k_table1.de-en runs/more --rows transformer,phrase_k2

Translations that were encrypted need their password: --password. That of SLOG is in its authors' README.

What others start from (pretraining.sh's objectives) is not restored: without models it is trained again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from tempfile import TemporaryDirectory

from keep_results import INNER, TRANSLATIONS, encrypted_archive

from fairseq_phrase.errors import UserError
from fairseq_phrase.report.kept_logs import ARCHIVE, read_archive

TEXTS = ("commands.sh", "generate-*.txt", "labels-*.txt")  # of a run; its logs are in the archive
_NO_MODEL = "restored from kept results: the model is not here\n"


def restore(
    results: Path, table: Path, rows: set[str] | None = None, password: str | None = None
) -> int:
    """Copy kept results (of these rows) into an empty folder of a table; return the number of runs.

    Raises:
        SystemExit: a row is not among the results; or the translations are encrypted, and the password is
            missing or wrong.
    """
    logs = {
        as_rows(Path(name)): log
        for name, log in read_archive(results / ARCHIVE).items()
        if "runs" in Path(name).parts
    }
    archived = translations(results, password)
    logs |= {as_rows(Path(name)): text for name, text in archived.items()}
    kept = {row_of(log) for log in logs}
    if rows is None:
        rows = kept
    elif rows - kept:
        sys.exit(
            f"{results} has no {', '.join(sorted(rows - kept))}: its rows are {', '.join(sorted(kept))}"
        )
    for name in ("settings", "provenance.txt"):
        if (results / name).is_file():
            shutil.copy(results / name, table / name)
    for path in results.glob("**/data-bin*/syntax.*.json"):
        # scripts/same_data.py compares the data with it when they are made again.
        kept_path = path.relative_to(results)
        copy_to(table / kept_path.with_name(f"kept.{path.name}"), path.read_text(encoding="utf-8"))
    texts = [path for name in TEXTS for path in results.glob(f"**/runs/*/seed*/{name}")]
    for path in texts:
        text = as_rows(path.relative_to(results))
        if row_of(text) in rows:
            copy_to(table / text, path.read_text(encoding="utf-8"))
    for name, log in logs.items():
        if row_of(name) in rows:
            copy_to(table / name, log)
    runs = sorted({log.parent for log in table.glob("**/seed*/train.log")})
    for run in runs:
        # The steps that rows.py makes before the translations.
        (run / "train.done").touch()
        (run / "average.txt").write_text(_NO_MODEL, encoding="utf-8")
    return len(runs)


def translations(results: Path, password: str | None) -> dict[str, str]:
    """Return the archived translations, encrypted or not, by their names; none if none are archived."""
    if (results / INNER).is_file():
        return read_archive(results / INNER)
    if not (results / TRANSLATIONS).is_file():
        return {}
    if password is None:
        sys.exit(f"{results / TRANSLATIONS} is encrypted: give its --password")
    with encrypted_archive(results, password, "r") as archived, TemporaryDirectory() as folder:
        try:
            return read_archive(Path(archived.extract(INNER, folder)))
        except RuntimeError:
            sys.exit(f"{results / TRANSLATIONS}: --password is not the right one")


def as_rows(kept: Path) -> Path:
    """Return a kept file's path in the table's folder."""
    return Path(*("rows" if part == "runs" else part for part in kept.parts))


def row_of(path: Path) -> str:
    """Return the row that a run's file belongs to: [part/]rows/ROW/seedN/…."""
    return path.parts[path.parts.index("rows") + 1]


def copy_to(path: Path, text: str) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def main() -> None:
    """Restore the results named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="the folder that keep_results.py wrote")
    parser.add_argument("table", type=Path, help="a new folder, for --out of the table's script")
    parser.add_argument("--rows", metavar="NAMES", help="only these, separated by commas (all)")
    parser.add_argument("--password", help=f"that of {TRANSLATIONS}, if there is one")
    args = parser.parse_args()
    rows = set(args.rows.split(",")) if args.rows else None
    if not (args.results / ARCHIVE).is_file():
        sys.exit(f"{args.results} has no {ARCHIVE}: name a folder that keep_results.py wrote")
    if args.table.exists():
        sys.exit(f"{args.table} is there already; name a new folder")
    args.table.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".restored-", dir=args.table.parent))
    try:
        count = restore(args.results, made, rows, args.password)
        made.chmod(0o755)
        os.replace(made, args.table)
    except UserError as error:
        sys.exit(str(error))
    finally:
        shutil.rmtree(made, ignore_errors=True)
    print(f"restored {count} runs in {args.table}")


if __name__ == "__main__":
    main()
