"""Scores of runs, read from fairseq's own logs and outputs and computed by sacrebleu."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sacrebleu.metrics import BLEU, CHRF

from fairseq_phrase.errors import UserError
from fairseq_phrase.text import read_lines

_HYPOTHESIS = re.compile(r"D-(\d+)\t[^\t]*\t(.*)")


@dataclass(frozen=True)
class RunScores:
    """One row of a table.

    Attributes:
        name: the run's name.
        bleu: sacrebleu BLEU, 0 to 100.
        chrf: sacrebleu chrF, 0 to 100.
        signatures: sacrebleu's signatures of both.
        parameters: the model's parameters; None if there is no training log.
        minutes: training time; None if there is no training log.
    """

    name: str
    bleu: float
    chrf: float
    signatures: tuple[str, str]
    parameters: int | None
    minutes: float | None


def read_hypotheses(path: Path) -> list[str]:
    """Read the best translations from what ``fairseq-generate`` printed, in the test set's order.

    Args:
        path: its output, made with ``--bpe`` or ``--remove-bpe``, so that ``D-`` lines are text.

    Raises:
        UserError: the output is missing or not whole.
    """
    best: dict[int, str] = {}
    finished = False
    for line in read_lines(path):
        if match := _HYPOTHESIS.fullmatch(line):
            best.setdefault(int(match[1]), match[2])
        finished = finished or line.startswith("Generate ") or "| Translated " in line
    if not finished or sorted(best) != list(range(len(best))):
        raise UserError(
            f"{path} is not a whole output of fairseq-generate ({len(best)} translations): run it again"
        )
    return [best[index] for index in range(len(best))]


def read_training_log(path: Path) -> tuple[int | None, float | None]:
    """Read a model's size and training time from the log of ``fairseq-train``.

    Args:
        path: the log, in the ``simple`` format; a resumed training's may hold several runs.

    Returns:
        The number of parameters, and the minutes it took.
    """
    parameters = minutes = None
    for line in read_lines(path):
        if match := re.search(r"num\. (?:shared )?model params: ([\d,]+)", line):
            parameters = int(match[1].replace(",", "")) or parameters
        # fairseq counts the time before a resumption in.
        if match := re.search(r"\| train \|.*\| wall (\d+)", line):
            minutes = int(match[1]) / 60
    return parameters, minutes


def score_run(name: str, output: Path, references: Sequence[str], log: Path | None) -> RunScores:
    """Score a run's translations against untouched references.

    Args:
        name: the run's name.
        output: what ``fairseq-generate`` printed.
        references: the reference translations, raw.
        log: what ``fairseq-train`` printed, if it is at hand.

    Raises:
        UserError: the output is not whole, or is of another test set.
    """
    hypotheses = read_hypotheses(output)
    if len(hypotheses) != len(references):
        raise UserError(
            f"{output} has {len(hypotheses)} translations and the reference {len(references)} lines: "
            "they are not of the same test set"
        )
    bleu, chrf = BLEU(), CHRF()
    scores = [metric.corpus_score(hypotheses, [list(references)]).score for metric in (bleu, chrf)]
    parameters, minutes = read_training_log(log) if log is not None else (None, None)
    signatures = (str(bleu.get_signature()), str(chrf.get_signature()))
    return RunScores(name, scores[0], scores[1], signatures, parameters, minutes)


def markdown_table(rows: Sequence[RunScores]) -> str:
    """Lay rows out as a Markdown table, sacrebleu's signatures below it."""
    cells = [["model", "BLEU", "chrF", "parameters", "training"]]
    for row in rows:
        cells.append(
            [
                row.name,
                f"{row.bleu:.2f}",
                f"{row.chrf:.2f}",
                "-" if row.parameters is None else f"{row.parameters:,}",
                "-" if row.minutes is None else f"{row.minutes:.1f} min",
            ]
        )
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in cells
    ]
    lines.insert(1, "|-" + "-|-".join("-" * width for width in widths) + "-|")
    signatures = sorted({signature for row in rows for signature in row.signatures})
    return "\n".join([*lines, "", *(f"sacrebleu: {signature}" for signature in signatures)])
