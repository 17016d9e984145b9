"""Scores of runs, read from fairseq's own logs and outputs and computed by sacrebleu."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sacrebleu.metrics import BLEU, CHRF

from fairseq_phrase.errors import UserError
from fairseq_phrase.report.generation import read_generation
from fairseq_phrase.report.training_log import TrainingLog, read_training_log


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
    return read_generation(path).hypotheses


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
    training = read_training_log(log) if log is not None else TrainingLog()
    minutes = None if training.seconds is None else training.seconds / 60
    signatures = (str(bleu.get_signature()), str(chrf.get_signature()))
    return RunScores(name, scores[0], scores[1], signatures, training.parameters, minutes)


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
