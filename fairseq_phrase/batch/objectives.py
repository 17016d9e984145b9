"""The objectives of pre-training: what is the source of a sample, and what is its target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fairseq_phrase.batch.masking import Masks
from fairseq_phrase.batch.text_blocks import BlockSample
from fairseq_phrase.errors import UserError

__all__ = ["OBJECTIVES", "Causal", "Inputs", "Masked", "Objective", "Permuted", "Source"]

OBJECTIVES = ("masked", "causal", "permutation")


@dataclass(frozen=True)
class Objective:
    """What a model predicts.

    Attributes:
        name: one of :data:`OBJECTIVES`.
        backward: with ``causal``, predict the previous token.
        next_sentence: predict whether a second segment follows the first.
        predict_fraction: with ``permutation``, the last part of the order that is predicted, K of 1/K.
        memory: with ``permutation``, the number of tokens before a sample that it also sees.

    Raises:
        UserError: the options do not belong together.
    """

    name: str = "masked"
    backward: bool = False
    next_sentence: bool = False
    predict_fraction: int = 6
    memory: int = 0

    def __post_init__(self) -> None:
        """Check the options."""
        if self.next_sentence and self.name == "causal":
            raise UserError(
                "--next-sentence: use --objective masked or permutation; a causal model reads the "
                "second segment as the continuation of the first"
            )
        if self.memory and self.name != "permutation":
            raise UserError("--memory: only --objective permutation has a memory")
        if self.memory and self.next_sentence:
            raise UserError(
                "--memory: pairs of segments (--next-sentence) have no segment before them"
            )
        if self.memory < 0:
            raise UserError(f"--memory {self.memory}: expected 0 or more tokens")


def fraction(text: str) -> int:
    """Read ``--predict-fraction 1/K`` and return K.

    Raises:
        UserError: it is not of this form.
    """
    one, _, parts = text.partition("/")
    if one.strip() != "1" or not (parts or "1").strip().isdigit() or int(parts or "1") < 1:
        raise UserError(
            f"--predict-fraction {text}: expected 1/K with a whole number K, such as 1/6"
        )
    return int(parts or "1")


class Inputs(dict[str, np.ndarray]):
    """What a model gets for a sample besides its tokens, by the name of its argument.

    Each is one number a token. ``memory_tokens`` counts other tokens.
    """


class Source(Protocol):
    """Makes source and target of a sample."""

    def __call__(
        self, sample: BlockSample, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, Inputs]:
        """Make them.

        Args:
            sample: the tokens, with ``</s>`` at the end.
            rng: what is drawn from.

        Returns:
            The source, the target (padding where nothing is predicted), and further inputs.
            Shape of both: ``(tokens,)``, int64
        """
        ...


class Masked:
    """Predict masked tokens from all others.

    Args:
        masks: draws them.
    """

    def __init__(self, masks: Masks):
        self._masks = masks

    def __call__(
        self, sample: BlockSample, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, Inputs]:
        """Mask a sample, see :class:`Source`."""
        source, target = self._masks(sample.tokens, sample.parse, rng)
        return source, target, Inputs()


class Causal:
    """Predict each token from those before it, or backward from those after it.

    Forward, the source is ``</s> u1 … un`` and the target ``u1 … un </s>``, as in fairseq. Backward, the
    source is ``u1 … un </s>`` and the target ``</s> u1 … un``.

    Args:
        dictionary: the dictionary.
        backward: the direction.
    """

    def __init__(self, dictionary: Any, backward: bool):
        self._end, self._backward = dictionary.eos(), backward

    def __call__(
        self, sample: BlockSample, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, Inputs]:
        """Shift a sample, see :class:`Source`."""
        shifted = np.concatenate([[self._end], sample.tokens[:-1]])
        if self._backward:
            return sample.tokens, shifted, Inputs()
        return shifted, sample.tokens, Inputs()


class Permuted:
    """Predict the last tokens of a random order.

    Separators are first in the order, and ``<s>`` of a pair is last; neither is predicted. *Decision*:
    the number of predicted tokens is the fraction's part, rounded at random, but at least one.

    Args:
        dictionary: the dictionary.
        parts: K; the last n/K of n tokens are predicted.
    """

    def __init__(self, dictionary: Any, parts: int):
        self._dictionary, self._parts = dictionary, parts

    def __call__(
        self, sample: BlockSample, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, Inputs]:
        """Draw an order, see :class:`Source`; ``ranks`` has each token's index in it."""
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
