"""Where phrases stand in the sentence and in its dependency tree.

*Decision* (no paper has it): a phrase stands where its highest word stands, the leftmost of several.
So it takes the smallest depth of its words, and its relative positions are those of the first subword
of that word: a phrase and its highest word are at 0 from each other, and two phrases are related as
their highest words are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from fairseq_phrase.modules.phrases.phrase_batch import PhraseBatch
from fairseq_phrase.modules.positions.relative_positions import RelativePositions

__all__ = ["PositionedPhrases"]


class PositionedPhrases(PhraseBatch):
    """The nodes of a batch with their depths and relative positions.

    Args:
        phrases: the nodes.
        depths: depth of each token in its tree; 0 for all where there is no tree, and then a phrase
            stands where its first token stands.
            Shape: (batch, tokens), int64
        relative: by kind, the tokens' relative positions.
            Shape of each: (batch or 1, tokens, tokens), int64
        clips: by kind, as for :meth:`RelativePositions.of`.

    Attributes:
        depths: depth of each node; 0 at padding.
            Shape: (batch, nodes), int64
        relative: the nodes' relative positions; None where there is no kind of them.
    """

    def __init__(
        self,
        phrases: PhraseBatch,
        depths: Tensor,
        relative: Mapping[str, Tensor],
        clips: Mapping[str, int],
    ) -> None:
        super().__init__(
            padding_mask=phrases.padding_mask,
            num_tokens=phrases.num_tokens,
            pairs=phrases.pairs,
        )
        self._of_tokens = depths, relative, clips
        places = self._places(depths)
        self.depths = depths.gather(1, places).masked_fill(self.padding_mask, 0)
        self.relative: RelativePositions | None = None
        if clips:
            between = {kind: _between(places, position) for kind, position in relative.items()}
            self.relative = RelativePositions.of(between, clips, self.padding_mask)

    @cached_property
    def tokens(self) -> PositionedPhrases:  # type: ignore[override]
        """The tokens alone, with their positions."""
        return PositionedPhrases(super().tokens, *self._of_tokens)

    def _places(self, depths: Tensor) -> Tensor:
        """Find the token at whose place each node stands. Shape: (batch, nodes), int64."""
        batch, num_tokens = depths.shape
        own = torch.arange(num_tokens, device=depths.device).expand(batch, num_tokens)
        phrase, token = self.memberships
        # Of a phrase's tokens the smallest in this order is the leftmost of the highest.
        order = (depths * num_tokens + own).view(-1)[token]
        smallest = order.new_zeros(batch * (self.num_nodes - num_tokens))
        smallest.scatter_reduce_(0, phrase, order, "amin", include_self=False)
        return torch.cat([own, smallest.view(batch, -1) % max(num_tokens, 1)], dim=1)


def _between(places: Tensor, relative: Tensor) -> Tensor:
    """Look the relative positions of nodes up in those of tokens. Shape: (batch, nodes, nodes)."""
    relative = relative.expand(len(places), -1, -1)
    queries = relative.gather(1, places[:, :, None].expand(-1, -1, relative.size(2)))
    return queries.gather(2, places[:, None, :].expand(-1, queries.size(1), -1))
