"""Rows of sentences in beam search: a sentence has several rows, and some finish early."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["regroup"]


def regroup(new_order: Tensor, sentences: int, beams: int) -> tuple[Tensor | None, int]:
    """Compute how sentences move when beam search moves their rows.

    fairseq's search reorders rows, one for each hypothesis. Data of a sentence are the same for all its
    rows. They are kept only once, as long as the rows of the sentence are adjacent.

    Args:
        new_order: for each new row, the index of the old row.
            Shape: (new rows,), int64
        sentences: number of sentences.
        beams: number of adjacent rows of each sentence.

    Returns:
        For each new sentence, the index of the old sentence (shape (new sentences,), int64; None if
        nothing moves); and how many rows each has. If the rows of a sentence are not adjacent, every
        row becomes a sentence of its own.
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
