"""Make a table and a picture of BLEU from the reports of several fractions of the training data.

    python scripts/curve.py 1/4=RUNS/fraction-1-4/report 1=RUNS/fraction-1/report --out RUNS/curve

writes RUNS/curve.md and RUNS/curve.png.
"""

from __future__ import annotations

import argparse
import csv
from fractions import Fraction
from pathlib import Path

from fairseq_phrase.text import escape_markdown, markdown_table
from fairseq_phrase.visualization.figures import new_figure, save


def read_report(folder: Path) -> dict[str, tuple[str, float | None, float | None]]:
    """Read the rows of a report, each with its title, its BLEU and BLEU's spread over seeds."""
    with open(folder / "report.csv", encoding="utf-8", newline="") as stream:
        return {
            row["row"]: (row["title"], _number(row["BLEU_mean"]), _number(row["BLEU_sd"]))
            for row in csv.DictReader(stream)
            if row["BLEU_mean"]
        }


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


def main() -> None:
    """Make the table and the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reports", nargs="+", metavar="SHARE=DIR", help="1/4=DIR, 1=DIR")
    parser.add_argument("--out", type=Path, required=True, help="the files' name, without .md")
    parser.add_argument("--caption", default="BLEU by training data")
    args = parser.parse_args()
    named = (report.split("=", 1) for report in args.reports)
    reports = {
        share: read_report(Path(folder))
        for share, folder in sorted((Fraction(share), folder) for share, folder in named)
    }
    text = table(reports, args.caption)
    args.out.with_suffix(".md").write_text(text, encoding="utf-8")
    plot(reports, args.caption, args.out.with_suffix(".png"))
    print(text)


if __name__ == "__main__":
    main()
