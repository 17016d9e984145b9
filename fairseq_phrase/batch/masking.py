"""BERT's masks over subwords, whole words, or whole phrases of a sentence's parse.

fairseq's ``MaskTokensDataset`` also masks special tokens, and finds words by the vocabulary. Here words
and phrases are those of the parse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_phrase.batch.joined_parses import parsed_tokens
from fairseq_phrase.errors import UserError

__all__ = ["MASK_UNITS", "PHRASES", "Masking", "Masks"]

MASK_UNITS = ("subword", "word", "phrase")
#: The source of phrases, ``--mask-phrases``, and the parse field with them.
PHRASES = {"constituents": "spans", "subtrees": "heads"}
Parse = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Masking:
    """What is masked, and how.

    Attributes:
        unit: one of :data:`MASK_UNITS`.
        rate: the expected part of a sentence's subwords that is predicted.
        leave_unmasked: the part of these that keep their subword.
        random: the part of these that become a random subword.
        phrases: one of :data:`PHRASES`.
        max_words: largest number of words in a phrase.

    Raises:
        UserError: a number is out of range.
    """

    unit: str = "subword"
    rate: float = 0.15
    leave_unmasked: float = 0.1
    random: float = 0.1
    phrases: str = "constituents"
    max_words: int = 4

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0 < self.rate < 1:
            raise UserError(
                f"--mask-prob {self.rate}: expected a number between 0 and 1, without both: with 0 "
                "nothing is predicted, and with 1 nothing is left to predict it from"
            )
        if min(self.leave_unmasked, self.random) < 0 or self.leave_unmasked + self.random > 1:
            raise UserError(
                f"--leave-unmasked-prob {self.leave_unmasked} and --random-token-prob {self.random}: "
                "expected parts of 1, together at most 1"
            )
        if self.max_words < 1:
            raise UserError(f"--mask-phrase-words {self.max_words}: expected 1 or more")

    @property
    def fields(self) -> set[str]:
        """The parse fields that masks need."""
        if self.unit == "subword":
            return set()
        return {"words"} | ({PHRASES[self.phrases]} if self.unit == "phrase" else set())


class Masks:
    """Draws masks.

    Args:
        masking: what is masked.
        mask: the index of ``<mask>``.
        dictionary: the text's dictionary. Its special tokens are neither masked nor drawn.
    """

    def __init__(self, masking: Masking, *, mask: int, dictionary: Any):
        self.masking, self._mask, self._dictionary = masking, mask, dictionary
        self._special = np.array([dictionary.pad(), dictionary.eos(), dictionary.bos()])
        self._replacements = np.array(
            [
                index
                for index, symbol in enumerate(dictionary.symbols)
                if index >= dictionary.nspecial
                and index != mask
                and not symbol.startswith("madeupword")
            ]
        )

    def __call__(
        self, tokens: np.ndarray, parse: Parse, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mask a sentence.

        Args:
            tokens: its token indices. Shape: ``(tokens,)``
            parse: its parse, with :attr:`Masking.fields`.
            rng: what is drawn from.

        Returns:
            The source, and the target: the masked tokens, and padding elsewhere.
            Shape of each: ``(tokens,)``
        """
        is_subword = ~np.isin(tokens, self._special)
        words = None
        if self.masking.unit != "subword":
            # Without the words of separators.
            words = parse["words"][is_subword[parsed_tokens(tokens, self._dictionary)]]
        indices = np.flatnonzero(is_subword)
        chosen = indices[self._choose(len(indices), words, parse, rng)]
        target = np.full_like(tokens, self._dictionary.pad())
        target[chosen] = tokens[chosen]
        source = tokens.copy()
        # *Decision*: as in BERT, each subword of a word or phrase is drawn on its own.
        drawn = rng.random(len(chosen))
        kept, other = self.masking.leave_unmasked, self.masking.random
        source[chosen[drawn >= kept]] = self._mask
        replaced = chosen[(drawn >= kept) & (drawn < kept + other)]
        source[replaced] = rng.choice(self._replacements, len(replaced))
        return source, target

    def _choose(
        self, subwords: int, words: np.ndarray | None, parse: Parse, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose the subwords to predict.

        The expected number of them is the rate's part of all. A unit that would exceed the number is
        taken with the probability of the part of it that is still wanted.

        Args:
            subwords: number of subwords.
            words: the word of each; None if subwords are drawn. Shape: ``(subwords,)``
            parse: the parse.
            rng: what is drawn from.

        Returns:
            The chosen subwords, in order, from 0.
        """
        # The fraction is rounded up with its own probability.
        wanted = int(self.masking.rate * subwords + rng.random())
        if words is None:
            return np.sort(rng.choice(subwords, wanted, replace=False))
        units = _Units(self.masking, parse)
        chosen = np.zeros(subwords, dtype=bool)
        for word in rng.permutation(np.unique(words)):
            if wanted <= 0:
                break
            new = units.around(int(word), rng)[words] & ~chosen
            count = int(new.sum())
            if count > wanted and rng.random() * count >= wanted:
                break
            chosen |= new
            wanted -= count
        return np.flatnonzero(chosen)


class _Units:
    """The words or phrases of a sentence."""

    def __init__(self, masking: Masking, parse: Parse):
        self._masking = masking
        self._count = int(parse["words"][-1]) + 1 if len(parse["words"]) else 0
        self._phrases = np.zeros((0, self._count), dtype=bool)
        if masking.unit == "phrase" and self._count:
            if masking.phrases == "subtrees":
                members = _subtrees(parse["heads"])
            else:
                first, end = parse["spans"][:, 0, None], parse["spans"][:, 1, None]
                order = np.arange(self._count)
                members = np.unique((first <= order) & (order < end), axis=0)
            self._phrases = members[members.sum(1) <= masking.max_words]

    def around(self, word: int, rng: np.random.Generator) -> np.ndarray:
        """Draw one of the units that contain a word; a word in no phrase is one itself.

        Returns:
            Whether each word belongs to it. Shape: ``(words,)``, bool
        """
        around = self._phrases[self._phrases[:, word]]
        if len(around):
            return np.asarray(around[rng.integers(len(around))])
        return np.asarray(np.arange(self._count) == word)


def _subtrees(heads: np.ndarray) -> np.ndarray:
    """Return the words of the subtree below each word. Shape: ``(words, words)``, bool."""
    words = np.arange(len(heads))
    members = np.eye(len(heads), dtype=bool)
    above = heads
    while not members[above, words].all():
        members[above, words] = True
        above = heads[above]
    return members
