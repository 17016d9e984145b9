"""The regular expressions of NL-RX (Locascio et al., 2016), with intersection and complement, as trees.

The grammar is that of dk.brics.automaton, which the corpus was made with::

    union = intersection { "|" intersection }     repeat     = complement { "*" | "+" | "?" | "{n,m}" }
    intersection = concat { "&" concat }          complement = "~" complement | atom
    concat = repeat { repeat }                    atom       = "(" union ")" | "[…]" | "." | character
"""

from __future__ import annotations

import re
import string
from typing import Any, TypeAlias

#: ("union" | "both" | "then", trees), ("repeat", tree, least, most or None), ("not", tree),
#: or ("characters", characters); all characters but the boundary if that is None.
Tree: TypeAlias = tuple[Any, ...]

#: Stands for the boundary of a word. It is a character like others, but "." does not match it.
BOUNDARY = "\ue000"
CLASSES = {
    "<VOW>": "AEIOUaeiou",
    "<NUM>": string.digits,
    "<LET>": string.ascii_letters,
    "<CAP>": string.ascii_uppercase,
    "<LOW>": string.ascii_lowercase,
}
#: The corpus replaces the strings in its sentences by places. An automaton needs words for them. These
#: occur in some paraphrases, whose strings were not replaced ("lake" does not).
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


def parse(text: str) -> Tree:
    """Parse a regular expression; white space does not count.

    Raises:
        NotARegexError: the text is not one.

    Examples:
        >>> parse("~ ( a ) *")
        ('repeat', ('not', ('characters', 'a')), 0, None)
    """
    return _Parser(_TOKEN.findall("".join(text.split()))).whole()


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

    def whole(self) -> Tree:
        try:
            tree = self._union()
        except RecursionError:
            raise NotARegexError("too many brackets") from None
        if self._token:
            raise NotARegexError(f"unexpected {self._token}")
        return tree

    def _union(self) -> Tree:
        trees = [self._intersection()]
        while self._token == "|":
            self._take()
            trees.append(self._intersection())
        return trees[0] if len(trees) == 1 else ("union", trees)

    def _intersection(self) -> Tree:
        trees = [self._concatenation()]
        while self._token == "&":
            self._take()
            trees.append(self._concatenation())
        return trees[0] if len(trees) == 1 else ("both", trees)

    def _concatenation(self) -> Tree:
        trees = [self._repeat()]
        while self._token not in ("", "|", "&", ")"):
            trees.append(self._repeat())
        return trees[0] if len(trees) == 1 else ("then", trees)

    def _repeat(self) -> Tree:
        tree = self._complement()
        while self._token in _REPEATS or (self._token.startswith("{") and len(self._token) > 1):
            token = self._take()
            if token in _REPEATS:
                least, most = _REPEATS[token]
            else:
                least, most = _bounds(token)
            tree = ("repeat", tree, least, most)
        return tree

    def _complement(self) -> Tree:
        if self._token == "~":
            self._take()
            return ("not", self._complement())
        return self._atom()

    def _atom(self) -> Tree:
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
