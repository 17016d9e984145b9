"""Escapes of the Moses tokenizer."""

from __future__ import annotations

import re

from fairseq_phrase.syntax.spellings import MOSES_ESCAPES

_ENTITY = re.compile("|".join(map(re.escape, MOSES_ESCAPES)))
# Punctuation between two characters without a space: "@-@" in "well-known".
_SPLIT = re.compile(r"@([-,./:])@")


def unescape_moses(word: str) -> str:
    """Return the text of an escaped word: ``&apos;s`` is ``'s``, ``@-@`` is ``-``.

    A word that was escaped twice is unescaped once.

    Args:
        word: one word of Moses-tokenized text; words without escapes are returned unchanged.
    """
    if (split := _SPLIT.fullmatch(word)) is not None:
        return split[1]
    return _ENTITY.sub(lambda entity: MOSES_ESCAPES[entity[0]], word) if "&" in word else word


def unescaped_offsets(word: str) -> list[int]:
    """Find each character of an escaped word in the result of :func:`unescape_moses`.

    Returns:
        For each of its characters, and for its end, the offset in the result. All characters of an
        escape have the offset of the character that it represents.
    """
    if _SPLIT.fullmatch(word) is not None:
        return [0] * len(word) + [1]
    offsets = list(range(len(word) + 1))
    for entity in _ENTITY.finditer(word):
        start, end = entity.span()
        offsets[start:end] = [offsets[start]] * (end - start)
        offsets[end:] = range(offsets[start] + 1, offsets[start] + 2 + len(word) - end)
    return offsets
