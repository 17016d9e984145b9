"""Rows of sentences in beam search: a sentence has several rows, and some finish early."""

from __future__ import annotations

import torch
from torch import Tensor


def regroup(new_order: Tensor, sentences: int, beams: int) -> tuple[Tensor | None, int]:
    """Compute how sentences move when beam search moves their rows.

    fairseq's search reorders rows, one for each hypothesis. Data of a sentence are the same for all its
    rows. They are kept only once, as long as the rows of the sentence are adjacent.

    The host must read the order, and so waits for the device. The encoder's output and every
    layer's cache are reordered by one tensor: the answer is kept with it, and the host waits once a
    step.

    Args:
        new_order: for each new row, the index of the old row. Shape: (new rows,), int64
        sentences: number of sentences.
        beams: number of adjacent rows of each sentence.

    Returns:
        For each new sentence, the index of the old sentence (shape (new sentences,), int64; None if
        nothing moves); and how many rows each has. If the rows of a sentence are not adjacent, every
        row becomes a sentence of its own.
    """
    if new_order.is_inference():  # changes in place are not counted
        return _regroup(new_order, sentences, beams)
    answers = vars(new_order).setdefault("_regrouped", {})
    question = (new_order._version, sentences, beams)
    if question not in answers:
        answers[question] = _regroup(new_order, sentences, beams)
    return answers[question]


def _regroup(new_order: Tensor, sentences: int, beams: int) -> tuple[Tensor | None, int]:
    source = new_order if beams == 1 else new_order // beams
    rows = len(source)
    together = rows // sentences if beams == 1 and rows % sentences == 0 else beams
    if together < 1 or rows % together:
        return source, 1
    groups = source.view(-1, together)
    chosen = groups[:, 0]
    # Whether the rows of each sentence are adjacent, and whether no sentence moves.
    answers = [(groups == groups[:, :1]).all()]
    if len(chosen) == sentences:
        answers.append((chosen == torch.arange(sentences, device=chosen.device)).all())
    stand_together, *stays = torch.stack(answers).tolist()
    if not stand_together:
        return source, 1
    return None if any(stays) else chosen, together
