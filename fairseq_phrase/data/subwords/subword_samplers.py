"""Random segmentation of words, for subword regularization.

A data directory has the subwords of its words. Words were segmented one at a time, so a word's subwords
spell it exactly. Imports neither fairseq nor torch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Protocol

import sentencepiece

from fairseq_phrase.data.subwords.segmented_lines import joined_subwords
from fairseq_phrase.data.subwords.segmenters import JOIN, SubwordNmtSegmenter
from fairseq_phrase.errors import UserError


class SubwordSampler(Protocol):
    """Segments words at random."""

    def resegment(self, subwords: Sequence[str], rng: random.Random) -> Sequence[str]:
        """Segment a word again.

        Returns:
            Its new subwords. A word keeps its subwords if they do not determine its text.
        """
        ...

    def word_sizes(self, subwords: Sequence[str]) -> list[int]:
        """Count the subwords of each word of a line that was segmented as a whole."""
        ...


class SentencePieceSampler:
    """Draws from a word's segmentations by a unigram model (Kudo, *Subword Regularization*, ACL 2018).

    A segmentation's probability is proportional to exp(α · the sum of its subwords' scores).
    SentencePiece draws from this distribution with an unlimited n-best list, but takes a seed only once
    per thread. This class uses forward filtering and backward sampling.

    Args:
        alpha: α. The smaller α, the more the segmentations vary.
        symbols: the subwords that may be drawn.

    Raises:
        UserError: the file is not a unigram model.
    """

    def __init__(self, model: Path, alpha: float, symbols: Collection[str]):
        self._made_from = (model, alpha, symbols)
        processor = sentencepiece.SentencePieceProcessor()
        try:
            processor.load_from_serialized_proto(model.read_bytes())
            # Models of other types do not support n-best segmentation.
            processor.nbest_encode_as_pieces("a b", 2)
        except (OSError, RuntimeError) as error:
            raise UserError(
                f"--subword-sampling needs a SentencePiece model of type unigram, and {model} is none: "
                f"{error}"
            ) from None
        entries = frozenset(symbols)
        self._scores: dict[str, float] = {}
        for number in range(processor.get_piece_size()):
            subword = processor.id_to_piece(number)
            special = (
                processor.is_control(number),
                processor.is_unknown(number),
                processor.is_unused(number),
                processor.is_byte(number),
                subword.split() != [subword],
            )
            if not any(special) and subword in entries:
                self._scores[subword] = alpha * processor.get_score(number)
        self._longest = max(map(len, self._scores), default=0)
        # Words repeat. A cache made here is freed with its object.
        self._last_subwords = lru_cache(maxsize=1 << 15)(self._uncached_last_subwords)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments only, because a cache cannot be pickled."""
        return type(self), self._made_from

    def resegment(self, subwords: Sequence[str], rng: random.Random) -> Sequence[str]:
        """Segment a word again. Unknown subwords and bytes do not determine its text."""
        if not all(subword in self._scores for subword in subwords):
            return subwords
        word = "".join(subwords)
        last_subwords = self._last_subwords(word)
        drawn, end = [], len(word)
        while end:
            starts, weights = last_subwords[end - 1]
            start = rng.choices(starts, cum_weights=weights)[0] if len(starts) > 1 else starts[0]
            drawn.append(word[start:end])
            end = start
        return drawn[::-1]

    def _uncached_last_subwords(self, word: str) -> list[tuple[list[int], list[float]]]:
        """Find the possible starts of the last subword of each prefix of the word.

        Returns:
            For each prefix length, from 1: the starts and their cumulative weights. A start's weight is
            the probability of all segmentations of the prefix with this last subword.
        """
        totals = [0.0]
        by_end: list[tuple[list[int], list[float]]] = []
        for end in range(1, len(word) + 1):
            starts: list[int] = []
            values: list[float] = []
            for start in range(max(0, end - self._longest), end):
                score = self._scores.get(word[start:end])
                if score is not None and totals[start] > -math.inf:
                    starts.append(start)
                    values.append(totals[start] + score)
            highest = max(values, default=-math.inf)
            weights = list(accumulate(math.exp(value - highest) for value in values))
            totals.append(highest + math.log(weights[-1]) if weights else -math.inf)
            by_end.append((starts, weights))
        return by_end

    def word_sizes(self, subwords: Sequence[str]) -> list[int]:
        """Count the subwords between spaces, where ``▁`` begins a word."""
        starts = [n for n, subword in enumerate(subwords) if n == 0 or subword.startswith("▁")]
        return [end - start for start, end in pairwise([*starts, len(subwords)])]


class SubwordNmtSampler:
    """BPE-dropout (Provilkov et al., ACL 2020), by subword-nmt.

    Args:
        alpha: the probability of skipping a merge.
        symbols: the subwords that may be drawn. Other subwords are split again.

    Raises:
        UserError: the file lacks codes.
    """

    def __init__(self, model: Path, alpha: float, symbols: Collection[str]):
        self._made_from = (model, alpha, symbols)
        self._alpha, self._symbols = alpha, frozenset(symbols)
        self._segmenter = SubwordNmtSegmenter(model, self._symbols)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments only."""
        return type(self), self._made_from

    def resegment(self, subwords: Sequence[str], rng: random.Random) -> Sequence[str]:
        """Segment a word again. Unknown subwords do not determine its text."""
        *inner, last = subwords
        is_word = all(subword.endswith(JOIN) for subword in inner) and not last.endswith(JOIN)
        if not is_word or not self._symbols.issuperset(subwords):
            return subwords
        word = "".join(subword.removesuffix(JOIN) for subword in inner) + last
        drawn = self._segmenter.subwords_with_dropout(word, self._alpha, rng)
        return drawn if self._symbols.issuperset(drawn) else subwords

    def word_sizes(self, subwords: Sequence[str]) -> list[int]:
        """Count the subwords up to each subword that is not joined to the next."""
        return list(map(len, joined_subwords(subwords)))


#: Subword samplers by ``--bpe``.
SAMPLERS: dict[str, Callable[[Path, float, Collection[str]], SubwordSampler]] = {
    "sentencepiece": SentencePieceSampler,
    "subword_nmt": SubwordNmtSampler,
}
