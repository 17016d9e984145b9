"""The positions visible to a model that predicts the next token, or the previous one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class PerLayer(tuple[Any, ...]):
    """One structure per layer of an encoder whose layers attend within different windows."""


@dataclass(frozen=True)
class CausalWindow:
    """Positions see themselves and all positions before them (backward: after them).

    With a context of k tokens, the state of a position depends on exactly k tokens, itself included:
    log P(u_i | u_{i-k} … u_{i-1}). *Decision*: each layer attends back over a part of k - 1 tokens, and
    the parts add up to k - 1. With a window of k in every layer, each layer would extend the context.

    Attributes:
        backward: whether the past is on the right.
        context: k; 0 for all tokens.
    """

    backward: bool = False
    context: int = 0

    def reaches(self, layers: int) -> list[int | None]:
        """Return how far back each layer attends; None for the whole past.

        Examples:
            >>> CausalWindow(context=6).reaches(3)
            [2, 2, 1]
        """
        if not self.context:
            return [None] * layers
        least, longer = divmod(self.context - 1, max(layers, 1))
        return [least + 1 if layer < longer else least for layer in range(layers)]

    def per_layer(self, layers: int, tokens: Tensor, make: Callable[[Tensor], Any]) -> PerLayer:
        """Make the structure of each layer, once for all layers with the same reach.

        Args:
            tokens: the batch's tokens. Shape: (batch, tokens)
            make: called with a mask, True where a query sees a key. Shape: (queries, keys), bool
        """
        reaches = self.reaches(layers)
        order = torch.arange(tokens.size(1), device=tokens.device)
        structures = {reach: make(self.visible(order, order, reach)) for reach in set(reaches)}
        return PerLayer(structures[reach] for reach in reaches)

    def visible(self, first: Tensor, last: Tensor, reach: int | None = None) -> Tensor:
        """Return which queries see which keys. Shape: (…, queries, keys), bool.

        A node of the tokens first..last belongs to the last of them (backward, to the first). It sees
        the nodes that belong to the same position or to an earlier one.

        Args:
            first: the first token of each node. Shape: (…, nodes)
            last: the last token of each node. Shape: (…, nodes)
            reach: how far back a node sees; None for the whole past.
        """
        # Negated if backward: the past then has smaller numbers in both directions.
        end = -first if self.backward else last
        distance = end[..., :, None] - end[..., None, :]
        is_visible = distance >= 0
        return is_visible if reach is None else is_visible & (distance <= reach)

    def masked_pairs(self, visible: Tensor, padding_mask: Tensor) -> Tensor:
        """Return the pairs that get no weight: unseen or padding. Shape: (batch or 1, queries, keys).

        A padded query attends to itself, because an empty softmax would give NaN.

        Args:
            visible: True where a query sees a key. Shape: (queries, keys), or with the batch
            padding_mask: True at padding. Shape: (batch, nodes)
        """
        itself = torch.eye(padding_mask.size(1), dtype=torch.bool, device=visible.device)
        return ~(visible & ~padding_mask[:, None] | itself)
