"""What data a copying model can learn from."""

from __future__ import annotations

from typing import Any

import numpy as np
from fairseq.data import indexed_dataset

from fairseq_phrase.errors import UserError
from fairseq_phrase.store.indexed import IndexedReader

_SENTENCES = 1 << 16  # read at a time


def refuse_unknown_words(text: str, dictionary: Any) -> None:
    """Check that a training text has no unknown words, which a copying model would learn to write.

    Args:
        text: the path of the binarized target text, without ``.bin`` and ``.idx``.
        dictionary: the target dictionary, which has no slots for unknown words.

    Raises:
        UserError: the text has one.
    """
    if indexed_dataset.infer_dataset_impl(text) != "mmap":
        return  # fairseq's older formats, which cannot be read at once
    reader = IndexedReader(text)
    for first in range(0, len(reader), _SENTENCES):
        last = min(first + _SENTENCES, len(reader))
        values = reader.between(first, last)
        slots = np.flatnonzero(values == dictionary.unk())
        if len(slots):
            ends = reader.sizes[first:last].cumsum()
            sentence = first + int(np.searchsorted(ends, slots[0], side="right")) + 1
            raise UserError(
                f"--copy: sentence {sentence} of {text} has an unknown word, so the model would learn to "
                f"write {dictionary.unk_word}: make the data again by fairseq-phrase-preprocess with "
                "--copy-words 20 --joined-dictionary, which gives unknown words of the source entries "
                "that can be copied"
            )
