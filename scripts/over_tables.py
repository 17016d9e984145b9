"""Average a row's difference from the baseline over several tables, with interval and p.

    python scripts/over_tables.py relative EN-DE/report.csv,DE-EN/report.csv OTHER/report.csv

The tables must have the same baseline, and share no trainings. Tables of the same test sentences, such as
both directions of a language pair, are one corpus: join them by a comma.

Each corpus has the same weight. A table without the row, or with one seed of it, is left out and named.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from fairseq_phrase.lab.report.tables import format_p
from fairseq_phrase.metrics.over_seeds import SeedComparison, mean_over_tables
from fairseq_phrase.text import markdown_table

COLUMNS = ("difference", "low", "high", "p", "error", "freedom", "seed_error")


def read_difference(path: Path, row: str, metric: str) -> SeedComparison | None:
    """Read a row's difference from the baseline.

    Args:
        path: a report's ``report.csv``.
        row: the row's name.
        metric: the metric that the report tests.

    Returns:
        The difference, or None if the table lacks a difference with an interval.

    Raises:
        SystemExit: the file is not a report, or is of an old version.
    """
    try:
        with open(path, newline="", encoding="utf-8") as stream:
            lines = {line["row"]: line for line in csv.DictReader(stream)}
        if row not in lines:
            return None
        cells = [lines[row][f"{metric}_{name}"] for name in COLUMNS]
    except OSError as error:
        sys.exit(str(error))
    except KeyError as error:
        sys.exit(f"{path} has no column {error}: make the report again, or name another --metric")
    if "" in cells:
        return None
    difference, low, high, p, error, freedom, seed_error = map(float, cells)
    return SeedComparison(difference, low, high, p, p, error, freedom, seed_error)


def baseline_of(path: Path, metric: str) -> str:
    """Return the title of a report's baseline: the row with a score and without a difference.

    Raises:
        SystemExit: no row, or several rows are like this.
    """
    with open(path, newline="", encoding="utf-8") as stream:
        rows = [
            row["title"]
            for row in csv.DictReader(stream)
            if row[f"{metric}_mean"] and not row[f"{metric}_difference"]
        ]
    if len(rows) != 1:
        sys.exit(f"{path} does not compare with one baseline: {', '.join(rows) or 'it has none'}")
    return rows[0]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("row", help="the row's name, as in the tables' YAML")
    parser.add_argument(
        "reports", nargs="+", help="report.csv of each table; commas join the reports of one corpus"
    )
    parser.add_argument("--metric", default="BLEU", help="the measure that is tested (BLEU)")
    args = parser.parse_args(arguments)
    paths = [Path(name) for names in args.reports for name in names.split(",")]
    resolved = [path.resolve() for path in paths]
    if twice := [path for index, path in enumerate(paths) if resolved[index] in resolved[:index]]:
        sys.exit(f"{twice[0]} is named twice: the tables must share no trainings")
    corpora = []
    tested: dict[Path, SeedComparison] = {}
    for names in args.reports:
        differences = {
            path: read_difference(path, args.row, args.metric)
            for path in map(Path, names.split(","))
        }
        for path, difference in differences.items():
            if difference is None:
                print(f"left out: {path} has no interval for {args.row}", file=sys.stderr)
        of_tables = {
            path: difference for path, difference in differences.items() if difference is not None
        }
        tested |= of_tables
        corpora += [list(of_tables.values())] if of_tables else []
    if not tested:
        sys.exit(f"no report has an interval for {args.row}")
    baselines = {path: baseline_of(path, args.metric) for path in tested}
    if len(set(baselines.values())) > 1:
        baseline_names = ", ".join(f"{path} with {title}" for path, title in baselines.items())
        sys.exit(f"the reports compare with different baselines: {baseline_names}")
    mean = mean_over_tables(corpora)
    baseline_names = [(str(path), difference) for path, difference in tested.items()] + [
        ("mean", mean)
    ]
    lines = [
        [
            name,
            f"{difference.difference:+.2f}",
            f"{difference.low:+.2f} to {difference.high:+.2f}",
            format_p(difference.p),
        ]
        for name, difference in baseline_names
    ]
    print(markdown_table(["table", f"Δ{args.metric}", "95%", "p"], lines, texts=1))


if __name__ == "__main__":
    main()
