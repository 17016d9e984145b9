"""The path from the root to each word as its position.

Source: Shiv and Quirk 2019, *Novel Positional Encodings to Enable Tree-Based Transformers*, section 3;
``docs/models/structural_positions.md``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.methods.common.tensors import may_read
from fairseq_phrase.methods.common.tree_positions import DepthEncoding, TreePositions


def token_paths(levels: int, branches: int, src_tokens: Tensor, parse: ParseBatch) -> list[Any]:
    """Compute the path of each token's word, the step to the word first.

    A step is the number of the word's earlier siblings, at most ``branches - 1``. Of a longer path the
    last steps are kept, as in the paper. *Decision*: a token outside words has the root's path, which is
    empty.

    Args:
        levels: the most steps of a path.
        branches: the number of different steps.
        src_tokens: not used.

    Returns:
        The steps, -1 above the root (shape (batch, tokens, levels), int64); the number of words whose
        path is too long, and of words with too many earlier siblings; 0 where counting would wait for the
        device.
    """
    words = parse["words"]
    tree = TreePositions(words, parse["heads"], words < 0)
    order = torch.arange(tree.heads.size(1), device=words.device)
    is_root = tree.heads == order  # or padding
    siblings = (tree.heads[:, :, None] == tree.heads[:, None]) & ~is_root[:, None]
    branch = (siblings & (order < order[:, None])).sum(2)
    step = branch.clamp(max=branches - 1).masked_fill(is_root, -1)
    word, steps = tree.word, []
    for _ in range(levels):
        steps.append(step.gather(1, word).where(tree.is_word, -1))
        word = tree.heads.gather(1, word)
    counts = [0, 0]
    if may_read(words):
        clipped = tree.word_depths > levels, (branch >= branches) & ~is_root
        counts = [int(mask.sum()) for mask in clipped]
    return [torch.stack(steps, 2), *counts]


class PathEncoding(DepthEncoding):
    """The encoding of paths, fused with the encoding of positions in the sentence as depths are.

    A path is a stack of one-hot vectors, one per level. There are as many copies of it as the width
    allows, copy m with its own p_m. The step l levels above the word is multiplied by
    p_m^l · √((1 - p_m²) · d / 2), so that the copies' sizes do not depend on p. *Decision*: p = tanh of a
    parameter, which starts uniformly between 0.7 and 0.999; the columns that are left are 0.

    Args:
        levels, branches: see :func:`token_paths`.
        fusion, neutral: see :class:`DepthEncoding`.

    Raises:
        ValueError: the width is too small for one copy.
    """

    def __init__(
        self,
        width: int,
        levels: int,
        branches: int,
        fusion: str | None = None,
        neutral: bool = False,
    ) -> None:
        super().__init__(width, 0, fusion, neutral)
        if width < levels * branches:
            raise ValueError(f"width {width} is less than {levels} levels of {branches} branches")
        self.width, self.branches = width, branches
        self.decay = nn.Parameter(torch.empty(width // (levels * branches)).uniform_(0.7, 0.999))

    def forward(
        self,
        depths: Tensor,
        max_depth: int,
        positions: Tensor | None = None,
        position_encodings: Tensor | None = None,
    ) -> Tensor:
        """Encode paths, and positions in the sentence if given. Shape: (batch, tokens, width).

        Args:
            depths: paths, from :func:`token_paths`. Shape: (batch, tokens, levels), int64
            max_depth: not used.
            positions, position_encodings: see :class:`DepthEncoding`.
        """
        p = self.decay.tanh()
        level = torch.arange(depths.size(2), device=depths.device)[:, None]
        factors = p**level * ((1 - p.square()) * (self.width / 2)).sqrt()
        is_branch = depths[..., None] == torch.arange(self.branches, device=depths.device)
        # (batch, tokens, levels, branches, copies)
        stacks = (is_branch.to(factors.dtype)[..., None] * factors[:, None]).flatten(2)
        encodings = pad(stacks, (0, self.width - stacks.size(2)))
        return self.fused(self.projected(encodings), positions, position_encodings)
