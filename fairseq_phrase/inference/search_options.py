"""The options of the search for translations, and of sampling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_phrase.errors import UserError, as_given


@dataclass(frozen=True)
class SearchOptions:
    """How translations are searched for, or drawn.

    Attributes:
        beam: the beam's size, by default 5. Sampling has none: it draws ``nbest`` translations.
        nbest: the number of translations of each line; at most ``beam``.
        lenpen: scores are divided by the length to this power.
        batch_size: the largest number of sentences in a batch.
        sampling: draw each subword by its probability, instead of a search for the best.
        sampling_topk: draw from this number of most probable subwords.
        sampling_topp: draw from the fewest most probable subwords that together have this probability.
        temperature: divide the scores of subwords by it before each draw, by default 1.
        seed: the seed of sampling. The draws for a line depend only on the seed, the line and the line's
            number.
        alignments: align each translation's words with the line's words to which the decoder attends
            most.
        replace_unk: replace an unknown word by the source word that the decoder attends to most, or by
            that word's translation. The value has translations of words, or is a file of lines with a
            word and its translation.

    Raises:
        UserError: a number is out of range, there are more translations than beams, or two options
            contradict each other.
    """

    beam: int | None = None
    nbest: int = 1
    lenpen: float = 1.0
    batch_size: int = 32
    sampling: bool = False
    sampling_topk: int | None = None
    sampling_topp: float | None = None
    temperature: float | None = None
    seed: int = 1
    alignments: bool = False
    replace_unk: bool | str | Path | Mapping[str, str] = False

    def __post_init__(self) -> None:
        names = ("beam", "nbest", "batch_size", "sampling_topk")
        check_positive(**{name: vars(self)[name] for name in names})
        self._check_sampling()
        if not 1 <= self.nbest <= self.num_beams:
            raise UserError(
                f"nbest {self.nbest}: expected 1 to the number of beams, {self.num_beams} "
                f"({as_given('beam')})"
            )

    def _check_sampling(self) -> None:
        names = ("sampling_topk", "sampling_topp", "temperature")
        draws = {name: value for name in names if (value := vars(self)[name]) is not None}
        if not self.sampling:
            for name in draws:
                raise UserError(f"{as_given(name.replace('_', '-'))} needs {as_given('sampling')}")
            return
        if self.beam not in (None, self.nbest):
            raise UserError(
                f"{as_given('beam', str(self.beam))}: a number of draws other than {as_given('nbest')} "
                "would keep the most probable draws, which are no samples: leave it out, or give "
                f"{as_given('nbest')} {self.beam}"
            )
        if {"sampling_topk", "sampling_topp"} <= draws.keys():
            raise UserError(
                f"give {as_given('sampling-topk')} or {as_given('sampling-topp')}, not both"
            )
        if not 0 < draws.get("sampling_topp", 1) <= 1:
            raise UserError(
                f"{as_given('sampling-topp', str(self.sampling_topp))}: expected a probability above 0"
            )
        if not 0 < draws.get("temperature", 1) < math.inf:
            raise UserError(
                f"{as_given('temperature', str(self.temperature))}: expected a number above 0"
            )

    @property
    def num_beams(self) -> int:
        """The number of hypotheses that a search keeps, or of draws."""
        return self.beam or (self.nbest if self.sampling else 5)

    def of_generator(self, entries: int) -> dict[str, Any]:
        """Return the options of fairseq's generators.

        Args:
            entries: the number of entries of the target dictionary.
        """
        return {
            "beam": self.num_beams,
            "lenpen": self.lenpen,
            "sampling": self.sampling,
            "sampling_topk": min(self.sampling_topk, entries) if self.sampling_topk else -1,
            "sampling_topp": self.sampling_topp or -1.0,
            "temperature": self.temperature or 1.0,
        }


def check_positive(**numbers: int | None) -> None:
    """Check that numbers are at least 1.

    Raises:
        UserError: a number is below 1.
    """
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise UserError(f"{name} {number}: expected a positive number")
