"""No parser: words are separated by white space, and there are no trees."""

from __future__ import annotations

from collections.abc import Sequence

from fairseq_phrase.parsers.base import LineParser, cut_at_white_space
from fairseq_phrase.syntax.sentence import ParsedSentence


class WhitespaceParser(LineParser):
    """Words without trees, for models that need none (``--parser none``)."""

    version = "white space"
    fields: tuple[str, ...] = ("words",)
    is_instant = True
    any_language = True

    def parse(self, lines: Sequence[str]) -> list[ParsedSentence]:
        """Cut lines at white space."""
        return [cut_at_white_space(line) for line in lines]

    def parse_words(self, sentences: Sequence[Sequence[str]]) -> list[ParsedSentence]:
        """Return the words unchanged, with a space between any two."""
        return [ParsedSentence(list(words), [True] * len(words)) for words in sentences]
