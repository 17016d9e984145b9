"""Eigenvectors of the Laplacians of dependency trees, as positions of words.

The magnetic Laplacian of a directed graph (Furutani et al. 2020), with the symmetric adjacency A_s and
the number q, is ``L = D - A_s ⊙ exp(iΘ)``, ``Θ_ij = 2πq (A_ij - A_ji)``, where A is 1 from a head to a
dependent. q = 0 gives the ordinary Laplacian. A tree has no cycles, so q does not change its eigenvalues,
and multiplies the eigenvectors by ``exp(-2πiq · depth)``; they are computed from the real Laplacian.

*Decisions*: symmetric trees have equal eigenvalues, whose eigenvectors are not determined; edges of later
words have slightly larger weights, 1 to 1.1, which determines all but the signs. The first word's entry
is not negative before the phases, and the root's phase is 0. Of several roots, later ones depend on the
first.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from fairseq_phrase.methods.common.tree_positions import TreePositions

#: Eigenvalues of padded words: larger than all eigenvalues of a tree, which are at most its weights' sum.
_PADDING = 1e6


def tree_spectrum(
    words: Tensor, heads: Tensor, count: int, q: float = 0.0, first: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the eigenvectors of the smallest eigenvalues, for the words of a batch.

    Args:
        words: 0-based index of the word each token belongs to, -1 at tokens outside words and at padding.
            Shape: (batch, tokens), int64
        heads: 0-based index of each word's head; a root is its own head; -1 is padding.
            Shape: (batch, words), int64
        count: the number of eigenvectors; those that a small tree lacks are 0, with the eigenvalue 1.
        q: the phase of an edge, in turns.
        first: the number of smallest eigenvalues to leave out; the first eigenvector is constant.

    Returns:
        The real and the imaginary part of each token's entries, 0 outside words (shape of each: (batch,
        tokens, count)), and the eigenvalues (shape (batch, 1, count)), of double precision.
    """
    tree = TreePositions(words, heads, words < 0)
    number = torch.arange(tree.heads.size(1), device=words.device)
    is_word = pad(heads, (0, tree.heads.size(1) - heads.size(1)), value=-1) >= 0
    weight = 1 + 0.1 * number.double() / (number + 10)
    edges = torch.zeros(*is_word.shape, len(number), dtype=torch.float64, device=words.device)
    edges.scatter_(2, tree.heads[..., None], weight.expand_as(is_word)[..., None])
    edges = edges.masked_fill(number[:, None] == number, 0.0)
    edges = edges + edges.mT
    degrees = edges.sum(2).where(is_word, _PADDING + number)
    values, vectors = torch.linalg.eigh(torch.diag_embed(degrees) - edges)
    columns = slice(first, first + count)
    index = torch.arange(len(number) + columns.stop, device=words.device)[columns]
    is_missing = index >= is_word.sum(1, keepdim=True)
    values, vectors = (pad(x, (0, columns.stop))[..., columns] for x in (values, vectors))
    vectors = vectors.masked_fill(is_missing[:, None], 0.0)
    vectors = vectors * torch.where(vectors[:, :1] < 0, -1.0, 1.0)
    of_tokens = vectors.gather(1, tree.word[..., None].expand(-1, -1, count))
    phase = -2 * math.pi * q * tree.depths[..., None]
    of_tokens = of_tokens * tree.is_word[..., None]
    real, imaginary = of_tokens * phase.cos(), of_tokens * phase.sin()
    return real, imaginary, values.masked_fill(is_missing, 1.0)[:, None]
