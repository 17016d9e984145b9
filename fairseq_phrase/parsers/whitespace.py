"""No parser: words stand between white space, and there is no tree."""

from __future__ import annotations

from collections.abc import Sequence

from fairseq_phrase.parsers.base import LineParser
from fairseq_phrase.syntax.sentence import ParsedSentence


class WhitespaceParser(LineParser):
    """Words without trees, for models that need none (``--parser none``)."""

    version = "white space"
    fields: tuple[str, ...] = ("words",)
    is_instant = True

    def parse(self, lines: Sequence[str]) -> list[ParsedSentence]:
        """Cut lines at white space."""
        return [ParsedSentence(words, [True] * len(words)) for words in map(str.split, lines)]

    def tokenize(self, lines: Sequence[str]) -> list[ParsedSentence]:
        """Cut lines at white space."""
        return self.parse(lines)
