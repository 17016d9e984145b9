"""Exact match of outputs, and formal languages: which texts are well-formed, which mean the same.

A form is chosen by ``--form NAME`` of ``fairseq-phrase-report``. Another one is a subclass of
:class:`Form` in :data:`fairseq_phrase.metrics.measure_registry.FORMS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fairseq_phrase.metrics.interface import Metrics, Statistics
from fairseq_phrase.optional_packages import optional_packages

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
        return np.array([hypothesis.split() == right.split() for hypothesis, right in pairs], bool)

    def statistics(self, hypotheses: Sequence[str]) -> dict[str, Statistics]:
        """Return whether each output satisfies each metric, and 1. Shape of each: (sentences, 2)."""
        statistics = {EXACT: _shares(self.correct_items(hypotheses))}
        if self._form is None:
            return statistics
        if self._form.equality is not None:
            verdicts = self._form.equal(list(zip(hypotheses, self._references, strict=True)))
            statistics[self._form.equality] = _shares(verdict is True for verdict in verdicts)
            if self._form.limited:
                statistics[UNDECIDED] = _shares(verdict is None for verdict in verdicts)
        statistics[WELL_FORMED] = _shares(map(self._form.well_formed, hypotheses))
        return statistics

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


_BRACKETS = {")": "(", "]": "[", "}": "{"}
_OPENING = frozenset(_BRACKETS.values())
_NO_WORD = frozenset([*_BRACKETS, *_OPENING, ",", ";", ":", "=", "."])


class Form(ABC):
    """A formal language.

    Attributes:
        equality: the name of a metric, equality of meaning; None if only equal texts mean the same.
        limited: whether :meth:`equal` may leave a pair undecided.
    """

    equality: ClassVar[str | None] = None
    limited: ClassVar[bool] = False

    @abstractmethod
    def well_formed(self, text: str) -> bool:
        """Return whether an output is a text of the language."""

    def equal(self, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Return for each pair of texts whether both mean the same; None if that could not be decided."""
        return [first.split() == second.split() for first, second in pairs]

    @property
    def notes(self) -> list[str]:
        """Notes that explain the form's metrics, for below the table."""
        return []


class BracketForm(Form):
    """Logical forms with brackets: ``river ( A )``, or with the predicate inside, ``( river $0 )``.

    Args:
        inside: whether the predicate is the first word inside its brackets.
        training: forms with all valid predicates, such as the training data's; None to accept every
            predicate.

    Examples:
        >>> form = BracketForm(training=["answer ( A , river ( A ) )"])
        >>> [form.well_formed(text) for text in ("river ( A )", "river ( A", "lake ( A )")]
        [True, False, False]
    """

    def __init__(self, inside: bool = False, training: Iterable[str] | None = None):
        self._inside = inside
        self._training_predicates: set[str] | None = None
        if training is not None:
            self._training_predicates = {
                name for text in training for name in self._predicates(text.split())
            }

    def _predicates(self, words: Sequence[str]) -> Iterator[str]:
        """Yield the words next to opening brackets. A bracket without a predicate is a group."""
        for number, word in enumerate(words):
            index = number + 1 if self._inside else number - 1
            if word == "(" and 0 <= index < len(words) and words[index] not in _NO_WORD:
                yield words[index]

    def well_formed(self, text: str) -> bool:
        """Return whether brackets match and predicates are known."""
        words = text.split()
        return (
            bool(words)
            and balanced(words)
            and (
                self._training_predicates is None
                or self._training_predicates.issuperset(self._predicates(words))
            )
        )

    @property
    def notes(self) -> list[str]:
        """The note that defines a well-formed output."""
        condition = (
            "" if self._training_predicates is None else ", and all predicates occur in training"
        )
        return [f"Well-formed: brackets match{condition}."]


def balanced(words: Iterable[str]) -> bool:
    """Return whether every bracket among words has its partner.

    Examples:
        >>> balanced("( [ ] )".split()), balanced("( ]".split())
        (True, False)
    """
    opened: list[str] = []
    for word in words:
        if word in _OPENING:
            opened.append(word)
        elif word in _BRACKETS and (not opened or opened.pop() != _BRACKETS[word]):
            return False
    return not opened


class Queries(Form):
    """SELECT statements.

    Raises:
        UserError: sqlglot is not installed.

    Examples:
        >>> query, same = "SELECT a FROM t WHERE b = 1 AND c = 2", "select A from t where c=2 and b=1"
        >>> Queries().equal([(query, same)])
        [True]
    """

    equality: ClassVar[str | None] = "equal queries"

    def __init__(self) -> None:
        with optional_packages("--form sql needs sqlglot", "sqlglot"):
            import sqlglot
        self._sqlglot = sqlglot
        self._canonical_forms: dict[str, str | None] = {}

    def _rewritten(self, query: Any) -> str | None:
        """Simplify a query; None if it is nested too deeply for that."""
        from sqlglot.optimizer.normalize_identifiers import normalize_identifiers
        from sqlglot.optimizer.simplify import simplify

        try:
            return str(simplify(normalize_identifiers(query)).sql())
        except RecursionError:
            return None

    def canonical(self, text: str) -> str | None:
        """Write a query in one way: case of words, order of conditions; None if it is not a query.

        A text that is nested too deeply for sqlglot is not a query. A bad output may repeat brackets.
        """
        if text not in self._canonical_forms:
            try:
                query = self._sqlglot.parse_one(text)
            except (self._sqlglot.errors.SqlglotError, RecursionError):
                self._canonical_forms[text] = None
            else:
                is_query = isinstance(query, self._sqlglot.exp.Select) and query.args.get("from_")
                self._canonical_forms[text] = self._rewritten(query) if is_query else None
        return self._canonical_forms[text]

    def well_formed(self, text: str) -> bool:
        """Return whether a text is a SELECT statement with a FROM."""
        return self.canonical(text) is not None

    def equal(self, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Return for each pair whether it is one query, up to case and the order of conditions."""
        return [
            first.split() == second.split()
            or (
                self.canonical(first) is not None
                and self.canonical(first) == self.canonical(second)
            )
            for first, second in pairs
        ]

    @property
    def notes(self) -> list[str]:
        """The notes that explain the metrics."""
        return [
            "Well-formed: sqlglot parses the output as a SELECT statement. Equal queries: equal after "
            "sqlglot has simplified both, which orders their conditions."
        ]
