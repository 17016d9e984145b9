"""The objectives of pre-training, which define the source and the target of a sample.

BERT's masks are over subwords, whole words, or whole phrases of the parse. fairseq's
``MaskTokensDataset`` also masks special tokens, and finds words by the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fairseq_phrase.data.batches.source_batches import ParseArrays
from fairseq_phrase.data.batches.text_blocks import BlockSample, parsed_tokens
from fairseq_phrase.errors import UserError

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary

MASK_UNITS = ("subword", "word", "phrase")
#: Of the predicted subwords, the fractions that stay, and that become a random subword (BERT's).
UNMASKED, RANDOM = 0.1, 0.1
#: The largest number of words in a masked phrase.
PHRASE_WORDS = 4
#: K; of n tokens in a random order, the last n/K are predicted (XLNet's).
PERMUTED_PARTS = 6

#: The inputs of a model for a sample in addition to its tokens, by argument name: one number for each
#: token. ``memory_tokens`` has one for each token of the memory.
Inputs = dict[str, np.ndarray]
#: A function from a sample, with ``</s>`` at the end, and a random number generator to the source, the
#: target (padding where nothing is predicted), and other inputs. Shape of both: ``(tokens,)``, int64
MakeSource = Callable[[BlockSample, np.random.Generator], tuple[np.ndarray, np.ndarray, Inputs]]


@dataclass(frozen=True)
class Masking:
    """The options of masking.

    Attributes:
        rate: the expected fraction of a sentence's subwords that are predicted.

    Raises:
        UserError: the rate is out of range.
    """

    unit: str = "subword"
    rate: float = 0.15

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise UserError(
                f"--mask-prob {self.rate}: expected a number between 0 and 1, without both: with 0 "
                "nothing is predicted, and with 1 nothing is left to predict it from"
            )

    @property
    def fields(self) -> set[str]:
        """The parse fields that masks need."""
        return {"subword": set[str](), "word": {"words"}, "phrase": {"words", "spans"}}[self.unit]


class Masks:
    """Predict randomly drawn masked tokens from all other tokens.

    Args:
        dictionary: the text's dictionary. Its special tokens are neither masked nor drawn.
    """

    def __init__(self, masking: Masking, *, mask: int, dictionary: Dictionary):
        self.masking, self._mask, self._dictionary = masking, mask, dictionary
        self._special = np.array([dictionary.pad(), dictionary.eos(), dictionary.bos()])
        entries = [*enumerate(dictionary.symbols)][dictionary.nspecial :]
        words = [i for i, symbol in entries if i != mask and not symbol.startswith("madeupword")]
        self._replacements = np.array(words)

    def __call__(
        self, sample: BlockSample, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, Inputs]:
        """Mask a sample, whose parse has :attr:`Masking.fields`; see :data:`MakeSource`."""
        tokens, parse = sample.tokens, sample.parse
        is_subword = ~np.isin(tokens, self._special)
        words = None
        if self.masking.unit != "subword":
            # Words of separators are left out.
            words = parse["words"][is_subword[parsed_tokens(tokens, self._dictionary)]]
        indices = np.flatnonzero(is_subword)
        positions = indices[self._choose(len(indices), words, parse, rng)]
        target = np.full_like(tokens, self._dictionary.pad())
        target[positions] = tokens[positions]
        source = tokens.copy()
        # *Decision*: as in BERT, each subword of a word or phrase is drawn separately.
        drawn = rng.random(len(positions))
        source[positions[drawn >= UNMASKED]] = self._mask
        replaced = positions[(drawn >= UNMASKED) & (drawn < UNMASKED + RANDOM)]
        source[replaced] = rng.choice(self._replacements, len(replaced))
        return source, target, Inputs()

    def _choose(
        self, subwords: int, words: np.ndarray | None, parse: ParseArrays, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose the subwords to predict, from 0 and in order.

        The expected number is the rate times the number of subwords. A unit that would exceed the number
        is taken with the probability of its part below the limit.

        Args:
            words: the word of each subword; None if subwords are drawn. Shape: ``(subwords,)``
        """
        # The fraction is rounded up with its own probability.
        remaining = int(self.masking.rate * subwords + rng.random())
        if words is None:
            return np.sort(rng.choice(subwords, remaining, replace=False))
        phrases = _phrases(self.masking, parse)
        is_predicted = np.zeros(subwords, dtype=bool)
        for word in rng.permutation(np.unique(words)):
            if remaining <= 0:
                break
            around = phrases[phrases[:, word]]
            if len(around):
                unit = around[rng.integers(len(around))]
            else:  # a word outside all phrases is a unit itself
                unit = np.arange(phrases.shape[1]) == word
            new = unit[words] & ~is_predicted
            count = int(new.sum())
            if count > remaining and rng.random() * count >= remaining:
                break
            is_predicted |= new
            remaining -= count
        return np.flatnonzero(is_predicted)


def _phrases(masking: Masking, parse: ParseArrays) -> np.ndarray:
    """Return which words each phrase contains, if phrases are masked. Shape: (phrases, words), bool."""
    count = int(parse["words"][-1]) + 1 if len(parse["words"]) else 0
    if masking.unit != "phrase" or not count:
        return np.zeros((0, count), dtype=bool)
    first, end = parse["spans"][:, 0, None], parse["spans"][:, 1, None]
    order = np.arange(count)
    members = np.unique((first <= order) & (order < end), axis=0)
    return np.asarray(members[members.sum(1) <= PHRASE_WORDS])


class Causal:
    """Predict each token from the tokens before it, or backward from the tokens after it.

    Forward, the source is ``</s> u1 … un`` and the target ``u1 … un </s>``, as in fairseq. Backward, the
    source is ``u1 … un </s>`` and the target ``</s> u1 … un``.
    """

    def __init__(self, dictionary: Dictionary, backward: bool):
        self._end, self._backward = dictionary.eos(), backward

    def __call__(
        self, sample: BlockSample, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, Inputs]:
        """Shift a sample, see :data:`MakeSource`."""
        shifted = np.concatenate([[self._end], sample.tokens[:-1]])
        if self._backward:
            return sample.tokens, shifted, Inputs()
        return shifted, sample.tokens, Inputs()


class Permuted:
    """Predict the last tokens in a random order.

    Separators are first in the order, and ``<s>`` of a pair is last; neither is predicted. *Decision*:
    the number of predicted tokens, n/K, is rounded at random, but is at least one.

    Args:
        parts: K; the last n/K of n tokens are predicted.
    """

    def __init__(self, dictionary: Dictionary, parts: int = PERMUTED_PARTS):
        self._dictionary, self._parts = dictionary, parts

    def __call__(
        self, sample: BlockSample, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, Inputs]:
        """Draw an order, see :data:`MakeSource`; ``ranks`` has each token's index in it."""
        tokens, pad = sample.tokens, self._dictionary.pad()
        is_end, is_begin = tokens == self._dictionary.eos(), tokens == self._dictionary.bos()
        drawn = rng.permutation(np.flatnonzero(~is_end & ~is_begin))
        count = max(int(len(drawn) / self._parts + rng.random()), 1)
        order = np.concatenate([np.flatnonzero(is_end), drawn, np.flatnonzero(is_begin)])
        ranks = np.empty(len(tokens), dtype=np.int64)
        ranks[order] = np.arange(len(tokens))
        target = np.full_like(tokens, pad)
        target[drawn[-count:]] = tokens[drawn[-count:]]
        inputs = Inputs(ranks=ranks)
        if sample.before is not None:
            inputs["memory_tokens"] = sample.before
        return tokens, target, inputs
