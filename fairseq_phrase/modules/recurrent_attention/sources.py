"""The source sentences of a batch, as a recurrent decoder reads them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from fairseq_phrase.modules.checks import check_mask


@dataclass(frozen=True)
class Source:
    """A batch's source states; padding may be on either side.

    Attributes:
        states: h_j. Shape: (batch, source, width)
        padding: True at padding. Shape: (batch, source)

    Raises:
        ValueError: the mask is not boolean, or does not fit the states.
    """

    states: Tensor
    padding: Tensor

    def __post_init__(self):
        """Check the mask."""
        check_mask("padding", self.padding, *self.states.shape[:2])

    @cached_property
    def positions(self) -> Tensor:
        """Positions of tokens in their sentences, from 0. Shape: (batch, source), int64."""
        return (~self.padding).cumsum(1) - 1

    @cached_property
    def lengths(self) -> Tensor:
        """Number of tokens of each sentence. Shape: (batch,), int64."""
        return (~self.padding).sum(1)
