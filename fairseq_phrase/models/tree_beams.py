"""What beam search does to sentences: several rows for each, of which some finish early."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["regroup"]


def regroup(new_order: Tensor, sentences: int, beams: int) -> tuple[Tensor | None, int]:
    """Tell how sentences move when rows do, where each sentence has so many rows side by side.

    fairseq's search reorders rows, one for each hypothesis. What belongs to a sentence is the same
    for all its rows, and need be kept only once as long as they stand together.

    Args:
        new_order: the row that each new row was.
            Shape: (new rows,), int64
        sentences: number of sentences.
        beams: rows of each of them.

    Returns:
        The sentence that each new sentence was (shape (new sentences,), int64; None where nothing
        moves), and how many rows each has. Where rows of a sentence do not stand together, every row
        becomes a sentence of its own.
    """
    source = new_order if beams == 1 else new_order // beams
    rows = len(source)
    together = rows // sentences if beams == 1 and rows % sentences == 0 else beams
    if together < 1 or rows % together:
        return source, 1
    groups = source.view(-1, together)
    if bool((groups != groups[:, :1]).any()):
        return source, 1
    chosen = groups[:, 0]
    stays = torch.equal(chosen, torch.arange(sentences, device=chosen.device))
    return None if stays else chosen, together
