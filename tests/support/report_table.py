"""A table of small run folders, and the report command on it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from fairseq_phrase.cli.report import main
from tests.support.run_folders import write_run

PNG = b"\x89PNG\r\n\x1a\n"  # how each begins
FILES = {
    "report.md",
    "report.csv",
    "report.tex",
    "report.html",
    "runs.csv",
    "curves.png",
    "lengths.png",
}
NOUNS = ("dog", "cat", "child", "woman", "bird", "soldier", "teacher")
REFERENCES = [
    f"The {NOUNS[i % 7]} {'quickly ' * (i % 4)}sees {i} <b>old</b> & new {NOUNS[(3 * i + 1) % 7]}s here."
    for i in range(60)
]
SOURCES = [f"Quelle {i}: {' '.join(reversed(text.split()))}" for i, text in enumerate(REFERENCES)]


def translations(wrong: int, shift: int = 0) -> list[str]:
    """References of which every ``wrong``-th has two words exchanged."""
    lines = []
    for index, reference in enumerate(REFERENCES):
        words = reference.split()
        if (index + shift) % wrong == 0:
            words[1], words[-2] = words[-2], "large"
        lines.append(" ".join(words))
    return lines


TRANSLATIONS = {
    ("baseline", 1): translations(2), ("baseline", 2): translations(2, 1),
    ("k2", 1): translations(7), ("k2", 2): translations(6),
}  # fmt: skip


def write_table(folder: Path) -> Path:
    """Write the runs of TRANSLATIONS to FOLDER/runs, and the reference to FOLDER/test.en."""
    for (row, seed), hypotheses in TRANSLATIONS.items():
        size = 1506304 if row == "baseline" else 1705216
        path = folder / "runs" / row / f"seed{seed}"
        write_run(path, hypotheses, SOURCES, REFERENCES, seed=seed, parameters=size)
    (folder / "test.en").write_text("\n".join(REFERENCES) + "\n")
    return folder


def report(
    table, *arguments, runs=("runs",), out="out", reference="test.en", drawn: bool = False
) -> str:
    """Run the command; return the Markdown table.

    Args:
        drawn: whether its pictures are drawn, which takes three quarters of the time. Else they are
            empty files.
    """
    folders = [f"{name}={table / path}" if name else str(table / path)
               for name, _, path in (run.rpartition("=") for run in runs)]  # fmt: skip
    arguments = ("--reference", str(table / reference), "--out", str(table / out), *arguments)
    with pytest.MonkeyPatch.context() as patch:
        if not drawn:
            patch.setattr(Figure, "savefig", lambda _, path, **options: path.write_bytes(PNG))
        main([*folders, *arguments])
    return (table / out / "report.md").read_text()


def records(path) -> list[dict[str, str]]:
    with open(path, newline="") as stream:
        return list(csv.DictReader(stream))


def rows_with_runs(report: Path) -> list[dict[str, str]]:
    """Read the rows of a report that have runs."""
    return [row for row in records(report / "report.csv") if row["runs"] != "0"]


def table_lines(text) -> list[list[str]]:
    """Take the cells out of a Markdown table."""
    lines = [line.replace("\\|", "¦") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
