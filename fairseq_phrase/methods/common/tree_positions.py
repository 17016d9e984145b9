"""Positions of a padded batch's tokens in their dependency trees, computed on the device.

Source: *Self-Attention with Structural Position Representations*, section 3 (eq. 3, 5, 7);
``docs/models/structural_positions.md``.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, pad

from fairseq_phrase.methods.common.tensors import check_mask, check_tensor, exact_product, may_read

#: Definitions of the relative position of two words in the tree.
RELATIONS = ("edge", "path", "distance")


class TreePositions:
    """The structural positions of a batch's tokens: absolute (eq. 5), and relative computed from them.

    A token has the position of its word. Tokens outside words (the end of sentence) are one level below
    the deepest word. Rule 2 of eq. 6 gives their positions relative to all other tokens.

    Args:
        words: 0-based index of the word each token belongs to, -1 at tokens outside words and at
            padding; words come in order. Shape: (batch, tokens)
        heads: 0-based index of each word's head; a root is its own head; -1 is padding. Of several
            roots, the later ones become dependents of the first. Shape: (batch, words)
        padding_mask: True at padded tokens, on either side. Shape: (batch, tokens)

    Attributes:
        depths: number of edges from each token's word up to the root; 0 at padding.
            Shape: (batch, tokens), int64
        heads: as given, but with one root; padding is its own head. Shape: (batch, words), int64
        word: the word of each token, 0 at tokens outside words. Shape: (batch, tokens), int64
        is_word: whether each token belongs to a word. Shape: (batch, tokens)
        word_depths: number of edges from each word up to the root. Shape: (batch, words), int64

    Raises:
        ValueError: if a tensor has a wrong type or shape; or if the heads are not trees over the
            tokens' words, which is checked only where the check does not wait for the device.
    """

    def __init__(self, words: Tensor, heads: Tensor, padding_mask: Tensor) -> None:
        check_tensor("words", words, torch.int64, *padding_mask.shape)
        check_tensor("heads", heads, torch.int64, words.size(0), "words")
        check_mask("padding_mask", padding_mask)
        if heads.size(1) == 0:
            heads = heads.new_full((words.size(0), 1), -1)
        self.padding_mask = padding_mask
        self.words = words
        self.is_word = words >= 0
        self.word = words.clamp(min=0)
        own_index = torch.arange(heads.size(1), device=heads.device)
        is_root = heads == own_index
        first_root = is_root.to(torch.uint8).argmax(1, keepdim=True)
        # Padding is its own head, and thus does not affect words.
        self.heads = torch.where(is_root, first_root, heads.where(heads >= 0, own_index))
        if may_read(heads):
            self._check_trees(heads)
        # Current depth and ancestor of each word. Shape: (2, batch, words)
        climbed = torch.stack([(self.heads != own_index).long(), self.heads])
        # Doubling the step ceil(log2 W) times leads from every word to its root.
        for _ in range((heads.size(1) - 1).bit_length()):
            depths_so_far = climbed[0]
            climbed = climbed.gather(2, climbed[1].expand_as(climbed))
            climbed[0].add_(depths_so_far)
        depths, ancestors = climbed.unbind()
        if may_read(heads):
            roots = ancestors.numpy()
            if (np.take_along_axis(self.heads.numpy(), roots, 1) != roots).any():
                raise ValueError("no dependency trees: heads run in a circle")
        self.word_depths = depths
        below_all = depths.masked_fill(heads < 0, -1).amax(1, keepdim=True) + 1
        of_word = depths.gather(1, self.word)
        self.depths = torch.where(self.is_word, of_word, below_all).masked_fill(padding_mask, 0)

    def _check_trees(self, heads: Tensor) -> None:
        # NumPy does not launch kernels. This check never runs on a GPU.
        head = heads.numpy()
        count = (head >= 0).sum(1, keepdims=True)
        faults = {
            "a head lies outside its sentence": head >= count,
            "a token's word has no head": self.words.numpy() >= count,
        }
        for message, fault in faults.items():
            if fault.any():
                raise ValueError(f"no dependency trees: {message} (indices are 0-based)")

    def relative(self, relation: str = "edge") -> Tensor:
        """Compute the relative positions of all pairs of tokens (eq. 6), in O(n²).

        With ``f`` the sign of ``i - j``, the relative position of two words is:

        - ``edge``: the difference of depths if they have an edge, else ``f`` times the sum of depths,
          which is the length of the path through the root (eq. 6 literally);
        - ``path``: the same, with the difference of depths for every word and its ancestors;
        - ``distance``: ``f`` times the number of edges between them.

        Subwords of one word have the relative position 0. Tokens outside words follow rule 2, the rule of
        words without an edge, for every ``relation``.

        Args:
            relation: one of :data:`RELATIONS`.

        Returns:
            ``rel(i, j)`` for query token i and key token j, not clipped; undefined at padding.
            Shape: (batch, tokens, tokens), int64

        Raises:
            ValueError: the relation is unknown.
        """
        if relation not in RELATIONS:
            raise ValueError(
                f"unknown relation {relation!r}, expected one of {', '.join(RELATIONS)}"
            )
        order = torch.arange(self.depths.size(1), device=self.depths.device)
        sign = (order[:, None] - order).sign()
        query_depths, key_depths = self.depths[:, :, None], self.depths[:, None, :]
        difference = query_depths - key_depths
        size = query_depths + key_depths  # the path through the root
        if relation == "edge":
            # For a token outside words, the head is -2 and the word is -1.
            heads = self.heads.gather(1, self.word).masked_fill(~self.is_word, -2)
            is_head = heads[:, :, None] == self.words[:, None, :]
            in_line = is_head | is_head.transpose(1, 2)
        else:
            distances = self.for_tokens(self.word_distances(), outside=-1)
            if relation == "distance":
                size = torch.where(distances < 0, size, distances)
                in_line = torch.zeros_like(distances, dtype=torch.bool)
            else:
                in_line = distances == difference.abs()
        same_word = (self.words[:, :, None] == self.words[:, None, :]) & self.is_word[:, None, :]
        return torch.where(in_line, difference, sign * size).masked_fill_(same_word, 0)

    def for_tokens(self, between_words: Tensor, outside: int) -> Tensor:
        """Look up values of tokens' words. Shape: (batch, tokens, tokens).

        Args:
            between_words: a value for each pair of words. Shape: (batch, words, words)
            outside: the value of pairs of which a token has no word.
        """
        # Outside is one more word.
        word = self.word.where(self.is_word, between_words.size(1))
        between_words = pad(between_words, (0, 1, 0, 1), value=outside)
        sentence = torch.arange(len(word), device=word.device)
        rows = between_words[sentence[:, None], word]  # whole, which is faster than by ``gather``
        return rows.gather(2, word[:, None, :].expand(-1, rows.size(1), -1))

    def word_distances(self) -> Tensor:
        """Count the edges between words, undefined at padding. Shape: (batch, words, words), int64.

        The number of common ancestors of two words, themselves included, is the depth of their lowest
        common ancestor plus 1. So matrix products count the edges up to it without a loop over levels.
        """
        batch, num_words = self.heads.shape
        # True where word j is word i or above it, by doubling.
        above = torch.eye(num_words, dtype=torch.bool, device=self.heads.device)
        above, ancestor = above.expand(batch, -1, -1), self.heads
        sentence = torch.arange(batch, device=self.heads.device)[:, None]
        # Trees are flat: the depth of the deepest word is far below the number of words.
        deepest = int(self.word_depths.max()) if may_read(self.heads) else num_words - 1
        for doubling in range(deepest.bit_length()):
            ancestor = ancestor.gather(1, ancestor) if doubling else ancestor
            above = above | above[sentence, ancestor]
        common = exact_product(above, above.mT)
        # Each of the two paths to the root has one word more than edges.
        words = self.word_depths + 1
        return (words[:, :, None] + words[:, None]).sub_(common, alpha=2)


FUSIONS = ("tanh", "add")


def sinusoids(count: int, width: int) -> Tensor:
    """Encode the positions 0, 1, ... (eq. 3), sines first as in fairseq. Shape: (count, width), float32.

    Args:
        width: of an encoding; the last column of an odd width is 0.
    """
    half = width // 2
    # Wavelengths from 2π to 10000 · 2π.
    rates = torch.exp(torch.arange(half) * (-math.log(10000) / max(half - 1, 1)))
    angles = torch.arange(count)[:, None] * rates
    return pad(torch.cat([angles.sin(), angles.cos()], dim=1), (0, width - 2 * half))


class DepthEncoding(nn.Module):
    """The encoding of tree depths, fused with the encoding of positions in the sentence if given.

    Args:
        max_depth: largest depth to prepare for; larger depths still work.
        fusion: ``"tanh"`` for ``tanh(W_seq PE(seq) + W_stru PE(stru) + b)`` (eq. 7), or ``"add"``
            for ``PE(seq) + PE(stru)``, without parameters; None if positions are never given.
        neutral: with ``"add"``, multiply PE(stru) by a learned number g that starts at 0.

    Raises:
        ValueError: if the fusion is unknown.
    """

    table: Tensor

    def __init__(
        self, width: int, max_depth: int = 256, fusion: str | None = None, neutral: bool = False
    ) -> None:
        super().__init__()
        if fusion not in (None, *FUSIONS):
            raise ValueError(f"unknown fusion {fusion!r}, expected one of {', '.join(FUSIONS)}")
        self.sequential: nn.Linear | None = None
        self.structural: nn.Linear | None = None
        if fusion == "tanh":
            self.sequential = nn.Linear(width, width, bias=False)
            self.structural = nn.Linear(width, width)
            nn.init.xavier_uniform_(self.sequential.weight)
            nn.init.xavier_uniform_(self.structural.weight)
            nn.init.zeros_(self.structural.bias)
        self.gate = nn.Parameter(torch.zeros(1)) if neutral and fusion == "add" else None
        self.register_buffer("table", sinusoids(max_depth + 1, width), persistent=False)

    def forward(
        self,
        depths: Tensor,
        max_depth: int,
        positions: Tensor | None = None,
        position_encodings: Tensor | None = None,
    ) -> Tensor:
        """Encode depths, and positions in the sentence if given. Shape: (batch, tokens, width).

        A batch has far fewer depths and positions than tokens. So these are projected first, and then
        looked up for each token.

        Args:
            depths: tree depth of each token. Shape: (batch, tokens), int64
            max_depth: an upper bound of the depths, for example the number of tokens.
            positions: the token's position in its sentence, an index of ``position_encodings``.
                Shape: (batch, tokens), int64
            position_encodings: PE(seq), of each position. Shape: (positions, width)
        """
        if max_depth >= len(self.table):
            self.table = sinusoids(max_depth + 1, self.table.size(1)).to(self.table)
        encodings = self.projected(self.table[: max_depth + 1])
        return self.fused(embedding(depths, encodings), positions, position_encodings)

    def projected(self, encodings: Tensor) -> Tensor:
        """Apply W_stru and b, or the factor g. Shape: as the encodings, (..., width)."""
        if self.structural is not None:
            return self.structural(encodings)  # type: ignore[no-any-return]
        return encodings if self.gate is None else self.gate * encodings

    def fused(
        self, encoded: Tensor, positions: Tensor | None, position_encodings: Tensor | None
    ) -> Tensor:
        """Fuse projected encodings with those of positions, see :meth:`forward`."""
        if positions is not None and position_encodings is not None:
            if self.sequential is not None:
                position_encodings = self.sequential(position_encodings)
            encoded = encoded + embedding(positions, position_encodings)
        return encoded.tanh() if self.structural is not None else encoded
