"""Toy tasks for attention: copying a sequence, leaving out some words, and sorting.

A source of ``copy`` or ``subsample`` is a sequence of distinct letters. The target of ``copy`` is the
source. The target of ``subsample`` is the source without every second letter of the alphabet (b, d, f,
...). Test sequences of ``copy`` are longer than all training sequences.

A source of ``order`` is a sequence of sentences, each with a letter and an hour of the day. The target is
the letters in the order of their hours. A pointer network must find all target words in the source.

Examples:
    >>> rows = list(toy_pairs("subsample", 1, seed=1, shortest=6, longest=6))
    >>> all(letter in rows[0][0].split() for letter in rows[0][1].split())
    True
    >>> ordering_pair({"c": 9, "a": 17, "f": 2})
    ('c at 9 . a at 17 . f at 2 .', 'f c a')
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Mapping
from pathlib import Path

from fairseq_phrase.errors import UserError
from fairseq_phrase.option_values import SYNTHETIC_LANGUAGES
from fairseq_phrase.synthetic.corpus import check_directory, text_files
from fairseq_phrase.text import written_together

LETTERS = string.ascii_lowercase
#: The letters that subsampling keeps: every second one.
KEPT = frozenset(LETTERS[::2])
#: The letters that stay, by task.
STAY = {"copy": frozenset(LETTERS), "subsample": KEPT}
#: Test sequences of copying are longer than all training sequences by 1 to this number of letters.
LONGER = 2


def toy_pairs(
    kind: str, count: int, seed: int | str, shortest: int, longest: int
) -> Iterator[tuple[str, str]]:
    """Draw sources and targets.

    Args:
        kind: ``copy``, ``subsample`` or ``order``.
        shortest: letters of the shortest source.
        longest: letters of the longest source, at most 24.

    Yields:
        Source and target, words separated by spaces. No target is empty.
    """
    rng = random.Random(f"{kind} {seed}")
    drawn = 0
    while drawn < count:
        letters = rng.sample(LETTERS, rng.randint(shortest, longest))
        if kind == "order":
            drawn += 1
            yield ordering_pair(
                dict(zip(letters, rng.sample(range(24), len(letters)), strict=True))
            )
            continue
        target = [letter for letter in letters if letter in STAY[kind]]
        if target:
            drawn += 1
            yield " ".join(letters), " ".join(target)


def ordering_pair(hours: Mapping[str, int]) -> tuple[str, str]:
    """Write the letters with their hours, in the given order, and the letters in the order of time."""
    source = " ".join(f"{letter} at {hour} ." for letter, hour in hours.items())
    return source, " ".join(sorted(hours, key=hours.__getitem__))


def write_toy_task(
    kind: str,
    out: str | Path,
    sizes: Mapping[str, int],
    seed: int,
    max_words: int,
) -> None:
    """Write ``{split}.{language}``.

    Args:
        kind: ``copy``, ``subsample`` or ``order``.
        out: the directory; made if missing.
        seed: the same seed gives the same bytes.
        max_words: letters of the longest source (sentences, of ``order``) in training and validation.

    Raises:
        UserError: sequences would be longer than the alphabet, or the directory holds a corpus.
    """
    if not 1 <= max_words <= len(LETTERS) - LONGER:
        raise UserError(
            f"--max-words {max_words}: sequences of distinct letters have 1 to "
            f"{len(LETTERS) - LONGER}, because those of the test set are up to {LONGER} longer"
        )
    directory = Path(out)
    check_directory(directory, sizes)
    with written_together(directory) as folder, text_files(folder) as file:
        for split, size in sizes.items():
            shortest, longest = 1, max_words
            if kind == "copy" and split == "test":
                shortest, longest = max_words + 1, max_words + LONGER
            for pair in toy_pairs(kind, size, f"{split} {seed}", shortest, longest):
                for language, text in zip(SYNTHETIC_LANGUAGES, pair, strict=True):
                    file(f"{split}.{language}").write(text + "\n")
