"""What a reader of a report must know about its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairseq_phrase.report.significance import LEVEL, TESTS

if TYPE_CHECKING:
    from fairseq_phrase.report.report import Row


def table_notes(rows: Sequence[Row], baseline: Row | None, test: str) -> list[str]:
    """Say what the numbers of a table are, and what makes them hard to compare.

    Args:
        rows: the table's rows.
        baseline: the row that the others are compared with; None without one.
        test: ``bs``, ``ar`` or ``none``.

    Returns:
        A paragraph each.
    """
    full = [row for row in rows if row.runs]
    notes = []
    absent = [row.title for row in rows if row.absent]
    if absent:
        notes.append(f"Rows that nothing was run for: {'; '.join(absent)}.")
    if any(len(row.runs) > 1 for row in full):
        notes.append("Scores are means over the seeds ± their standard deviation (n - 1).")
    seeds = {len(row.runs) for row in full}
    if len(seeds) > 1:
        notes.append(f"Rows have different numbers of seeds, {min(seeds)} to {max(seeds)}.")
    if baseline is not None and test != "none":
        tested = sum(1 for row in rows if row.comparisons)
        if tested:
            notes.append(_test_note(baseline, test, tested))
        untested = [row.title for row in full if row is not baseline and not row.comparisons]
        if untested:
            notes.append(
                f"Not tested, for want of a seed of the baseline's: {'; '.join(untested)}."
            )
    notes += _cost_notes(full)
    beams = {run.generation.beam for row in full for run in row.runs if run.generation.beam}
    if len(beams) > 1:
        notes.append(f"Beams differ: {', '.join(map(str, sorted(beams)))}.")
    return notes


def _test_note(baseline: Row, test: str, tested: int) -> str:
    """Say what p is: of how many rows, against what."""
    by_seed = (
        ", each run against the baseline's of the same seed: the median over the seeds, and how many are "
        f"better (+) and worse (-) with p < {LEVEL}"
    )
    return (
        f"p: {TESTS[test]} of BLEU against {baseline.title} by sacrebleu"
        + (by_seed if len(baseline.runs) > 1 else "")
        + (f"; not corrected for there being {tested} comparisons." if tested > 1 else ".")
    )


def _cost_notes(rows: Sequence[Row]) -> list[str]:
    """Say what the columns of costs are."""
    notes = []
    hardware = sorted({row.hardware for row in rows if row.hardware is not None})
    if hardware:
        notes.append(
            f"Trained on {'; '.join(hardware)}. Words/s are fairseq's wps in training: target subwords "
            "per second, the median. Hours are the time its processes ran times the devices (shared ones "
            "count whole), with all resumptions and validations."
        )
    if any(row.speed(parsed=False) for row in rows):
        settings = {
            f"beam {run.generation.beam or '?'}, batches of {run.generation.batch or 'unknown size'}"
            for row in rows
            for run in row.runs
        }
        notes.append(
            f"Sentences/s: fairseq-generate's own ({'; '.join(sorted(settings))}), of data that were "
            "parsed before."
        )
    if any(row.speed(parsed=True) for row in rows):
        notes.append(
            "With parsing: fairseq-interactive's, from raw text; loading the model and the parser counts."
        )
    return notes
