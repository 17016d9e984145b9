"""Token n-grams as phrases, eq. 1. Their adjacent pairs follow from the layout of the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_phrase.modules.phrases.phrase_batch import PhraseBatch, PhraseEdges
from fairseq_phrase.modules.tensors import check_mask, may_read


class NgramLevel(NamedTuple):
    """The nodes of the token n-grams of one size.

    Node ``offset + i`` is the phrase that begins at token ``i``; tokens themselves are size 1.

    Attributes:
        offset: the first node.
        length: number of nodes.
    """

    size: int
    offset: int
    length: int


@dataclass(frozen=True)
class NgramPairs:
    """Pairs of token n-grams, computed from the layout of the nodes.

    Attributes:
        levels: the nodes of each size, from size 1.
    """

    levels: tuple[NgramLevel, ...]

    def edges(self, padding_mask: Tensor) -> PhraseEdges:
        """List the pairs: each n-gram with each of its parts."""
        is_node = ~padding_mask
        index = torch.arange(padding_mask.numel(), device=padding_mask.device)
        index = index.view(padding_mask.shape)
        pairs = [(index, index, torch.ones_like(is_node))]
        for larger in self.levels[1:]:
            phrase = slice(larger.offset, larger.offset + larger.length)
            for smaller in self.levels[: larger.size - 1]:
                for shift in range(larger.size - smaller.size + 1):
                    first = smaller.offset + shift
                    part = slice(first, first + larger.length)
                    # A phrase's parts exist if the phrase exists.
                    exists = is_node[:, phrase]
                    pairs.append((index[:, phrase], index[:, part], exists))
                    pairs.append((index[:, part], index[:, phrase], exists))
        return _select_edges(pairs)

    def adjacency(self, padding_mask: Tensor) -> Tensor:
        """Compare all pairs of spans once, for all sentences."""
        is_node = ~padding_mask
        device = padding_mask.device  # a copy from the host would wait for the GPU
        sizes = torch.cat(
            [torch.full((level.length,), level.size, device=device) for level in self.levels]
        )
        starts = torch.cat([torch.arange(level.length, device=device) for level in self.levels])
        # Shape: (nodes, nodes)
        pattern = _within_span(starts, sizes)
        itself = torch.eye(len(sizes), dtype=torch.bool, device=device)
        return (pattern & is_node[:, :, None] & is_node[:, None, :]) | itself

    def memberships(self, padding_mask: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """List the tokens of all slots, as if without padding; thus the host knows their number."""
        batch, device = padding_mask.size(0), padding_mask.device
        slots, tokens = [], []
        for size, offset, length in self.levels[1:]:
            # Shape: (length, size)
            first = torch.arange(length, device=device)[:, None].expand(-1, size)
            slots.append((first + (offset - num_tokens)).flatten())
            tokens.append((first + torch.arange(size, device=device)).flatten())
        sentence = torch.arange(batch, device=device)[:, None]
        none = sentence.new_empty(0)
        slot, token = torch.cat([none, *slots]), torch.cat([none, *tokens])
        num_slots = padding_mask.size(1) - num_tokens
        return (sentence * num_slots + slot).flatten(), (sentence * num_tokens + token).flatten()

    def max_edges(self, padding_mask: Tensor) -> int:
        """Count the pairs, as if without padding."""
        pairs = padding_mask.size(1)
        for size, _, length in self.levels:
            # An n-gram has size - p + 1 parts of size p. Count both directions.
            pairs += 2 * length * sum(size - part + 1 for part in range(1, size))
        return padding_mask.size(0) * pairs


def _select_edges(pairs: Sequence[tuple[Tensor, Tensor, Tensor]]) -> PhraseEdges:
    """Keep the candidate pairs (query, key, exists) that exist, sorted by query."""
    query, key, exists = (
        torch.cat([part.reshape(-1) for part in parts]) for parts in zip(*pairs, strict=True)
    )
    query, key = query[exists], key[exists]
    order = query.argsort(stable=True)
    return PhraseEdges(query[order], key[order])


def _within_span(starts: Tensor, sizes: Tensor) -> Tensor:
    """Return for all pairs of spans whether one contains the other. Shape: (spans, spans)."""
    ends = starts + sizes
    inside = (starts[:, None] >= starts) & (ends[:, None] <= ends)
    return inside | inside.T


def token_ngrams(
    is_unit: Tensor, padding_mask: Tensor, max_length: int, *, ends_with_eos: bool = False
) -> PhraseBatch:
    """Make every span of 2..k adjacent tokens a phrase (eq. 1); left or right padding.

    Args:
        is_unit: True where a phrase may contain the token, False at end of sentence and padding.
            Shape: (batch, tokens)
        padding_mask: True at padding. The end of sentence is a node like any other token.
            Shape: (batch, tokens)
        max_length: most tokens in a phrase, k.
        ends_with_eos: promise that no sentence has a unit in the last column. Phrases that reach
            it then get no slots, which saves k-1 slots per sentence.

    Raises:
        ValueError: if ``max_length < 2`` or a mask is not boolean of shape (batch, tokens).
    """
    check_max_length(max_length)
    check_mask("is_unit", is_unit)
    check_mask("padding_mask", padding_mask, *is_unit.shape)
    num_tokens = is_unit.size(1)
    reach = num_tokens - int(ends_with_eos)
    # Checked only where the check does not wait for the device.
    if ends_with_eos and may_read(is_unit) and is_unit[:, reach:].numpy().any():
        raise ValueError("ends_with_eos was promised, but the last column holds a unit")
    levels = [NgramLevel(1, 0, num_tokens)]
    is_padding = [padding_mask]
    is_phrase = (is_unit & ~padding_mask)[:, :reach]
    first_units = is_phrase
    for size in range(2, min(max_length, reach) + 1):
        # A phrase of this size is a phrase of the previous size plus one unit.
        is_phrase = is_phrase[:, :-1] & first_units[:, size - 1 :]
        offset = levels[-1].offset + levels[-1].length
        levels.append(NgramLevel(size, offset, is_phrase.size(1)))
        is_padding.append(~is_phrase)
    return PhraseBatch(
        padding_mask=torch.cat(is_padding, dim=1),
        num_tokens=num_tokens,
        pairs=NgramPairs(tuple(levels)),
    )


def without_phrases(padding_mask: Tensor) -> PhraseBatch:
    """Make a batch of tokens without phrases.

    Args:
        padding_mask: True at padding. Shape: (batch, tokens)
    """
    num_tokens = padding_mask.size(1)
    pairs = NgramPairs((NgramLevel(1, 0, num_tokens),))
    return PhraseBatch(padding_mask=padding_mask, num_tokens=num_tokens, pairs=pairs)


def check_max_length(max_length: int) -> None:
    """Raise ``ValueError`` if the maximum length is less than two units."""
    if max_length < 2:
        raise ValueError(
            f"phrases have at least 2 units, so the maximum phrase length must be 2 or more, "
            f"got {max_length}"
        )
