"""Phrases that do not see the future.

A phrase of the tokens i..j belongs to the position j (backward, to i). It is seen only by nodes that
belong to this position or to a later one. A token therefore does not attend to phrases that end after it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from fairseq_phrase.modules.causal_window import CausalWindow
from fairseq_phrase.modules.phrases.adjacent_pairs import AdjacentPairs, PhraseEdges
from fairseq_phrase.modules.phrases.phrase_batch import PhraseBatch
from fairseq_phrase.modules.phrases.positioned_phrases import PositionedPhrases
from fairseq_phrase.modules.positions.relative_positions import RelativePositions


@dataclass(frozen=True)
class _VisiblePairs:
    """Adjacent pairs of which the query sees the key.

    Attributes:
        pairs: all adjacent pairs.
        visible: True where a query sees a key. Shape: (batch, nodes, nodes)
    """

    pairs: AdjacentPairs
    visible: Tensor

    def edges(self, padding_mask: Tensor) -> PhraseEdges:
        """List the pairs, sorted by query."""
        query, key = self.pairs.edges(padding_mask)
        seen = self.visible.flatten(0, 1)[query, key % padding_mask.size(1)]
        return PhraseEdges(query[seen], key[seen])

    def adjacency(self, padding_mask: Tensor) -> Tensor:
        """Return A of eq. 6 without the future. Shape: (batch, nodes, nodes), bool."""
        return self.pairs.adjacency(padding_mask) & self.visible

    def memberships(self, padding_mask: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """List the tokens of each phrase, which never end after it."""
        return self.pairs.memberships(padding_mask, num_tokens)

    def max_edges(self, padding_mask: Tensor) -> int:
        """Return an upper bound of the number of pairs."""
        return self.pairs.max_edges(padding_mask)


class CausalPhrases(PhraseBatch):
    """The nodes of a batch, of which each sees those that belong to its position or to an earlier one.

    Args:
        phrases: the nodes; the tokens of each phrase are adjacent.
        window: which direction is the past; without a context.

    Attributes:
        visible: True where a query sees a key; padding included. Shape: (batch, nodes, nodes)
        relative: the relative positions of all nodes with the same mask, or None.
    """

    def __init__(self, phrases: PhraseBatch, window: CausalWindow) -> None:
        starts, sizes = phrases.extents
        visible = window.visible(starts, starts + sizes - 1)
        # Padded nodes are adjacent to themselves, and see themselves.
        self.visible = ~window.masked_pairs(visible, phrases.padding_mask)
        super().__init__(
            padding_mask=phrases.padding_mask,
            num_tokens=phrases.num_tokens,
            pairs=_VisiblePairs(phrases.pairs, self.visible),
        )
        self._all, self._window = phrases, window
        self.relative: RelativePositions | None = None
        if isinstance(phrases, PositionedPhrases) and phrases.relative is not None:
            self.relative = replace(phrases.relative, masked_pairs=~self.visible)

    @cached_property
    def key_mask(self) -> Tensor:
        """The keys that phase 1 attends to. Shape: (batch, 1, nodes, nodes)."""
        return self.visible[:, None]

    @cached_property
    def tokens(self) -> CausalPhrases:
        """The tokens alone."""
        return CausalPhrases(self._all.tokens, self._window)
