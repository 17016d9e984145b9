"""Unknown source words, which a model may copy: their slots in dictionaries, and their files.

A dictionary for copying has N entries ``<copy1>``, ``<copy2>``, …, its *slots*. In a sentence pair, the
first unknown source word gets the first slot, and so does each word equal to it, on both sides. A file
next to the source text has the words, as UTF-8 with spaces between them. They can then be written back
into a translation.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from fairseq_phrase.data.store.indexed import IndexedReader


def slot(number: int) -> str:
    """Return the dictionary's entry of a slot, from 1."""
    return f"<copy{number}>"


@cache
def _is_place(entry: str) -> bool:
    return entry.startswith("<copy") and entry[5:-1].isdigit() and entry.endswith(">")


def number_of_slots(indices: Mapping[str, int]) -> int:
    """Return the number of slots among the entries of a dictionary."""
    number = 0
    while slot(number + 1) in indices:
        number += 1
    return number


def number_unknown(
    subwords: Iterable[str], indices: Mapping[str, int], slots: int, words: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Replace unknown words by their slots.

    Args:
        indices: the index of each entry of the dictionary.
        words: words that already have slots: for a target, its source sentence's words.

    Returns:
        The sentence with slots, in which unknown words beyond the last slot stay unchanged; and the words
        that have slots, in order.

    Examples:
        >>> indices = {"the": 4, "is": 5}
        >>> source, words = number_unknown("the Xu is the Qi".split(), indices, slots=9)
        >>> source, words
        (['the', '<copy1>', 'is', 'the', '<copy2>'], ['Xu', 'Qi'])
        >>> number_unknown("Qi is Lu".split(), indices, slots=0, words=words)[0]
        ['<copy2>', 'is', 'Lu']
    """
    numbers = {word: number for number, word in enumerate(words, start=1)}
    numbered = []
    for subword in subwords:
        # In a text, the entry of a slot is an unknown word.
        if subword not in indices or _is_place(subword):
            if subword not in numbers and len(numbers) < slots:
                numbers[subword] = len(numbers) + 1
            if subword in numbers:
                subword = slot(numbers[subword])
            elif _is_place(subword):
                subword = "<unk>"
        numbered.append(subword)
    return numbered, list(numbers)


def copied_path(text: str | os.PathLike[str]) -> Path:
    """Return the path of the files of words, without ``.bin`` and ``.idx``.

    Args:
        text: the path of the binarized source text, also without ``.bin`` and ``.idx``.
    """
    return Path(f"{text}.copied")


def stored(words: Sequence[str]) -> np.ndarray:
    """Return a sentence's words as stored in the file. Shape: ``(bytes,)``, uint8."""
    return np.frombuffer(" ".join(words).encode(), dtype=np.uint8)


class CopiedWords:
    """The words of a split's sentences, read on access.

    Args:
        text: as in :func:`copied_path`.

    Raises:
        UserError: the files are missing or damaged.
    """

    def __init__(self, text: str | os.PathLike[str]):
        self._reader = IndexedReader(copied_path(text))

    @staticmethod
    def exist(text: str | os.PathLike[str]) -> bool:
        """Return whether these files exist."""
        return Path(f"{copied_path(text)}.idx").is_file()

    def __len__(self) -> int:
        return len(self._reader)

    def __getitem__(self, index: int) -> list[str]:
        """Return the words of a sentence, in the order of their slots."""
        return self._reader[index].astype(np.uint8).tobytes().decode().split()
