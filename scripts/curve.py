"""Make a table and a picture of BLEU from the reports of several fractions of the training data.

    python scripts/curve.py 1/4=RUNS/fraction-1-4/report 1=RUNS/fraction-1/report --out RUNS/curve

writes RUNS/curve.md and RUNS/curve.png.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from fairseq_phrase.lab.pictures.figures import new_figure, save
from fairseq_phrase.text import escape_markdown, markdown_table


def read_report(folder: Path) -> dict[str, tuple[str, float | None, float | None]]:
    """Read the rows of a report, each with its title, its BLEU and BLEU's spread over seeds.

    Raises:
        SystemExit: the folder has no report, or the report has no BLEU.
    """
    path = folder / "report.csv"
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            return {
                row["row"]: (row["title"], _number(row["BLEU_mean"]), _number(row["BLEU_sd"]))
                for row in csv.DictReader(stream)
                if row["BLEU_mean"]
            }
    except OSError as error:
        sys.exit(str(error))
    except KeyError as error:
        sys.exit(f"{path} has no column {error}")


def _number(text: str) -> float | None:
    return float(text) if text else None


def table(reports: dict[Fraction, dict], caption: str) -> str:
    """Write the rows of all reports as Markdown, with one column for each share."""
    titles = {row: title for report in reports.values() for row, (title, _, _) in report.items()}
    lines = []
    for row, title in titles.items():
        cells = []
        for report in reports.values():
            _, mean, spread = report.get(row, (title, None, None))
            cells.append("-" if mean is None else f"{mean:.2f}")
            cells[-1] += "" if spread is None else f" ± {spread:.2f}"
        lines.append([title, *cells])
    return f"**{escape_markdown(caption)}**\n\n{markdown_table(['model', *map(str, reports)], lines)}\n"


def plot(reports: dict[Fraction, dict], caption: str, file: Path) -> None:
    """Draw BLEU over the share of the data, a line for each row."""
    figure = new_figure(file, (6, 4))
    axes = figure.subplots()
    rows = dict.fromkeys(row for report in reports.values() for row in report)
    for row in rows:
        points = [(share, report[row]) for share, report in reports.items() if row in report]
        axes.errorbar(
            [float(share) for share, _ in points],
            [mean for _, (_, mean, _) in points],
            yerr=[spread or 0.0 for _, (_, _, spread) in points],
            marker="o", capsize=3, label=points[0][1][0],
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks([float(share) for share in reports], [str(share) for share in reports])
    axes.set_xlabel("share of the training data")
    axes.set_ylabel("BLEU")
    axes.set_title(caption)
    axes.grid(alpha=0.3)
    axes.legend()
    save(figure, file)


def read_reports(arguments: Sequence[str]) -> dict[Fraction, dict]:
    """Read the reports that the arguments ``SHARE=DIR`` name, by share, the smallest first.

    Raises:
        SystemExit: an argument is different, or two have the same share.
    """
    folders: dict[Fraction, Path] = {}
    for argument in arguments:
        name, _, folder = argument.partition("=")
        try:
            share = Fraction(name)
        except (ValueError, ZeroDivisionError):
            share = Fraction(0)
        if share <= 0 or not folder:
            sys.exit(f"{argument}: expected SHARE=DIR, such as 1/4=runs/fraction-1-4/report")
        if share in folders:
            sys.exit(f"{folders[share]} and {folder} are both of the share {share}")
        folders[share] = Path(folder)
    return {share: read_report(folders[share]) for share in sorted(folders)}


def main() -> None:
    """Make the table and the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reports", nargs="+", metavar="SHARE=DIR", help="1/4=DIR, 1=DIR")
    parser.add_argument("--out", type=Path, required=True, help="the files' name, without .md")
    parser.add_argument("--caption", default="BLEU by training data")
    args = parser.parse_args()
    reports = read_reports(args.reports)
    text = table(reports, args.caption)
    args.out.with_name(f"{args.out.name}.md").write_text(text, encoding="utf-8")
    plot(reports, args.caption, args.out.with_name(f"{args.out.name}.png"))
    print(text)


if __name__ == "__main__":
    main()
