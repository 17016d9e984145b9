"""Regular expressions as outputs: whether two have the same language, within a time limit."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import TimeoutError as OutOfTime
from functools import reduce
from multiprocessing import get_context
from typing import Any, ClassVar

from fairseq_phrase.errors import needs
from fairseq_phrase.metrics.forms import Form
from fairseq_phrase.metrics.regex_syntax import BOUNDARY, NotARegexError, Tree, parse

logger = logging.getLogger(__name__)

#: Seconds for a pair. The automaton of an expression can be exponentially large.
LIMIT = 5.0
# A process that compares pairs takes as long to start as some tens of comparisons.
_PAIRS_OF_A_WORKER = 50


class Regexes(Form):
    """Regular expressions of NL-RX.

    Args:
        limit: seconds for a pair. Pairs that take longer count as unequal.

    Raises:
        UserError: greenery or pebble is not installed.
    """

    equality: ClassVar[str | None] = "equal languages"
    limited = True

    def __init__(self, limit: float = LIMIT):
        with needs("--form regex needs greenery and pebble", "'fairseq-phrase[forms]'"):
            import greenery  # noqa: F401
            import pebble
        self._pool = pebble.ProcessPool
        self._limit = limit
        self._known: dict[tuple[str, str], bool | None] = {}
        self._failed = 0

    def well_formed(self, text: str) -> bool:
        """Return whether a text is a regular expression."""
        try:
            parse(text)
        except NotARegexError:
            return False
        return True

    def equal(self, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Return for each pair whether both have the same language.

        Returns:
            None where the limit ended the comparison, or where it failed, for example because its
            process had too little memory. A warning says how many failed.
        """
        keys = [("".join(one.split()), "".join(other.split())) for one, other in pairs]
        self._compare([key for key in dict.fromkeys(keys) if key not in self._known])
        return [self._known[key] for key in keys]

    def _compare(self, pairs: Sequence[tuple[str, str]]) -> None:
        hard = []
        for one, other in pairs:
            if one != other and self.well_formed(one) and self.well_formed(other):
                hard.append((one, other))
            else:
                self._known[one, other] = one == other
        if not hard:
            return
        # A process can be stopped in the middle of a function. spawn: a fork of threads may hang.
        workers = min(os.cpu_count() or 1, 1 + len(hard) // _PAIRS_OF_A_WORKER)
        with self._pool(max_workers=workers, context=get_context("spawn")) as pool:
            found = pool.map(same_language, *zip(*hard, strict=True), timeout=self._limit).result()
            failures: Counter[str] = Counter()
            for pair in hard:
                self._known[pair] = None
                try:
                    self._known[pair] = next(found)
                except OutOfTime:
                    pass
                except Exception as error:  # an output may break the library, or its process
                    failures[type(error).__name__] += 1
        self._count(failures)

    def _count(self, failures: Counter[str]) -> None:
        """Count comparisons that failed, and warn about them."""
        if not failures:
            return
        self._failed += failures.total()
        reasons = ", ".join(f"{name} ({count})" for name, count in failures.most_common())
        pairs = "1 pair" if failures.total() == 1 else f"{failures.total()} pairs"
        logger.warning(
            "%s of regular expressions undecided, because the comparison failed: %s", pairs, reasons
        )

    @property
    def notes(self) -> list[str]:
        """What the metrics mean."""
        failed = f", or whose comparison failed ({self._failed} here)" if self._failed else ""
        return [
            "Equal languages: share of outputs with the reference's language, by greenery's automata. "
            f"Undecided: pairs that took longer than {self._limit:g} s{failed}. "
            r"They count as unequal. A word's boundary (\b) is read as one more character, which the "
            "point does not match."
        ]


def same_language(one: str, other: str) -> bool:
    """Return whether two regular expressions have the same language.

    Raises:
        NotARegexError: either is not a regular expression.

    Examples:
        >>> same_language("( a | b ) *", "( b | a ) *"), same_language("a +", "a *")
        (True, False)
    """
    return bool(automaton(parse(one)).equivalent(automaton(parse(other))))


def automaton(tree: Tree) -> Any:
    """Make greenery's finite automaton of a parsed expression."""
    from greenery.charclass import Charclass
    from greenery.fsm import from_charclass

    kind, *parts = tree
    if kind == "characters":
        (characters,) = parts
        if characters is None:
            return from_charclass(~Charclass(BOUNDARY))
        return from_charclass(Charclass(characters))
    if kind == "not":
        return automaton(parts[0]).everythingbut()
    if kind == "repeat":
        part, least, most = parts
        inner = automaton(part)
        rest = inner.star() if most is None else (inner | inner * 0) * (most - least)
        return (inner * least + rest).reduce()
    automata = [automaton(part) for part in parts[0]]
    join = {"union": "__or__", "both": "__and__", "then": "__add__"}[kind]
    return reduce(lambda one, other: getattr(one, join)(other), automata).reduce()
