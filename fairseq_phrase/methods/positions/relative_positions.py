"""The table rows of relative positions: of all pairs of a batch's tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fairseq_phrase.methods.common.one_by_one import one_of
from fairseq_phrase.methods.common.tensors import (
    check_mask,
    check_tensor,
    infinite,
    masked_keys,
    upcast,
)


def sequential_positions(num_tokens: int, device: torch.device | None = None) -> Tensor:
    """Compute the positions i - j in the sentence (eq. 4). Shape: (1, tokens, tokens), int64.

    The sign is as in eq. 6. Shaw et al. count j - i, which reverses the order of a table's rows.

    Args:
        num_tokens: length n of the padded batch. Padding on the left shifts all tokens equally.
    """
    order = torch.arange(num_tokens, device=device)
    return (order[:, None] - order)[None]


@dataclass(frozen=True)
class RelativePositions:
    """The table rows of all pairs of a padded batch. Made once per batch, shared by all layers.

    Attributes:
        rows: for each kind of relative position, the row of each pair in the concatenated tables.
            Shape of each: (batch or 1, queries, keys), int64
        masked: True at pairs that get no weight; None if all pairs get weight.
            Shape: (batch or 1, 1 or queries, keys)
        clips: the largest position of each kind, in the order of ``rows``.
    """

    rows: tuple[Tensor, ...]
    num_rows: int
    masked: Tensor | None = None
    clips: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_kinds(
        cls,
        relative: Mapping[str, Tensor],
        clips: Mapping[str, int],
        padding_mask: Tensor | None = None,
    ) -> RelativePositions:
        """Look up the table rows of relative positions.

        Args:
            relative: by kind, relative positions rel(i, j), clipped or not.
                Shape of each: (batch or 1, tokens, tokens), int64
            clips: by kind, the largest size c of a relative position: the table has 2c + 1 rows, the
                first for -c. Its order is the order of the tables.
            padding_mask: True at padded tokens; None without padding. A sentence that is all padding
                attends to itself, to avoid NaN in the gradients. Shape: (batch, tokens)

        Raises:
            ValueError: if ``clips`` is empty, if ``relative`` and ``clips`` have different kinds, or if a
                tensor has a wrong type or shape.
        """
        if not clips or set(relative) != set(clips):
            raise ValueError(f"relative positions {[*relative]} do not fit tables {[*clips]}")
        rows, first = [], 0
        for kind, clip in clips.items():
            position = relative[kind]
            check_tensor(f"{kind} positions", position, torch.int64, "batch", "tokens", "tokens")
            rows.append(position.clamp(-clip, clip) + (first + clip))
            first += 2 * clip + 1
        masked = None
        if padding_mask is not None:
            check_mask("padding_mask", padding_mask, "batch", "tokens")
            masked = masked_keys(padding_mask)[:, None]
        return cls(tuple(rows), first, masked, dict(clips))

    def by_kind(self) -> dict[str, Tensor]:
        """Recover the clipped positions by kind. Shape of each: (batch or 1, queries, keys), int64."""
        positions, first = {}, 0
        for (kind, clip), rows in zip(self.clips.items(), self.rows, strict=True):
            positions[kind] = rows - (first + clip)
            first += 2 * clip + 1
        return positions

    def sentence(self, index: int) -> RelativePositions:
        """Take the positions of one sentence of the batch."""
        rows = tuple(one_of(numbers, index) for numbers in self.rows)
        return replace(self, rows=rows, masked=one_of(self.masked, index))

    def table(self, rows: Tensor) -> Tensor:
        """Return the table whose rows pairs look up. Shape: (R, head width)."""
        return rows

    def look_up(self, per_row: Tensor) -> Tensor:
        """Add up the values of each pair's table rows. Shape: (batch, heads, queries, keys).

        Args:
            per_row: a value for each query and table row. Shape: (batch, heads, queries, R)

        Returns:
            The sums, and -inf at masked pairs.
        """
        index, *others = self._indices(per_row)
        pairs = per_row.gather(3, index)
        for index in others:
            pairs += per_row.gather(3, index)
        if self.masked is not None:
            pairs += infinite(self.masked, pairs.dtype)[:, None]
        return pairs

    def collect(self, pairs: Tensor) -> Tensor:
        """Sum the values of all pairs with the same query and table row.

        Args:
            pairs: a value for each pair. Half precision is summed in single precision.
                Shape: (batch, heads, queries, keys)

        Returns:
            Shape: (batch, heads, queries, R)
        """
        exact = upcast(pairs)
        sums = exact.new_zeros(*exact.shape[:3], self.num_rows)
        for index in self._indices(exact):
            sums = sums.scatter_add(3, index, exact)
        return sums.to(pairs.dtype)

    def _indices(self, values: Tensor) -> list[Tensor]:
        """Repeat the rows of each kind for all heads. Shape of each: (batch, heads, queries, keys)."""
        return [rows[:, None].expand(*values.shape[:2], -1, -1) for rows in self.rows]
