"""Byte-pair codes as subword-nmt learns and applies them."""

from __future__ import annotations

import random
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Any

from fairseq_phrase.corpus.special_pieces import is_mistakable, without_white_space
from fairseq_phrase.errors import UserError
from fairseq_phrase.text import require_file

#: The end of a subword that continues in the next one.
JOIN = "@@"


class SubwordNmtSegmenter:
    """subword-nmt's codes. The text or the parser defines the words; ``@@`` joins subwords.

    Args:
        model: the file of codes.
        vocabulary: the allowed subwords; other ones are cut again. All are allowed by default.

    Raises:
        UserError: subword-nmt is not installed, or the file is missing or holds no codes.
    """

    def __init__(self, model: Path, vocabulary: Collection[str] | None = None):
        try:
            from subword_nmt.apply_bpe import BPE
        except ImportError:
            raise UserError("subword-nmt is not installed: pip install subword-nmt") from None
        self.model = model
        require_file(model, "file of BPE codes")
        try:
            with open(model, encoding="utf-8") as codes:
                self._bpe: Any = BPE(codes, vocab=vocabulary)
        except (ValueError, IndexError, SystemExit, UnicodeDecodeError) as error:
            raise UserError(f"{model} holds no BPE codes of subword-nmt: {error}") from None
        self._bpe.cache = _NoCache()  # its own grows with the text
        self.word_pieces = lru_cache(maxsize=1 << 18)(self._word_pieces)

    def _word_pieces(self, word: str) -> tuple[str, ...]:
        """Cut one word.

        Args:
            word: the word. A ``▁`` in front says that white space precedes it; BPE drops it.

        Returns:
            Its pieces, ``@@`` at the end of all but the last.
        """
        return tuple(self._cut(word.removeprefix("▁") or word))

    def line_pieces(self, line: str) -> list[str]:
        """Cut a line whose words are separated by white space."""
        return [piece for word in line.split() for piece in self.word_pieces("▁" + word)]

    def pieces_with_dropout(self, word: str, dropout: float, dice: random.Random) -> list[str]:
        """Cut one word and skip merges at random.

        Args:
            word: the word, without ``▁``.
            dropout: the probability of skipping a merge.
            dice: the random number generator.

        Returns:
            Its pieces, as BPE makes them: some may look like fairseq's special tokens.
        """
        # subword-nmt draws from Python's global generator, which other code uses, too.
        state = random.getstate()
        random.seed(dice.getrandbits(64))
        try:
            return self._bpe.segment_tokens([word], dropout=dropout)
        finally:
            random.setstate(state)

    def _cut(self, word: str) -> list[str]:
        pieces = self._bpe.segment_tokens([word])
        if not any(map(is_mistakable, pieces)):
            return pieces
        # A piece that is one of fairseq's special tokens, or contains what Python regards as white space,
        # is cut into characters.
        text = without_white_space(word)
        return [character + JOIN for character in text[:-1]] + text[-1:]


class _NoCache(dict):
    """A dictionary that stores nothing."""

    def __setitem__(self, word: object, pieces: object) -> None:
        pass
