"""Token n-grams as phrases, eq. 1. Their adjacent pairs follow from the layout of the nodes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_phrase.methods.common.tensors import check_mask, may_read
from fairseq_phrase.methods.phrases.phrase_batch import PhraseBatch, PhraseEdges


@dataclass(frozen=True)
class NgramPairs:
    """Pairs of token n-grams, computed from the layout of the nodes: tokens, pairs, triples, ….

    Attributes:
        lengths: number of nodes of each size, from 1. They begin at tokens 0, 1, ….
    """

    lengths: tuple[int, ...]

    def _contains(self, device: torch.device) -> Tensor:
        """Return for all pairs of spans whether one contains the other. Shape: (nodes, nodes)."""
        starts = torch.cat([torch.arange(length, device=device) for length in self.lengths])
        ends = torch.cat(
            [torch.arange(n, device=device) + size for size, n in enumerate(self.lengths, 1)]
        )
        inside = (starts[:, None] >= starts) & (ends[:, None] <= ends)
        return inside | inside.T

    def edges(self, padding_mask: Tensor) -> PhraseEdges:
        """List the pairs of one sentence without padding, and keep those that each sentence has."""
        # Sorted by query.
        query, key = self._contains(padding_mask.device).nonzero(as_tuple=True)
        is_node = ~padding_mask
        exists = (is_node[:, query] & is_node[:, key]) | (query == key)
        index = torch.arange(padding_mask.numel(), device=padding_mask.device)
        index = index.view(padding_mask.shape)
        return PhraseEdges(index[:, query][exists], index[:, key][exists])

    def adjacency(self, padding_mask: Tensor) -> Tensor:
        """Compare all pairs of spans once, for all sentences."""
        is_node, device = ~padding_mask, padding_mask.device
        itself = torch.eye(padding_mask.size(1), dtype=torch.bool, device=device)
        return (self._contains(device) & is_node[:, :, None] & is_node[:, None, :]) | itself

    def memberships(self, padding_mask: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """List the tokens of all slots, as if without padding; thus the host knows their number."""
        batch, device = padding_mask.size(0), padding_mask.device
        sentence = torch.arange(batch, device=device)[:, None]
        slots, tokens, num_slots = [sentence[:0, 0]], [sentence[:0, 0]], 0
        for size, length in enumerate(self.lengths[1:], 2):
            # Shape: (length, size)
            first = torch.arange(length, device=device)[:, None].expand(-1, size)
            slots.append((first + num_slots).flatten())
            tokens.append((first + torch.arange(size, device=device)).flatten())
            num_slots += length
        slot, token = torch.cat(slots), torch.cat(tokens)
        return (sentence * num_slots + slot).flatten(), (sentence * num_tokens + token).flatten()


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
    lengths = [num_tokens]
    is_padding = [padding_mask]
    is_phrase = (is_unit & ~padding_mask)[:, :reach]
    first_units = is_phrase
    for size in range(2, min(max_length, reach) + 1):
        # A phrase of this size is a phrase of the previous size plus one unit.
        is_phrase = is_phrase[:, :-1] & first_units[:, size - 1 :]
        lengths.append(is_phrase.size(1))
        is_padding.append(~is_phrase)
    return PhraseBatch(
        padding_mask=torch.cat(is_padding, dim=1),
        num_tokens=num_tokens,
        pairs=NgramPairs(tuple(lengths)),
    )


def without_phrases(padding_mask: Tensor) -> PhraseBatch:
    """Make a batch of tokens without phrases.

    Args:
        padding_mask: True at padding. Shape: (batch, tokens)
    """
    num_tokens = padding_mask.size(1)
    pairs = NgramPairs((num_tokens,))
    return PhraseBatch(padding_mask=padding_mask, num_tokens=num_tokens, pairs=pairs)


def check_max_length(max_length: int) -> None:
    """Raise ``ValueError`` if the maximum length is less than two units."""
    if max_length < 2:
        raise ValueError(
            f"phrases have at least 2 units, so the maximum phrase length must be 2 or more, "
            f"got {max_length}"
        )
