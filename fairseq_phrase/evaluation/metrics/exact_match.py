"""Exact match of outputs, and metrics of their formal language: well-formed outputs, equal meanings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fairseq_phrase.evaluation.metrics.forms import Form
from fairseq_phrase.evaluation.metrics.interface import Metrics, Statistics

EXACT = "exact match"
UNDECIDED = "undecided"
WELL_FORMED = "well-formed"


class ExactMatch(Metrics):
    """Share of outputs that equal the reference, in percent; white space is not compared.

    Args:
        form: their formal language; None for exact match only.
    """

    outputs = "outputs"
    tested = (EXACT,)
    lower_is_better = frozenset({UNDECIDED})
    sentence_metric = EXACT

    def __init__(self, references: Sequence[str], form: Form | None = None):
        self._references = list(references)
        self._form = form

    @property
    def names(self) -> list[str]:
        """Exact match, and the metrics of the form."""
        if self._form is None:
            return [EXACT]
        equality = [self._form.equality] if self._form.equality else []
        return [EXACT, *equality, *([UNDECIDED] if self._form.limited else []), WELL_FORMED]

    def correct_items(self, hypotheses: Sequence[str]) -> NDArray[np.bool_]:
        """Return which outputs are correct. Shape: (sentences,)."""
        pairs = zip(hypotheses, self._references, strict=True)
        return np.array([own.split() == right.split() for own, right in pairs], bool)

    def statistics(self, hypotheses: Sequence[str]) -> dict[str, Statistics]:
        """Return whether each output satisfies each metric, and 1. Shape of each: (sentences, 2)."""
        found = {EXACT: _shares(self.correct_items(hypotheses))}
        if self._form is None:
            return found
        if self._form.equality is not None:
            verdicts = self._form.equal(list(zip(hypotheses, self._references, strict=True)))
            found[self._form.equality] = _shares(verdict is True for verdict in verdicts)
            if self._form.limited:
                found[UNDECIDED] = _shares(verdict is None for verdict in verdicts)
        found[WELL_FORMED] = _shares(map(self._form.well_formed, hypotheses))
        return found

    @property
    def notes(self) -> list[str]:
        """The form's notes, and how many references are not well-formed."""
        if self._form is None:
            return []
        wrong = len(self._references) - sum(map(self._form.well_formed, self._references))
        counted = f"{wrong} of {len(self._references)} references are not well-formed."
        return [*self._form.notes, *([counted] if wrong else [])]


def _shares(hold: Iterable[bool]) -> Statistics:
    """Write truth values as counts out of one; (sentences,) -> (sentences, 2)."""
    held = np.fromiter(hold, np.float64)
    return np.stack([held, np.ones_like(held)], axis=1)
