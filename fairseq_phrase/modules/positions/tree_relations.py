"""The relations of all pairs of a batch's tokens in their trees and sentences, as small integers.

Source: ``docs/models/tree_relations.md``; after the masks of McDonald and Chiang (2021) and the relative
biases of T5 (Raffel et al. 2020).
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from fairseq_phrase.modules.positions.tree_positions import TreePositions

#: The relation of a key's word to the query's word. Two words at distance 2 are siblings if neither is
#: above the other, so distances begin with 3.
TREE_RELATIONS = (
    "same word",
    "parent",
    "child",
    "sibling",
    *(f"ancestor {distance}" for distance in ("2", "3", "4+")),
    *(f"descendant {distance}" for distance in ("2", "3", "4+")),
    *(f"distance {distance}" for distance in (*map(str, range(3, 9)), "9+")),
    "no word",
)
_PARENT, _CHILD = TREE_RELATIONS.index("parent"), TREE_RELATIONS.index("child")
# For two words one of which is above the other: by the query's depth minus the key's, -4 to 4.
_IN_LINE = (9, 8, 7, _CHILD, 0, _PARENT, 4, 5, 6)
# For two other words: by their distance, up to 9. It is at least 2, and at 2 they are siblings.
_APART = (0, 0, TREE_RELATIONS.index("sibling"), *range(10, 17))
_NO_WORD = TREE_RELATIONS.index("no word")

NUM_BUCKETS, _MAX_DISTANCE = 32, 128


def tree_relations(
    tree: TreePositions, labels: Tensor | None = None, num_labels: int = 0
) -> Tensor:
    """Number the relation of every two tokens' words.

    Subwords have the relations of their word. *Decision*: a token of no word (the end of sentence) has
    the relation "same word" to itself, and all its pairs with other tokens have the relation "no word".

    Args:
        tree: the tokens' trees.
        labels: number of the relation of each word to its head. If given, pairs of parent and child are
            numbered by the dependent's label, after the numbers of :data:`TREE_RELATIONS`: L numbers
            for the parents, then L for the children. Shape: (batch, words), int64
        num_labels: number of labels L.

    Returns:
        For query token i and key token j the relation of j to i; undefined at padding.
        Shape: (batch, tokens, tokens), int64
    """
    device, depths = tree.words.device, tree.word_depths
    distances = tree.word_distances()
    above = depths[:, :, None] - depths[:, None, :]
    in_line = _constant(_IN_LINE, device)[above.clamp(-4, 4) + 4]
    apart = _constant(_APART, device)[distances.clamp(max=9)]
    relations = torch.where(distances == above.abs(), in_line, apart)
    if labels is not None:
        if labels.shape != tree.heads.shape:
            raise ValueError(
                f"labels of shape {tuple(labels.shape)} for heads of {tuple(tree.heads.shape)}"
            )
        first = len(TREE_RELATIONS)
        by_parent = (first + labels)[:, :, None]
        by_child = (first + num_labels + labels)[:, None, :]
        relations = torch.where(relations == _PARENT, by_parent, relations)
        relations = torch.where(relations == _CHILD, by_child, relations)
    relations = tree.for_tokens(relations)
    both_words = tree.is_word[:, :, None] & tree.is_word[:, None, :]
    itself = torch.eye(relations.size(1), dtype=torch.bool, device=device)
    return relations.where(both_words, _NO_WORD).masked_fill_(itself, 0)


@functools.cache
def _constant(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """Copy numbers to a device, once: a copy waits for the device."""
    return torch.tensor(numbers, device=device)


def sentence_buckets(num_tokens: int, device: torch.device | None = None) -> Tensor:
    """Number the signed distances in the sentence, as T5 does.

    Half of the buckets is for keys after the query. In each half, the first 8 buckets are single
    distances; the others grow logarithmically up to 128.

    Args:
        num_tokens: length of the padded batch. Padding on the left moves all tokens alike.
        device: where to make them.

    Returns:
        For query token i and key token j the bucket of j - i. Shape: (1, tokens, tokens), int64
    """
    order = torch.arange(num_tokens, device=device)
    offsets = order[None, :] - order[:, None]
    half = NUM_BUCKETS // 2
    exact = half // 2
    sizes = offsets.abs()
    growth = (sizes.clamp(min=1) / exact).log() / math.log(_MAX_DISTANCE / exact)
    far = (exact + (growth * (half - exact)).long()).clamp(max=half - 1)
    return torch.where(sizes < exact, sizes, far).add(offsets > 0, alpha=half)[None]
