"""Words between white space, without trees; with or without labels in the text."""

from __future__ import annotations

from collections.abc import Sequence

from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers.interfaces import LineParser, split_at_white_space
from fairseq_phrase.syntax.fields import FIELDS
from fairseq_phrase.syntax.sentence import ParsedSentence, Unparsed


class WhitespaceParser(LineParser):
    """Words without trees, for models that need no trees (``--parser none``)."""

    version = "white space"
    fields: tuple[str, ...] = ("words",)
    is_instant = True
    any_language = True

    def parse(self, lines: Sequence[str]) -> list[ParsedSentence]:
        """Split lines at white space."""
        return [split_at_white_space(line) for line in lines]

    def parse_words(self, sentences: Sequence[Sequence[str]]) -> list[ParsedSentence]:
        """Return the words unchanged, with a space between any two."""
        return [ParsedSentence(list(words), [True] * len(words)) for words in sentences]


#: The separator between a word and its labels, as in OpenNMT.
SEPARATOR = "\N{HALFWIDTH FORMS LIGHT VERTICAL}"


class FactoredText(LineParser):
    """Words followed by their labels, ``Haus￨NOUN`` (``--parser factored:FIELD,FIELD``).

    Args:
        names: the label fields of each word, in order, separated by commas.

    Raises:
        UserError: a name is not a field of word labels.
    """

    is_instant = True
    words_spell_line = False  # the line also has labels

    def __init__(self, names: str = "tags") -> None:
        self._names = names.split(",")
        label_fields = [
            name for name, field in FIELDS.items() if field.per == "word" and field.label_file
        ]
        for name in self._names:
            if name not in label_fields:
                raise UserError(
                    f"--parser factored:{names}: '{name}' is not a field of labels of words: expected "
                    f"some of {', '.join(label_fields)}"
                )
        self.version = f"factored text ({names})"
        self.fields = ("words", *self._names)

    def text_of(self, line: str) -> str:
        """Return the words of a line without their labels."""
        return " ".join(word.partition(SEPARATOR)[0] for word in line.split())

    def parse(self, lines: Sequence[str]) -> list[ParsedSentence | Unparsed]:
        """Split lines into words and their labels."""
        return list(map(self._parsed, lines))

    def _parsed(self, line: str) -> ParsedSentence | Unparsed:
        rows = [word.split(SEPARATOR) for word in line.split()]
        for number, row in enumerate(rows, start=1):
            if len(row) != len(self._names) + 1 or not all(row):
                return Unparsed(
                    f"word {number} is '{SEPARATOR.join(row)[:60]}': expected a word and, with "
                    f"{SEPARATOR} before each, its {' and '.join(self._names)}",
                    split_at_white_space(self.text_of(line)),
                )
        columns = zip(*rows, strict=True) if rows else [[] for _ in self.fields]
        labels = {name: list(values) for name, values in zip(self.fields, columns, strict=True)}
        words = labels.pop("words")
        deprels, tags = labels.pop("deprels", []), labels.pop("tags", [])
        return ParsedSentence(
            words, [True] * len(words), tree=None, deprels=deprels, tags=tags, features=labels
        )
