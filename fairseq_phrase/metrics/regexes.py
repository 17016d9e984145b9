"""Regular expressions as outputs, and whether two match the same texts, within a time limit.

The expressions are from NL-RX (Locascio et al., 2016), with intersection and complement. The grammar is
dk.brics.automaton's, with which the corpus was made::

    union = intersection { "|" intersection }     repeat     = complement { "*" | "+" | "?" | "{n,m}" }
    intersection = concat { "&" concat }          complement = "~" complement | atom
    concat = repeat { repeat }                    atom       = "(" union ")" | "[…]" | "." | character
"""

from __future__ import annotations

import operator
import re
import signal
import string
from collections.abc import Callable, Sequence
from functools import partial, reduce
from multiprocessing import get_context
from typing import Any, ClassVar, TypeAlias

from fairseq_phrase.cores import num_cores
from fairseq_phrase.metrics.forms import Form
from fairseq_phrase.optional_packages import optional_packages

#: Seconds of CPU time for a pair. The automaton of an expression can be exponentially large.
LIMIT = 5.0
# Starting a process that compares pairs takes as long as some tens of comparisons.
_PAIRS_OF_A_WORKER = 50


class Regexes(Form):
    """Regular expressions of NL-RX.

    Args:
        limit: seconds of CPU time for a pair. Pairs that take longer count as unequal.

    Raises:
        UserError: greenery or pebble is not installed.
    """

    equality: ClassVar[str | None] = "equal languages"
    limited = True

    def __init__(self, limit: float = LIMIT):
        with optional_packages("--form regex needs greenery and pebble", "greenery pebble"):
            import greenery  # noqa: F401
            import pebble
        self._pool = pebble.ProcessPool
        self._limit = limit
        self._verdicts: dict[tuple[str, str], bool | None] = {}
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
            None where the limit ended the comparison, or where it failed, for example because its process
            lacked memory.
        """
        keys = [("".join(first.split()), "".join(second.split())) for first, second in pairs]
        self._compare([key for key in dict.fromkeys(keys) if key not in self._verdicts])
        return [self._verdicts[key] for key in keys]

    def _compare(self, pairs: Sequence[tuple[str, str]]) -> None:
        hard = []
        for first, second in pairs:
            if first != second and self.well_formed(first) and self.well_formed(second):
                hard.append((first, second))
            else:
                self._verdicts[first, second] = first == second
        if not hard:
            return
        # In processes, which may run out of memory; spawned, because a fork of threads may hang.
        workers = min(num_cores(), 1 + len(hard) // _PAIRS_OF_A_WORKER)
        with self._pool(max_workers=workers, context=get_context("spawn")) as pool:
            compare = partial(_in_time, same_language, self._limit)
            verdicts = pool.map(compare, *zip(*hard, strict=True)).result()
            for pair in hard:
                self._verdicts[pair] = None
                try:
                    self._verdicts[pair] = next(verdicts)
                except _OutOfTimeError:
                    pass
                except Exception:  # an output may break the library, or its process
                    self._failed += 1

    @property
    def notes(self) -> list[str]:
        """The notes that explain the metrics."""
        failed = f", or whose comparison failed ({self._failed} here)" if self._failed else ""
        return [
            "Equal languages: share of outputs with the reference's language, by greenery's automata. "
            f"Undecided, which counts as unequal: pairs that took more than {self._limit:g} s of CPU time"
            f"{failed}. Near this limit, another machine may decide otherwise. "
            r"A word's boundary (\b) is read as one more character, which the "
            "point does not match."
        ]


class _OutOfTimeError(Exception):
    """A comparison took too long."""


def _in_time(compare: Callable[[str, str], bool], limit: float, first: str, second: str) -> bool:
    """Compare two expressions within a limit of CPU time, which other processes do not use up."""
    import greenery  # noqa: F401 - loading it does not count

    def stop(*_: object) -> None:
        raise _OutOfTimeError

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        return compare(first, second)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def same_language(first: str, second: str) -> bool:
    """Return whether two regular expressions have the same language.

    Examples:
        >>> same_language("( a | b ) *", "( b | a ) *"), same_language("a +", "a *")
        (True, False)
    """
    return bool(automaton(parse(first)).equivalent(automaton(parse(second))))


def automaton(tree: Expression) -> Any:
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
        repetitions = inner.star() if most is None else (inner | inner * 0) * (most - least)
        return (inner * least + repetitions).reduce()
    automata = [automaton(part) for part in parts[0]]
    join = {"union": operator.or_, "both": operator.and_, "then": operator.add}[kind]
    return reduce(join, automata).reduce()


#: ("union" | "both" | "then", trees), ("repeat", tree, least, most or None), ("not", tree),
#: or ("characters", characters); all characters but the boundary if that is None.
Expression: TypeAlias = tuple[Any, ...]

#: Represents the boundary of a word. It is a character like others, but "." does not match it.
BOUNDARY = "\ue000"
CLASSES = {
    "<VOW>": "AEIOUaeiou",
    "<NUM>": string.digits,
    "<LET>": string.ascii_letters,
    "<CAP>": string.ascii_uppercase,
    "<LOW>": string.ascii_lowercase,
}
#: The words that an automaton has for the slots by which the corpus replaces strings. Some paraphrases
#: still have these words ("lake" is made up).
STRINGS = {"<M0>": "dog", "<M1>": "truck", "<M2>": "ring", "<M3>": "lake"}
_TOKEN = re.compile(r"<[A-Z]+\d?>|\\b|\{\d+,?\d*\}|\S")
_REPEATS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_SPECIAL = frozenset("()[]{}|&~*+?")


class NotARegexError(ValueError):
    """A text is not a regular expression."""


def _bounds(token: str) -> tuple[int, int | None]:
    """Read the bounds of a repetition, {n}, {n,} or {n,m}."""
    first, comma, last = token[1:-1].partition(",")
    try:
        least = int(first)
        most = int(last) if last else None if comma else least
    except ValueError:
        raise NotARegexError("a number of repetitions is too long") from None
    if most is not None and most < least:
        raise NotARegexError(f"{token} is at most {most} times, and at least {least}")
    return least, most


def parse(text: str) -> Expression:
    """Parse a regular expression; white space does not count.

    Examples:
        >>> parse("~ ( a ) *")
        ('repeat', ('not', ('characters', 'a')), 0, None)
    """
    return _Parser(_TOKEN.findall("".join(text.split()))).expression()


class _Parser:
    """Reads tokens from left to right, a function for each rule of the grammar."""

    def __init__(self, tokens: list[str]):
        self._tokens = [*tokens, ""]  # the empty token is the end
        self._next = 0

    @property
    def _token(self) -> str:
        return self._tokens[self._next]

    def _take(self) -> str:
        self._next += 1
        return self._tokens[self._next - 1]

    def expression(self) -> Expression:
        try:
            tree = self._union()
        except RecursionError:
            raise NotARegexError("too many brackets") from None
        if self._token:
            raise NotARegexError(f"unexpected {self._token}")
        return tree

    def _union(self) -> Expression:
        trees = [self._intersection()]
        while self._token == "|":
            self._take()
            trees.append(self._intersection())
        return trees[0] if len(trees) == 1 else ("union", trees)

    def _intersection(self) -> Expression:
        trees = [self._concatenation()]
        while self._token == "&":
            self._take()
            trees.append(self._concatenation())
        return trees[0] if len(trees) == 1 else ("both", trees)

    def _concatenation(self) -> Expression:
        trees = [self._repeat()]
        while self._token not in ("", "|", "&", ")"):
            trees.append(self._repeat())
        return trees[0] if len(trees) == 1 else ("then", trees)

    def _repeat(self) -> Expression:
        tree = self._complement()
        while self._token in _REPEATS or (self._token.startswith("{") and len(self._token) > 1):
            token = self._take()
            if token in _REPEATS:
                least, most = _REPEATS[token]
            else:
                least, most = _bounds(token)
            tree = ("repeat", tree, least, most)
        return tree

    def _complement(self) -> Expression:
        if self._token == "~":
            self._take()
            return ("not", self._complement())
        return self._atom()

    def _atom(self) -> Expression:
        token = self._take()
        if token == "(":
            tree = self._union()
            if self._take() != ")":
                raise NotARegexError("a bracket is not closed")
            return tree
        if token == "[":
            return ("characters", self._class())
        if token == ".":
            return ("characters", None)
        if token in STRINGS:
            return ("then", [("characters", letter) for letter in STRINGS[token]])
        if token == r"\b":
            return ("characters", BOUNDARY)
        if not token or token in _SPECIAL or len(token) > 1:
            raise NotARegexError(f"unexpected {token or 'end'}")
        return ("characters", token)

    def _class(self) -> str:
        characters = ""
        while (token := self._take()) != "]":
            if not token or (len(token) > 1 and token not in CLASSES):
                raise NotARegexError(f"unexpected {token or 'end'} in a class of characters")
            characters += CLASSES.get(token, token)
        if not characters:
            raise NotARegexError("an empty class of characters")
        return characters
