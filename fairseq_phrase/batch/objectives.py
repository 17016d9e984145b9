"""The objectives of pre-training: what is the source of a sample, and what is its target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fairseq_phrase.batch.masking import Masks
from fairseq_phrase.batch.text_blocks import BlockSample
from fairseq_phrase.errors import UserError

__all__ = ["OBJECTIVES", "Causal", "Inputs", "Masked", "Objective", "Source"]

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
        if self.predict_fraction < 1:
            raise UserError(
                f"--predict-fraction 1/{self.predict_fraction}: expected 1/K with K of 1 or more"
            )


class Inputs(dict[str, np.ndarray]):
    """What a model gets for a sample besides its tokens, by the name of its argument.

    Each is one number a token. ``memory_tokens`` counts other tokens.
    """


class Source(Protocol):
    """Makes source and target of a sample."""

    def __call__(
        self, sample: BlockSample, dice: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, Inputs]:
        """Make them.

        Args:
            sample: the tokens, with ``</s>`` at the end.
            dice: what is drawn from.

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
        self, sample: BlockSample, dice: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, Inputs]:
        """Mask a sample, see :class:`Source`."""
        source, target = self._masks(sample.tokens, sample.parse, dice)
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
        self, sample: BlockSample, dice: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, Inputs]:
        """Shift a sample, see :class:`Source`."""
        shifted = np.concatenate([[self._end], sample.tokens[:-1]])
        if self._backward:
            return sample.tokens, shifted, Inputs()
        return shifted, sample.tokens, Inputs()
