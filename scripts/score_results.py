"""Make the reports of kept tables again, from the outputs of their runs, and compare the scores.

Nothing is trained or parsed.

    python scripts/score_results.py                                   every table
    python scripts/score_results.py results/regex.synth.cpu --keep    one table; replace its kept files

A table is restored into a folder in --work, and its script runs with --report-only. A folder that is
there already must have been restored from the same runs. results/reports.txt has the commands, which are
`bash scripts/TABLE.sh …` or `fairseq-phrase-report …`; no shell reads them. The test
sets come from the script's usual sources (docs/tables.md). Encrypted translations need --password;
without it their table is left out, and named.
"""

from __future__ import annotations

import argparse
import csv
import re
import shlex
import subprocess
import sys
import tempfile
from math import isclose, nan
from pathlib import Path

from keep_results import ENCRYPTED, keep, write
from restore_results import RESTORED, digest, restore_table

COMMANDS = "reports.txt"
#: Options of fairseq-phrase-report that run nothing: measures may be functions, programs and pipelines.
_OF_REPORT = {"--out", "--reference", "--source", "--titles", "--baseline", "--trials", "--version"}
#: The tables' scripts, which know --report-only. Others run tests, of any folder, or read any table.
_TABLES = {
    f"scripts/{path.name}": path
    for path in Path(__file__).resolve().parent.glob("*.sh")
    if re.search(r"^\. .*table\.sh", path.read_text("utf-8"), re.M) and path.name != "run_table.sh"
}


def commands(results: Path) -> dict[str, list[str]]:
    """Return, by table, the commands that make its reports; ``$OUT`` is the table's folder.

    Raises:
        SystemExit: the folder has no file of commands.
    """
    by_name: dict[str, list[str]] = {}
    if not (results / COMMANDS).is_file():
        sys.exit(f"{results} has no {COMMANDS}: name tables of a folder of results")
    for line in (results / COMMANDS).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, command = line.split(maxsplit=1)
            by_name.setdefault(name, []).append(command)
    return by_name


def score(results: Path, table: Path, lines: list[str], password: str | None) -> None:
    """Restore a table, unless it is restored already, and make its reports.

    Raises:
        SystemExit: the folder has other runs than the kept ones, or a command is not allowed or failed.
    """
    programs = [program(line, table) for line in lines]
    mark = table / RESTORED
    if not table.exists():
        restore_table(results, table, password=password, whole=True)
    elif not mark.is_file() or mark.read_text(encoding="utf-8") != digest(results):
        sys.exit(f"{table} has other runs than {results}: remove it, or name another --work")
    for words in programs:
        if subprocess.run(words).returncode != 0:
            sys.exit(f"{results.name}: this failed: {shlex.join(words)}")


def program(line: str, table: Path) -> list[str]:
    """Return the program and the arguments of a command; a stranger's results may have any line.

    Raises:
        SystemExit: it does not only make a report.
    """
    try:
        words = shlex.split(line)
    except ValueError:  # an open quotation mark
        words = []
    # Its reports go into the restored table. Python's commands take --ou for --out, too.
    outs = [" ".join(words[at : at + 2]) for at, word in enumerate(words) if word[:3] == "--o"]
    if not outs or not all(re.fullmatch(r"--out \$OUT(/\w[\w.-]*)*", out) for out in outs):
        sys.exit(f"{COMMANDS}: expected --out $OUT, or a folder in it, and not {line!r}")
    words = [word.replace("$OUT", str(table)) for word in words]
    if words[:1] == ["bash"] and {*words[1:2]} & _TABLES.keys():
        # First: the line may have it as the value of another option.
        words[1:2] = [str(_TABLES[words[1]]), "--report-only"]
    elif words[:1] != ["fairseq-phrase-report"] or {w for w in words if w[:1] == "-"} - _OF_REPORT:
        sys.exit(
            f"{COMMANDS}: expected bash scripts/TABLE.sh … or fairseq-phrase-report … with "
            f"{', '.join(sorted(_OF_REPORT))}, and not {line!r}"
        )
    return words


def different(table: Path, results: Path) -> list[str]:
    """Name the kept reports that were not made again, or in which a row lacks or has other scores."""
    paths = []
    for report in sorted(results.rglob("report.csv")):
        new_report = table / report.relative_to(results)
        before, after = scores(report), scores(new_report) if new_report.is_file() else {}
        rows = {row for row, _ in after}
        if not after or any(
            not isclose(value, after.get((row, name), nan))
            for (row, name), value in before.items()
            if row in rows
        ):
            paths.append(str(report))
    return paths


def scores(report: Path) -> dict[tuple[str, str], float]:
    """Read the means of a ``report.csv`` by row and measure."""
    with open(report, newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return {
        (row["row"], name): float(value)
        for row in rows
        for name, value in row.items()
        if name.endswith("_mean") and value
    }


def keep_reports(table: Path, results: Path) -> None:
    """Replace a kept table's README, numbers and pictures; the outputs of its runs stay."""
    pictures = tuple(str(path.relative_to(results)) for path in results.rglob("*.png"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, results.name)
        keep(table, folder, pictures=pictures)
        for path in folder.rglob("*"):
            if path.suffix in (".csv", ".md", ".png"):
                write(results / path.relative_to(folder), path.read_bytes())


def main() -> None:
    """Score the tables named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", type=Path, help="kept tables (all in results/)")
    parser.add_argument("--work", type=Path, default=Path("runs/scored"), help="(runs/scored)")
    parser.add_argument("--keep", action="store_true", help="replace the kept reports by the new")
    parser.add_argument("--password", help=f"that of {ENCRYPTED}")
    args = parser.parse_args()
    changed: list[str] = []
    tables = args.tables or [Path("results", name) for name in commands(Path("results"))]
    for results in tables:
        lines = commands(results.parent).get(results.name)
        if lines is None:
            sys.exit(f"{results.parent / COMMANDS} has no command for {results.name}")
        if (results / ENCRYPTED).is_file() and args.password is None:
            print(f"{results}: left out; its translations are encrypted (--password)")
            continue
        table = args.work.resolve() / results.name
        score(results, table, lines, args.password)
        if args.keep:
            keep_reports(table, results)
        changed += different(table, results)
        print(f"scored {results} in {table}")
    if changed:
        sys.exit(
            f"the scores differ from those in {', '.join(changed)}: the test set, sacrebleu or the code "
            "has changed, or, if only pairs that were undecided differ, the machine is another; --keep "
            "replaces the kept reports"
        )


if __name__ == "__main__":
    main()
