"""Random choices that come out the same on every machine and Python version."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """Choices built on ``random.Random.random`` alone.

    That is the one method whose sequence Python promises to keep for a given seed.

    Args:
        seed: any integer.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random() < probability

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, all equally likely."""
        return options[int(self._random() * len(options))]

    def weighted(self, options: dict[T, float]) -> T:
        """One of the keys, as likely as its weight."""
        point = self._random() * sum(options.values())
        for option, weight in options.items():
            point -= weight
            if point < 0:
                return option
        return option
