"""The options of the search for translations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fairseq_phrase.errors import UserError, as_given


@dataclass(frozen=True)
class SearchOptions:
    """How translations are searched for.

    Attributes:
        nbest: the number of translations of each line; at most ``beam``.
        lenpen: scores are divided by the length to this power.
        batch_size: the largest number of sentences in a batch.
        alignments: align each translation's words with the line's words to which the decoder attends
            most.
        replace_unk: replace an unknown word by the source word that the decoder attends to most, or by
            that word's translation. The value has translations of words, or is a file of lines with a
            word and its translation.

    Raises:
        UserError: a number is out of range, or there are more translations than beams.
    """

    beam: int = 5
    nbest: int = 1
    lenpen: float = 1.0
    batch_size: int = 32
    alignments: bool = False
    replace_unk: bool | str | Path | Mapping[str, str] = False

    def __post_init__(self) -> None:
        check_positive(beam=self.beam, nbest=self.nbest, batch_size=self.batch_size)
        if self.nbest > self.beam:
            raise UserError(
                f"nbest {self.nbest}: expected 1 to the number of beams, {self.beam} "
                f"({as_given('beam')})"
            )


def check_positive(**numbers: int) -> None:
    """Check that numbers are at least 1.

    Raises:
        UserError: a number is below 1.
    """
    for name, number in numbers.items():
        if number < 1:
            raise UserError(f"{name} {number}: expected a positive number")
