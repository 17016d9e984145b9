"""Phrases with positions in the sentence and its dependency tree, and phrases that do not see the future.

*Decision* (not from a paper): a phrase has the position of its highest word, the leftmost if several
words are equally high. Its depth is the smallest depth of its words. Its relative positions are the
relative positions of the first subword of its highest word. So a phrase has the relative position 0
to its highest word, and two phrases have the relative position of their highest words.

In a causal model a phrase of the tokens i..j belongs to the position j (backward: i). Only nodes that
belong to this position or to a later one see it. A token therefore does not attend to phrases that end
after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fairseq_phrase.modules.causal_window import CausalWindow
from fairseq_phrase.modules.phrases.phrase_batch import PhraseBatch, PhraseEdges
from fairseq_phrase.modules.positions.relative_attention import RelativePositions
from fairseq_phrase.modules.tensors import kept


class PositionedPhrases(PhraseBatch):
    """The nodes of a batch with their depths and relative positions.

    Args:
        depths: depth of each token in its tree; 0 for all tokens without a tree; then a phrase
            has the position of its first token. Shape: (batch, tokens), int64
        relative: by kind, the tokens' relative positions.
            Shape of each: (batch or 1, tokens, tokens), int64

    Attributes:
        depths: depth of each node; 0 at padding. Shape: (batch, nodes), int64
        relative: the nodes' relative positions; None without any kind.
    """

    def __init__(
        self,
        phrases: PhraseBatch,
        depths: Tensor,
        relative: Mapping[str, Tensor],
        clips: Mapping[str, int],
    ) -> None:
        super().__init__(
            padding_mask=phrases.padding_mask, num_tokens=phrases.num_tokens, pairs=phrases.pairs
        )
        self._of_tokens = depths, relative, clips
        tokens = self._representatives(depths)
        self.depths = depths.gather(1, tokens).masked_fill(self.padding_mask, 0)
        self.relative: RelativePositions | None = None
        if clips:
            between = {kind: _between(tokens, position) for kind, position in relative.items()}
            self.relative = RelativePositions.from_kinds(between, clips, self.padding_mask)

    @kept
    def tokens(self) -> PositionedPhrases:
        """The tokens without phrases, with their positions."""
        return PositionedPhrases(super().tokens, *self._of_tokens)

    def _representatives(self, depths: Tensor) -> Tensor:
        """Find the token whose position each node has. Shape: (batch, nodes), int64."""
        batch, num_tokens = depths.shape
        own = torch.arange(num_tokens, device=depths.device).expand(batch, num_tokens)
        phrase, token = self.memberships
        # The phrase's smallest token in this order is the leftmost of its highest tokens.
        order = (depths * num_tokens + own).view(-1)[token]
        smallest = order.new_zeros(batch * (self.num_nodes - num_tokens))
        smallest.scatter_reduce_(0, phrase, order, "amin", include_self=False)
        # The remainder is the token's index in its sentence.
        return torch.cat([own, smallest.view(batch, -1) % max(num_tokens, 1)], dim=1)


def _between(tokens: Tensor, relative: Tensor) -> Tensor:
    """Look up nodes' relative positions in the tokens' positions. Shape: (batch, nodes, nodes)."""
    relative = relative.expand(len(tokens), -1, -1)
    queries = relative.gather(1, tokens[:, :, None].expand(-1, -1, relative.size(2)))
    return queries.gather(2, tokens[:, None, :].expand(-1, queries.size(1), -1))


class CausalPhrases(PhraseBatch):
    """The nodes of a batch; each sees the nodes that belong to its position or to an earlier one.

    Args:
        phrases: the nodes; the tokens of each phrase are adjacent.
        window: defines the direction of the past; without a context.

    Attributes:
        visible: True where a query sees a key; padding included. Shape: (batch, nodes, nodes)
        relative: the relative positions of all nodes with the same mask, or None.
    """

    def __init__(self, phrases: PhraseBatch, window: CausalWindow) -> None:
        starts, sizes = phrases.extents
        visible = window.visible(starts, starts + sizes - 1)
        # Padded nodes are adjacent to themselves and see themselves.
        self.visible = ~window.masked_pairs(visible, phrases.padding_mask)
        super().__init__(
            padding_mask=phrases.padding_mask,
            num_tokens=phrases.num_tokens,
            pairs=phrases.pairs,
        )
        self._all, self._window = phrases, window
        self.relative: RelativePositions | None = None
        if isinstance(phrases, PositionedPhrases) and phrases.relative is not None:
            self.relative = replace(phrases.relative, masked=~self.visible)

    @kept
    def edges(self) -> PhraseEdges:
        """The adjacent pairs of which the query sees the key, sorted by query."""
        query, key = self._all.edges
        seen = self.visible.flatten(0, 1)[query, key % self.num_nodes]
        return PhraseEdges(query[seen], key[seen])

    @kept
    def adjacency(self) -> Tensor:
        """A of eq. 6, without later nodes. Shape: (batch, nodes, nodes)."""
        return self._all.adjacency & self.visible

    @kept
    def key_mask(self) -> Tensor:
        """The keys that phase 1 attends to. Shape: (batch, 1, nodes, nodes)."""
        return self.visible[:, None]

    @kept
    def tokens(self) -> CausalPhrases:
        """The tokens without phrases."""
        return CausalPhrases(self._all.tokens, self._window)
