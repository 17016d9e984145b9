"""A table of small run folders, and the report command on it."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from fairseq_phrase.cli.report import main
from tests.support.run_folders import write_generation, write_run

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
        add_run(folder, row, seed, hypotheses, parameters=size)
    write_lines(folder / "test.en")
    return folder


def run_of(table: Path, row: str, seed: int) -> Path:
    """Return the folder of a run."""
    return table / "runs" / row / f"seed{seed}"


def add_run(table: Path, row: str, seed: int, hypotheses: Sequence[str], **options: Any) -> None:
    """Write a whole run (:func:`write_run`)."""
    write_run(run_of(table, row, seed), hypotheses, SOURCES, REFERENCES, seed=seed, **options)


def translate(
    table: Path, row: str, seed: int, hypotheses: Sequence[str], sources: Sequence[str] = SOURCES,
    references: Sequence[str] = REFERENCES, subset: str = "test", **options: Any,
) -> None:  # fmt: skip
    """Write the translations of a run (:func:`write_generation`)."""
    path = run_of(table, row, seed) / f"generate-{subset}.txt"
    write_generation(path, hypotheses, sources, references, subset=subset, **options)


def write_lines(path: Path, lines: Iterable[str] = REFERENCES) -> Path:
    """Write a text, such as the reference."""
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def change_log(table: Path, row: str, seed: int, old: str, new: str) -> None:
    """Replace text in the log of a training."""
    log = run_of(table, row, seed) / "train.log"
    log.write_text(log.read_text().replace(old, new))


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


def refusal(table, capsys, *arguments, **options) -> str:
    """Run the command, which fails; return what it says."""
    with pytest.raises(SystemExit) as caught:
        report(table, *arguments, **options)
    assert caught.value.code == 2
    assert not (table / "out").exists()
    captured = capsys.readouterr()
    assert not captured.out
    assert captured.err.startswith("fairseq-phrase-report: error: ")
    return captured.err


def records(path) -> list[dict[str, str]]:
    with open(path, newline="") as stream:
        return list(csv.DictReader(stream))


def named_rows(table: Path) -> dict[str, dict[str, str]]:
    """Read the rows of a table's report, by name."""
    return {row["row"]: row for row in records(table / "out" / "report.csv")}


def rows_with_runs(report: Path) -> list[dict[str, str]]:
    """Read the rows of a report that have runs."""
    return [row for row in records(report / "report.csv") if row["runs"] != "0"]


def table_lines(text) -> list[list[str]]:
    """Take the cells out of a Markdown table."""
    lines = [line.replace("\\|", "¦") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
