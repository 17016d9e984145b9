"""What a parser is to this project."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from fairseq_phrase.syntax.sentence import ParsedSentence


@runtime_checkable
class LineParser(Protocol):
    """A parser that turns raw lines into parses, for a corpus and for new text alike.

    Attributes:
        version: its name and version, for the manifest.
        fields: which of :data:`fairseq_phrase.syntax.store.FIELDS` its parses hold.
    """

    version: str
    fields: tuple[str, ...]

    def parse(self, lines: Sequence[str]) -> list[ParsedSentence]:
        """Parse lines; a line is one sentence, whatever the parser makes of it."""
        ...

    def tokenize(self, lines: Sequence[str]) -> list[ParsedSentence]:
        """Cut lines into the very words that :meth:`parse` makes of them, without a tree."""
        ...


class FileParser(Protocol):
    """Parses that stand in a file beside the text, ``PREF.LANG.SUFFIX``.

    Attributes:
        suffix: the file's suffix.
        version: the format's name, for the manifest.
        fields: which of :data:`fairseq_phrase.syntax.store.FIELDS` the parses hold.
    """

    suffix: str
    version: str
    fields: tuple[str, ...]

    def read(self, path: Path, lines: Iterator[str]) -> Iterator[ParsedSentence]:
        """Read the parses of a file, one for each line of its text.

        Args:
            path: the file with the parses.
            lines: the text's lines.

        Raises:
            UserError: the parses are malformed or do not belong to the text.
        """
        ...
