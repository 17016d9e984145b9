"""The relative positions of all pairs of a batch, and the maps between pairs and table rows.

A kind of relative position (sequential, structural) has a table of 2·clip + 1 rows. The tables of all
kinds are concatenated to one table of R rows. Every pair has one row of each kind.
:func:`spread` maps (n, R) to (n, n), and :func:`collect` maps (n, n) to (n, R). They are transposes of
one another, so each is the other's gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fairseq_phrase.modules.precision import upcast

__all__ = ["RelativePositions", "collect", "sequential_positions", "spread"]


def sequential_positions(num_tokens: int, device: torch.device | None = None) -> Tensor:
    """Compute the relative positions of tokens in the sentence: i - j (eq. 4).

    The sign is that of eq. 6. Shaw et al. count j - i, which reverses the order of a table's rows.

    Args:
        num_tokens: length n of the padded batch. Padding on the left moves all tokens alike.
        device: where to make them.

    Returns:
        Shape: (1, tokens, tokens), int64
    """
    order = torch.arange(num_tokens, device=device)
    return (order[:, None] - order)[None]


@dataclass(frozen=True)
class RelativePositions:
    """The table rows of all pairs of a padded batch. Made once per batch, shared by all layers.

    Attributes:
        rows: for each kind of relative position, the row of each pair in the concatenated tables.
            Shape of each: (batch or 1, queries, keys), int64
        num_rows: number of rows R of all tables.
        masked_keys: True at keys that get no weight; None if every key gets some.
            Shape: (batch, keys)
        clips: the largest position of each kind, in the order of ``rows``.
    """

    rows: tuple[Tensor, ...]
    num_rows: int
    masked_keys: Tensor | None = None
    clips: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
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
                first for -c. Its order is that of the tables.
            padding_mask: True at padded tokens. A sentence that is all padding attends to itself, so
                that no NaN reaches the gradients.
                Shape: (batch, tokens)

        Raises:
            ValueError: if there is no kind, if ``relative`` and ``clips`` have different kinds, or if a
                tensor has a wrong type or shape.
        """
        if not clips or set(relative) != set(clips):
            raise ValueError(f"relative positions {[*relative]} do not fit tables {[*clips]}")
        rows, first = [], 0
        for kind, clip in clips.items():
            position = relative[kind]
            if position.dtype != torch.int64 or position.dim() != 3:
                raise ValueError(
                    f"{kind} positions must be an int64 tensor of shape (batch, tokens, tokens), "
                    f"got {position.dtype} of shape {tuple(position.shape)}"
                )
            rows.append(position.clamp(-clip, clip) + (first + clip))
            first += 2 * clip + 1
        masked = None
        if padding_mask is not None:
            if padding_mask.dtype != torch.bool or padding_mask.dim() != 2:
                raise ValueError(
                    "padding_mask must be a boolean tensor of shape (batch, tokens), "
                    f"got {padding_mask.dtype} of shape {tuple(padding_mask.shape)}"
                )
            if bool(padding_mask.any()):
                masked = padding_mask & ~padding_mask.all(1, keepdim=True)
        return cls(tuple(rows), first, masked, dict(clips))

    def by_kind(self) -> dict[str, Tensor]:
        """Give back the relative positions of each kind, clipped.

        Returns:
            Shape of each: (batch or 1, queries, keys), int64
        """
        positions, first = {}, 0
        for (kind, clip), rows in zip(self.clips.items(), self.rows, strict=True):
            positions[kind] = rows - (first + clip)
            first += 2 * clip + 1
        return positions

    def of_heads(self, like: Tensor) -> list[Tensor]:
        """View the rows as indices for all heads. Shape of each: (batch, heads, queries, keys)."""
        batch, heads = like.shape[:2]
        return [rows[:, None].expand(batch, heads, -1, -1) for rows in self.rows]


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, per_row: Tensor, positions: RelativePositions, masked: bool, flat: bool
    ) -> Tensor:
        ctx.positions, ctx.heads = positions, per_row.shape[:2]
        first, *others = positions.of_heads(per_row)
        # The result must not be a view: callers add to it in place.
        joined = per_row.new_empty(
            (first.size(0) * first.size(1), *first.shape[2:]) if flat else first.shape
        )
        pairs = joined.view(first.shape)
        torch.gather(per_row, -1, first, out=pairs)
        for index in others:
            pairs += per_row.gather(-1, index)
        if masked and positions.masked_keys is not None:
            pairs.masked_fill_(positions.masked_keys[:, None, None], -math.inf)
        return joined

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None]:
        # The gradient at masked keys is 0, because the softmax gave them no weight.
        pairs = gradients[0].view(*ctx.heads, *gradients[0].shape[-2:])
        return collect(pairs, ctx.positions), None, None, None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pairs: Tensor, positions: RelativePositions) -> Tensor:
        ctx.positions = positions
        exact = upcast(pairs)
        sums = exact.new_zeros(*pairs.shape[:-1], positions.num_rows)
        for index in positions.of_heads(pairs):
            sums.scatter_add_(-1, index, exact)
        return sums.to(pairs.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        return spread(gradients[0], ctx.positions), None


def spread(
    per_row: Tensor, positions: RelativePositions, *, masked: bool = False, flat: bool = False
) -> Tensor:
    """Sum, for every pair, the values of its table rows.

    Args:
        per_row: a value for each query and table row.
            Shape: (batch, heads, queries, R)
        positions: the pairs' rows.
        masked: set masked keys to -inf, for use as a bias before a softmax.
        flat: join batch and heads.

    Returns:
        Shape: (batch, heads, queries, keys), or (batch * heads, queries, keys)
    """
    return _Spread.apply(per_row, positions, masked, flat)


def collect(pairs: Tensor, positions: RelativePositions) -> Tensor:
    """Sum the pairs' values over the keys of each table row; the transpose of :func:`spread`.

    Args:
        pairs: a value for each pair. Half precision is summed in single precision.
            Shape: (batch, heads, queries, keys)
        positions: the pairs' rows.

    Returns:
        Shape: (batch, heads, queries, R)
    """
    return _Collect.apply(pairs, positions)
