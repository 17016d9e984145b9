"""Translations of lines: texts and scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Hypothesis:
    """A translation of one line.

    Attributes:
        score: the mean log probability (base 2) of its subwords and its end, as ``fairseq-generate``
            prints it; of pieces of a long line, the mean over their subwords; None for an empty line.
        tokens: the number of its subwords, with the end of each sentence.
        alignment: words of the line and of the translation, from 0, that are aligned, in ascending order;
            empty unless it was asked for. Words are what spaces separate, or in tokenized data tokens.
        words: the numbers of words of the line and of the translation, with an alignment.
    """

    text: str
    score: float | None = None
    tokens: int = 0
    alignment: Sequence[tuple[int, int]] = ()
    words: tuple[int, int] = (0, 0)


def joined(pieces: list[list[Hypothesis]], nbest: int) -> list[Hypothesis]:
    """Join the hypotheses of a line's pieces: the best of each, then the second best, and so on.

    A search with constraints may find fewer than there are beams; the last one is then repeated.
    """
    if not pieces:
        return [Hypothesis("")] * nbest
    if len(pieces) == 1 and len(pieces[0]) >= nbest:
        return pieces[0][:nbest]
    hypotheses = []
    for rank in range(nbest):
        parts = [found[min(rank, len(found) - 1)] for found in pieces]
        tokens = sum(part.tokens for part in parts)
        score = sum((part.score or 0.0) * part.tokens for part in parts) / tokens
        alignment, words = [], (0, 0)
        for part in parts:
            alignment += [
                (words[0] + source, words[1] + target) for source, target in part.alignment
            ]
            words = words[0] + part.words[0], words[1] + part.words[1]
        text = " ".join(part.text for part in parts)
        hypotheses.append(Hypothesis(text, score, tokens, alignment, words))
    return hypotheses


def base_2(score: Any) -> float:
    """Convert a natural logarithm to base 2, as fairseq does before it prints."""
    return float(score) / math.log(2)
