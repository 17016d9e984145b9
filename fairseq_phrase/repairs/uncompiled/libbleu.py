"""The counts of BLEU, the same as those of fairseq's compiled module of this name.

``fairseq.scoring.bleu`` imports this module in order to load its file as a C library. Imported by that
name, it gives fairseq a library of its functions.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from types import SimpleNamespace
from typing import Any

from fairseq.scoring import bleu


def bleu_zero_init(stat: Any) -> None:
    """Set all counts to 0. ``stat`` is a reference to a ``BleuStat``, as in all functions here."""
    for name, _ in stat._obj._fields_:
        setattr(stat._obj, name, 0)


def bleu_one_init(stat: Any) -> None:
    """Set all counts to 0, but those of two to four words to 1."""
    bleu_zero_init(stat)
    for order in (2, 3, 4):
        setattr(stat._obj, f"match{order}", 1)
        setattr(stat._obj, f"count{order}", 1)


def bleu_add(
    stat: Any,
    reflen: ctypes.c_size_t,
    ref: ctypes.c_void_p,
    predlen: ctypes.c_size_t,
    pred: ctypes.c_void_p,
    pad: ctypes.c_int,
    eos: ctypes.c_int,
) -> None:
    """Add a reference and a prediction, each the address of 32-bit integers and their number."""
    counts = stat._obj
    reference = _trimmed(_integers(ref, reflen), pad.value, eos.value)
    prediction = _trimmed(_integers(pred, predlen), pad.value, eos.value)
    counts.reflen += len(reference)
    counts.predlen += len(prediction)
    for order in (1, 2, 3, 4):
        predicted = _ngrams(prediction, order)
        correct = predicted & _ngrams(reference, order)
        for field, ngrams in ((f"count{order}", predicted), (f"match{order}", correct)):
            setattr(counts, field, getattr(counts, field) + sum(ngrams.values()))


def _integers(address: ctypes.c_void_p, length: ctypes.c_size_t) -> list[int]:
    return ctypes.cast(address, ctypes.POINTER(ctypes.c_int))[: length.value]


def _trimmed(sentence: list[int], pad: int, eos: int) -> list[int]:
    """Remove padding before a sentence, and padding and ends after it, but not its last token."""
    start, end = 0, len(sentence)
    while start < end and sentence[start] == pad:
        start += 1
    while end > start + 1 and sentence[end - 1] in (pad, eos):
        end -= 1
    return sentence[start:end]


def _ngrams(sentence: list[int], order: int) -> Counter[tuple[int, ...]]:
    return Counter(zip(*(sentence[first:] for first in range(order)), strict=False))


if __name__ == "fairseq.libbleu":
    functions = SimpleNamespace(
        bleu_zero_init=bleu_zero_init, bleu_one_init=bleu_one_init, bleu_add=bleu_add
    )
    loader = SimpleNamespace(LoadLibrary=lambda file: functions)
    bleu.ctypes = SimpleNamespace(**{**vars(ctypes), "cdll": loader})
