"""The interface of segmenters; and tokens that are never segmented or parsed, such as language tags."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

import numpy as np

#: The entry between a protected token and the text directly before or after it, like OpenNMT's joiner.
#: Data of earlier versions lack it: their tokens are protected only between white space.
JOINER = "<joiner>"


class Segmenter(Protocol):
    """Segments words and lines into subwords."""

    def segment_word(self, word: str) -> tuple[str, ...]:
        """Segment one word, with ``▁`` in front if white space precedes it in its line."""
        ...

    def segment_line(self, line: str) -> list[str]:
        """Segment a line."""
        ...

    def join(self, subwords: str) -> str:
        """Join subwords, with a space between them, to text."""
        ...


def vocabulary_of(segmenter: Segmenter) -> Sequence[str]:
    """Return the dictionary entries that a segmenter needs and a text may lack; none if it names none."""
    vocabulary: Sequence[str] = getattr(segmenter, "vocabulary", ())
    return vocabulary


class Token(NamedTuple):
    """A protected token of a line, and its position in the line's text.

    Attributes:
        words: the number of the text's words at white space before it.
        characters: the number of characters of the next word before it, 0 between words.
        offset: the number of the text's characters before it.
    """

    words: int
    characters: int
    token: str
    offset: int


class ProtectedTokens:
    """Segments lines around protected tokens. Each token is one dictionary entry.

    Args:
        tokens: the tokens. With :data:`JOINER`, they are protected everywhere, and the white space on
            both sides is kept. Without it, only tokens between white space are protected.
        whole_lines: whether the subword model itself segments and joins whole lines, if it knows the
            tokens (SentencePiece's user-defined symbols).
    """

    def __init__(self, segmenter: Segmenter, tokens: Sequence[str], *, whole_lines: bool = False):
        self.segmenter, self.tokens = segmenter, frozenset(tokens)
        self.vocabulary = vocabulary_of(segmenter)
        self._marks_joins = JOINER in self.tokens
        self._are_known = whole_lines and not self._marks_joins
        self._are_known &= all(token in segmenter.segment_line(f"a{token}a") for token in tokens)
        names = sorted(self.tokens - {JOINER}, key=len, reverse=True)
        patterns = map(_anywhere if self._marks_joins else _between_white_space, names)
        self._pattern = re.compile(f"({'|'.join(patterns)})")

    def separate(self, line: str) -> tuple[str, list[Token]]:
        """Remove the tokens from a line.

        Returns:
            The text, with a space for white space on either side of a token; and the tokens,
            including joiners.
        """
        text, offsets = "", []
        for part, is_token, follows_space in self._parts(line):
            if is_token:
                offsets.append((len(text), part))
            else:
                text += (" " if follows_space and text else "") + part
        if not offsets:
            return line, []
        return text, [Token(*gap_at(text, offset), token, offset) for offset, token in offsets]

    def _parts(self, line: str) -> Iterator[tuple[str, bool, bool]]:
        """Yield the tokens and joiners of a line, and the texts between them.

        Yields:
            A token, a joiner, or a text without white space at its ends; whether it is a token or
            joiner; and, for a text, whether white space is between it and the text before.
        """
        space = gap = True  # white space directly before a part; and since the last text
        for index, part in enumerate(self._pattern.split(line)):
            bare, is_token = part.strip(), index % 2 == 1
            space |= part[:1].isspace()
            gap |= space
            if not bare:
                continue
            if not space and self._marks_joins:
                yield JOINER, True, False
            yield bare, is_token, gap
            space = part[-1].isspace()
            gap = gap if is_token else space

    def around(self, line: str, form: Callable[[str], str]) -> str:
        """Apply a function to the texts between the tokens; tokens and the space around them stay."""
        parts = self._pattern.split(line)
        for index in range(0, len(parts), 2):
            bare = parts[index].strip()
            parts[index] = parts[index].replace(bare, form(bare)) if bare else parts[index]
        return "".join(parts)

    def segment_word(self, word: str) -> tuple[str, ...]:
        """Segment one word."""
        return tuple(self._apart(self.segmenter.segment_word(word)))

    def segment_line(self, line: str) -> list[str]:
        """Segment a line."""
        if self._are_known:
            return self.segmenter.segment_line(line)
        subwords: list[str] = []
        has_text = False
        for part, is_token, follows_space in self._parts(line):
            if is_token:
                subwords.append(part)
                continue
            if has_text and not follows_space:
                word, _, part = part.partition(" ")
                subwords += self.segment_word(word)
            # In GPT-2's BPE the space before a word is part of its subword, except for the first word.
            segmented = self.segmenter.segment_line(f" {part}" if has_text else part)
            subwords += self._apart(segmented)
            has_text = True
        return subwords

    def _apart(self, subwords: Sequence[str]) -> Sequence[str]:
        """Split subwords of text that look like protected tokens into characters."""
        if self.tokens.isdisjoint(subwords):
            return subwords
        return [
            part
            for subword in subwords
            for part in (self._characters(subword) if subword in self.tokens else [subword])
        ]

    def _characters(self, subword: str) -> list[str]:
        """Return a subword's characters, with the marks with which the subword model joins them."""
        forms = (
            list(subword),
            [*(f"{character}@@" for character in subword[:-1]), subword[-1]],  # subword-nmt
            [subword[0], *(f"##{character}" for character in subword[1:])],  # WordPiece
        )
        joined = (form for form in forms if self.segmenter.join(" ".join(form)) == subword)
        return next(joined, forms[0])

    def join(self, subwords: str) -> str:
        """Join subwords to text."""
        if self._are_known:
            return self.segmenter.join(subwords)
        text, space = "", ""
        for is_token, group in groupby(subwords.split(), self.tokens.__contains__):
            some = list(group)
            for part in some if is_token else filter(None, [self.segmenter.join(" ".join(some))]):
                if is_token and part == JOINER:
                    space = ""
                    continue
                text += space + part
                space = " "
        return text


def _between_white_space(token: str) -> str:
    return rf"(?<!\S){re.escape(token)}(?!\S)"


def _anywhere(token: str) -> str:
    """Return the pattern of a token: ``BT`` must be a whole word, but ``<BT>`` may be within one."""
    before = r"(?<!\w)" if re.match(r"\w", token) else ""
    after = r"(?!\w)" if re.match(r"\w", token[-1]) else ""
    return f"{before}{re.escape(token)}{after}"


def gap_at(text: str, offset: int) -> tuple[int, int]:
    """Return the number of words at white space before an offset, and of characters after the last."""
    before = text[:offset]
    words = before.split()
    if not words or before[-1].isspace() or not text[offset : offset + 1].strip():
        return len(words), 0
    return len(words) - 1, len(words[-1])


def protected_by(segmenter: Segmenter) -> frozenset[str]:
    """Return the tokens that a segmenter protects."""
    return segmenter.tokens if isinstance(segmenter, ProtectedTokens) else frozenset()


def separate(segmenter: Segmenter, line: str) -> tuple[str, list[Token]]:
    """Remove the protected tokens from a line (:meth:`ProtectedTokens.separate`), if any."""
    return segmenter.separate(line) if isinstance(segmenter, ProtectedTokens) else (line, [])


def words_by_marks(
    tokens: Sequence[str], special: Iterable[str], protected: Collection[str] = ()
) -> np.ndarray:
    """Number the words of a sentence without a parse, by the marks of its subwords.

    Args:
        special: tokens that do not belong to a word, such as the end of the sentence.
        protected: tokens without marks. White space is around them, unless a joiner is.

    Returns:
        The word of each token, from 0; -1 for special tokens. Shape: ``(tokens,)``
    """
    marks_spaces = any("▁" in token for token in tokens)
    words, word, previous = [], -1, None
    for token in tokens:
        if token in special:
            words.append(-1)
            previous = None
            continue
        # A space alone belongs to the next word.
        if previous == "▁" or JOINER in {token, previous} & {*protected}:
            goes_on = True
        elif token in protected or previous in protected:
            goes_on = False
        else:
            goes_on = not token.startswith("▁") if marks_spaces else str(previous).endswith("@@")
        word += previous is None or not goes_on
        words.append(word)
        previous = token
    return np.array(words, dtype=np.int64)
