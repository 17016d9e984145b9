"""Words and the subwords they are cut into."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache


def ends_in_text(words: Sequence[str], text: str) -> list[int]:
    """Find where words end in the text that they spell, as :class:`TextReader` compares them.

    Raises:
        ValueError: the words do not spell the text.
    """
    reader = TextReader(text)
    ends = []
    for number, word in enumerate(words, start=1):
        if reader.take(word) is None:
            found = reader.rest[: len(word) + 10] or "the end of the line"
            raise ValueError(f"word {number} is '{word}', and the text has '{found}' there")
        ends.append(reader.end)
    if rest := reader.rest:
        raise ValueError(f"the text goes on after the last word: '{rest.strip()[:60]}'")
    return ends


class TextReader:
    """Finds words in the text that they spell, one after the other.

    White space, ``▁``, control characters and format characters are ignored, and so are differences in
    case and in compatible Unicode forms (full width, ligatures): lower-cased text and text that a
    subword model has normalized fit the trees of the original.

    Attributes:
        end: the offset after the last word.
        space_before: whether white space (or the line's start) precedes the last word.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self.end = 0
        self.space_before = True

    @property
    def rest(self) -> str:
        """The text from the next visible character on."""
        return self._text[self._skip(_folded) :]

    def take(self, *spellings: str) -> str | None:
        """Go past a word.

        Args:
            spellings: the word, and what the text may have instead.

        Returns:
            The text's form of the first spelling that is next in the text; None if none is.
        """
        first, visible = self._skip(str.strip), self._skip(_folded)
        for spelling in spellings:
            exact = self._text.startswith(spelling, first)
            start = first if exact else visible
            end = first + len(spelling) if exact else self._end_of(spelling, visible)
            if end is not None:
                self.space_before = start > self.end or start == 0
                self.end = end
                return self._text[start:end].strip() or spelling
        return None

    def _skip(self, content: Callable[[str], str]) -> int:
        """Return the offset of the next character with content."""
        start = self.end
        while start < len(self._text) and not content(self._text[start]):
            start += 1
        return start

    def _end_of(self, word: str, end: int) -> int | None:
        """Find the end of a word that begins at an offset; None if the text has another word there."""
        wanted, found = _folded(word), ""
        while len(found) < len(wanted) and end < len(self._text):
            found += _folded(self._text[end])
            end += 1
            if not wanted.startswith(found):
                return None
        return end if found == wanted else None


@lru_cache(maxsize=1 << 12)
def _folded(text: str) -> str:
    """Return a text without what comparisons ignore; text is folded as the sum of its characters."""
    # Decomposed, because composition depends on neighbouring characters.
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return "".join(
        character
        for character in decomposed
        if not character.isspace()
        and character not in "▁\ufffd"
        and unicodedata.category(character) not in ("Cc", "Cf")
    )
