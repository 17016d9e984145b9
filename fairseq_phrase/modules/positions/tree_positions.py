"""Where the tokens of a padded batch stand in their dependency trees, computed on the device.

Source: *Self-Attention with Structural Position Representations*, section 3.1;
``docs/structural_positions.md``. What :class:`~fairseq_phrase.syntax.dependency.DependencyTree` does
for the words of one sentence is done here for the subwords of many.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairseq_phrase.syntax.dependency import check_relation

__all__ = ["TreePositions"]


class TreePositions:
    """The absolute structural positions of a batch's tokens (eq. 5), and from them the relative.

    A token stands where its word stands. Tokens of no word (the end of sentence) stand one level
    below the deepest word, and are related to all other tokens by rule 2 of eq. 6.

    Args:
        words: 0-based index of the word each token belongs to, -1 at tokens of no word and at
            padding; words come in order.
            Shape: (batch, tokens)
        heads: 0-based index of each word's head; a root is its own head; -1 is padding. Of several
            roots the later ones hang off the first.
            Shape: (batch, words)
        padding_mask: True at padded tokens, on either side.
            Shape: (batch, tokens)

    Attributes:
        depths: number of edges from each token's word up to the root; 0 at padding.
            Shape: (batch, tokens), int64
        words: as given.
        heads: as given, but with one root; padding is its own head.
            Shape: (batch, words), int64
        word: the word of each token, 0 at tokens of no word.
            Shape: (batch, tokens), int64
        is_word: whether each token belongs to a word.
            Shape: (batch, tokens)
        word_depths: number of edges from each word up to the root.
            Shape: (batch, words), int64
        padding_mask: as given.

    Raises:
        ValueError: if a tensor has a wrong type or shape or, where looking costs no wait for the
            device, the heads are no trees over the tokens' words.
    """

    def __init__(self, words: Tensor, heads: Tensor, padding_mask: Tensor) -> None:
        _check("words", words, torch.int64, padding_mask.shape)
        _check("heads", heads, torch.int64, (words.size(0), heads.size(-1)))
        _check("padding_mask", padding_mask, torch.bool, padding_mask.shape)
        if heads.size(1) == 0:
            heads = heads.new_full((words.size(0), 1), -1)
        self.padding_mask = padding_mask
        self.words = words
        self.is_word = words >= 0
        self.word = words.clamp(min=0)
        own_index = torch.arange(heads.size(1), device=heads.device)
        is_root = heads == own_index
        first_root = is_root.long().argmax(1, keepdim=True)
        # Padding hangs off itself, where it disturbs nobody.
        self.heads = torch.where(is_root, first_root, heads.where(heads >= 0, own_index))
        if not heads.is_cuda:
            self._check_trees(heads)
        # Depth so far and ancestor of each word. Shape: (2, batch, words)
        climbed = torch.stack([(self.heads != own_index).long(), self.heads])
        # Doubling the step ceil(log2 W) times carries every word to its root.
        for _ in range((heads.size(1) - 1).bit_length()):
            depths_so_far = climbed[0]
            climbed = climbed.gather(2, climbed[1].expand_as(climbed))
            climbed[0].add_(depths_so_far)
        depths, ancestors = climbed.unbind()
        if not heads.is_cuda:
            roots = ancestors.numpy()
            if (np.take_along_axis(self.heads.numpy(), roots, 1) != roots).any():
                raise ValueError("no dependency trees: heads run in a circle")
        self.word_depths = depths
        below_all = depths.masked_fill(heads < 0, -1).amax(1, keepdim=True) + 1
        of_word = depths.gather(1, self.word)
        self.depths = torch.where(self.is_word, of_word, below_all).masked_fill(padding_mask, 0)

    def _check_trees(self, heads: Tensor) -> None:
        # By NumPy: no kernel is launched for what a GPU never does.
        own = heads.numpy()
        count = (own >= 0).sum(1, keepdims=True)
        faults = {
            "a head lies outside its sentence": own >= count,
            "a token's word has no head": self.words.numpy() >= count,
        }
        for message, fault in faults.items():
            if fault.any():
                raise ValueError(f"no dependency trees: {message} (indices are 0-based)")

    def relative(self, relation: str = "edge") -> Tensor:
        """Number the tokens as seen from each other (eq. 6), in O(n²).

        Subwords of one word are at 0 from each other. What ``relation`` means for two words stands in
        :meth:`fairseq_phrase.syntax.dependency.DependencyTree.relative_positions`; tokens of no word
        follow rule 2 whatever it is.

        Args:
            relation: ``"edge"``, ``"path"`` or ``"distance"``.

        Returns:
            ``rel(i, j)`` for query token i and key token j, not clipped; of no meaning at padding.
            Shape: (batch, tokens, tokens), int64

        Raises:
            ValueError: the relation is unknown.
        """
        check_relation(relation)
        order = torch.arange(self.depths.size(1), device=self.depths.device)
        sign = (order[:, None] - order).sign()
        query_depths, key_depths = self.depths[:, :, None], self.depths[:, None, :]
        difference = query_depths - key_depths
        size = query_depths + key_depths  # the path through the root
        if relation == "edge":
            # At a token of no word: no head is -2, and no word -1.
            heads = self.heads.gather(1, self.word).masked_fill(~self.is_word, -2)
            is_head = heads[:, :, None] == self.words[:, None, :]
            in_line = is_head | is_head.transpose(1, 2)
        else:
            both_words = self.is_word[:, :, None] & self.is_word[:, None, :]
            distances = self.of_tokens(self.word_distances())
            if relation == "distance":
                size = torch.where(both_words, distances, size)
                in_line = torch.zeros_like(both_words)
            else:
                in_line = both_words & (distances == difference.abs())
        same_word = (self.words[:, :, None] == self.words[:, None, :]) & self.is_word[:, None, :]
        return torch.where(in_line, difference, sign * size).masked_fill_(same_word, 0)

    def of_tokens(self, between_words: Tensor) -> Tensor:
        """Look the words of all pairs of tokens up; of no meaning at tokens of no word.

        Args:
            between_words: something of each pair of words. Shape: (batch, words, words)

        Returns:
            Shape: (batch, tokens, tokens)
        """
        rows = between_words.gather(1, self.word[:, :, None].expand(-1, -1, between_words.size(2)))
        return rows.gather(2, self.word[:, None, :].expand(-1, rows.size(1), -1))

    def word_distances(self) -> Tensor:
        """Count the edges between every two words. Shape: (batch, words, words), int64.

        Level by level, as :meth:`fairseq_phrase.syntax.dependency.DependencyTree.distances` does,
        of all trees at once.
        """
        batch, num_words = self.heads.shape
        depths = self.word_depths.view(-1)
        distances = torch.zeros(
            batch, num_words, num_words, dtype=torch.int64, device=depths.device
        )
        by_depth = depths.argsort(stable=True)
        # The one transfer from the device: how many words each level has.
        counts = depths.bincount().tolist()
        for level in by_depth.split(counts)[1:]:
            sentence, word = level // num_words, level % num_words
            head = self.heads.view(-1)[level]
            distances[sentence, :, word] = distances[sentence, head] + 1
            distances[sentence, word] = distances[sentence, head] + 1
            distances[sentence, word, word] = 0
        return distances


def _check(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tensor.dim() != 2 or tensor.shape != shape:
        raise ValueError(
            f"{name} must be a {dtype} tensor of shape {tuple(shape)}, "
            f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )
