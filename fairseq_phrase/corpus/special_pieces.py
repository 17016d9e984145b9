"""Subwords that fairseq would misread."""

from __future__ import annotations

from fairseq_phrase.store.labels import SPECIAL


def is_mistakable(piece: str) -> bool:
    """Tell whether fairseq gives a piece a meaning of its own, or would cut it at white space."""
    return piece in SPECIAL or piece.split() != [piece]


def without_white_space(text: str) -> list[str]:
    """Return the characters of a text without white space."""
    return [character for character in text if not character.isspace()]
