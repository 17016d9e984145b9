"""Contrastive accuracy: how often a model prefers the correct one of two translations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairseq_phrase.errors import UserError, location
from fairseq_phrase.lab.report.runs import Run
from fairseq_phrase.text import read_lines

FOLDER = "contrastive"  # in a run's folder
SIDES = ("correct", "incorrect")
_PARTS = ("src", "tgt.correct", "tgt.incorrect")  # the files of minimal pairs
_SCORES = re.compile(r"P-(\d+)\t(.*)")  # fairseq-generate's: each subword's
_TOTALS = re.compile(r"TOTAL-(\d+)\t(\S+) (\d+)")  # their sum and number
_DECIMALS = 4  # that fairseq-generate prints


@dataclass(frozen=True)
class MinimalPairs:
    """Sentences with a correct and an incorrect translation, which differ in one phenomenon.

    Attributes:
        incorrect: the file of incorrect ones.
    """

    phenomenon: str
    source: Path
    correct: Path
    incorrect: Path
    count: int


@dataclass(frozen=True)
class Accuracy:
    """The share of a phenomenon's pairs in which the correct translation has the higher score.

    Attributes:
        total: by the log-probability of the whole translation.
        mean: by the mean log-probability of its subwords, which does not favour the shorter translation.
    """

    total: float
    mean: float


def read_pairs(folder: Path) -> list[MinimalPairs]:
    """Find the minimal pairs in a folder.

    Args:
        folder: a folder for each phenomenon, NAME or ``NAME.mt``, with ``src.LANG``,
            ``tgt.correct.LANG`` and ``tgt.incorrect.LANG``, line by line; ``.gz`` accepted.

    Raises:
        UserError: the folder is missing or lacks pairs, or files of a phenomenon have different numbers
            of lines.
    """
    if not folder.is_dir():
        raise UserError(f"the folder of minimal pairs {folder} is not there")
    pairs = []
    for test in sorted(path for path in folder.iterdir() if path.is_dir()):
        parts = {part: sorted(test.glob(f"{part}.*")) for part in _PARTS}
        if not any(parts.values()):
            continue
        for part, files in parts.items():
            if not files:
                raise UserError(f"{test} has no {part}.LANG: minimal pairs need all three files")
            if len(files) > 1:
                names = f"{files[0].name} and {files[1].name}"
                raise UserError(f"{test} has {names}: which one is meant?")
        source, correct, incorrect = (file for (file,) in parts.values())
        counts = {
            file.name: sum(1 for _ in read_lines(file)) for file in (source, correct, incorrect)
        }
        if len(set(counts.values())) > 1:
            lines = ", ".join(f"{name} has {count} lines" for name, count in counts.items())
            raise UserError(f"{test}: {lines}; line by line they must be the same pairs")
        name = test.name.removesuffix(".mt")
        pairs.append(MinimalPairs(name, source, correct, incorrect, counts[source.name]))
    if not pairs:
        raise UserError(
            f"{folder} has no minimal pairs: expected folders with src.LANG, tgt.correct.LANG and "
            "tgt.incorrect.LANG"
        )
    return pairs


def accuracies(run: Run, pairs: Sequence[MinimalPairs]) -> dict[str, Accuracy]:
    """Compare a run's scores of correct and incorrect translations, by phenomenon.

    Args:
        run: its folder has ``contrastive/PHENOMENON.correct.txt`` and ``….incorrect.txt``, the output of
            ``fairseq-generate --score-reference``.
    """
    accuracies_of_run = {}
    for test in pairs:
        correct, incorrect = (
            _read_scores(run.path / FOLDER / f"{test.phenomenon}.{side}.txt", test)
            for side in SIDES
        )
        total, mean = (correct > incorrect).mean(axis=0)
        accuracies_of_run[test.phenomenon] = Accuracy(float(total), float(mean))
    return accuracies_of_run


def shortened(line: str) -> str | None:
    """Return the numbers for :func:`accuracies` in a line of ``fairseq-generate --score-reference``.

    Returns:
        A translation's number, the sum of its subwords' log-probabilities and their number; None for a
        line without scores.
    """
    if _TOTALS.fullmatch(line):
        return line
    total = _total(line)
    return None if total is None else f"TOTAL-{total[0]}\t{total[1]:.{_DECIMALS}f} {total[2]}"


def _total(line: str) -> tuple[int, float, int] | None:
    """Read a translation's number, and the sum and the number of its log-probabilities."""
    if match := _SCORES.fullmatch(line):
        values = [float(value) for value in match[2].split()]
        return int(match[1]), round(sum(values), _DECIMALS), len(values)
    if match := _TOTALS.fullmatch(line):
        return int(match[1]), float(match[2]), int(match[3])
    return None


def _read_scores(path: Path, pairs: MinimalPairs) -> NDArray[np.float64]:
    """Read the sum and the mean of each translation's log-probabilities. Shape: (pairs, 2)."""
    if not path.is_file():
        raise UserError(
            f"{path} is not there: score the minimal pairs by scripts/contrastive.py, or by "
            "fairseq-generate --score-reference"
        )
    scores = np.full((pairs.count, 2), np.nan)
    for number, line in enumerate(read_lines(path), start=1):
        if total_of_line := _total(line):
            index, total, count = total_of_line
            if index >= pairs.count:
                raise UserError(
                    f"{location(path, number)}: scores of pair {index}, but {pairs.source.parent} has "
                    f"{pairs.count} pairs"
                )
            scores[index] = total, total / count
    missing = int(np.isnan(scores[:, 0]).sum())
    if missing:
        raise UserError(
            f"{path} has scores of {pairs.count - missing} translations, but {pairs.source.parent} has "
            f"{pairs.count} pairs: score them again"
        )
    return scores
