"""SQL queries as outputs: whether sqlglot can parse them, and whether two are one query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from fairseq_phrase.errors import needs
from fairseq_phrase.metrics.forms import Form


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
        with needs("--form sql needs sqlglot", "'fairseq-phrase[forms]'"):
            import sqlglot
        self._sqlglot = sqlglot
        self._known: dict[str, str | None] = {}

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
        if text not in self._known:
            try:
                query = self._sqlglot.parse_one(text)
            except (self._sqlglot.errors.SqlglotError, RecursionError):
                self._known[text] = None
            else:
                is_query = isinstance(query, self._sqlglot.exp.Select) and query.args.get("from_")
                self._known[text] = self._rewritten(query) if is_query else None
        return self._known[text]

    def well_formed(self, text: str) -> bool:
        """Return whether a text is a SELECT statement with a FROM."""
        return self.canonical(text) is not None

    def equal(self, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Return for each pair whether it is one query, up to case and the order of conditions."""
        return [
            one.split() == other.split()
            or (self.canonical(one) is not None and self.canonical(one) == self.canonical(other))
            for one, other in pairs
        ]

    @property
    def notes(self) -> list[str]:
        """What the metrics mean."""
        return [
            "Well-formed: sqlglot parses the output as a SELECT statement. Equal queries: equal after "
            "sqlglot has simplified both, which orders their conditions."
        ]
