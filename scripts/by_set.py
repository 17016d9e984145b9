"""Draw each row's score by test set as a heat map.

    python scripts/by_set.py REPORT/runs.csv PICTURE --sets CP_3 PP_3 …

The numbers are means over the seeds of ``exact match SET``, or of the report's one test set. The last
column is the mean over the sets.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from fairseq_phrase.lab.pictures.figures import new_figure, save

METRIC = "exact match"


def scores_by_set(path: Path, sets: Sequence[str]) -> dict[str, list[float]]:
    """Read the mean over the seeds of each row's score in each test set.

    Args:
        path: the report's ``runs.csv``.
        sets: the test sets' names; any name if the report has one.

    Raises:
        SystemExit: the file is missing or has no runs, or the report lacks a set.
    """
    try:
        with open(path, newline="", encoding="utf-8") as stream:
            runs = list(csv.DictReader(stream))
    except OSError as error:
        sys.exit(str(error))
    if not runs:
        sys.exit(f"{path} has no runs")
    columns = [name for name in runs[0] if name.startswith(METRIC)]
    names = [METRIC] if columns == [METRIC] and len(sets) == 1 else [f"{METRIC} {s}" for s in sets]
    for name in names:
        if name not in columns:
            sys.exit(f"{path} has no column '{name}': its columns are {', '.join(columns)}")
    rows = dict.fromkeys(run["row"] for run in runs)
    return {
        row: [fmean(float(run[name]) for run in runs if run["row"] == row) for name in names]
        for row in rows
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--sets", nargs="+", required=True, help="the test sets' names, in order")
    args = parser.parse_args(arguments)
    scores = scores_by_set(args.runs, args.sets)
    values, names = np.array(list(scores.values())), list(args.sets)
    if len(names) > 1:
        values, names = np.hstack([values, values.mean(1, keepdims=True)]), [*names, "mean"]
    figure = new_figure(args.picture, (2.5 + 0.55 * len(names), 1.8 + 0.4 * len(scores)))
    axes = figure.subplots()
    axes.imshow(values, cmap="Blues", vmin=0.0, vmax=100.0, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if value > 60 else "black"
        axes.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=7, color=colour)
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=8)
    axes.set_yticks(range(len(scores)), list(scores), fontsize=8)
    axes.set_title("exact match, in percent, by test set")
    save(figure, args.picture)
    print(args.picture)


if __name__ == "__main__":
    main()
