"""Checks that two texts are the same test set; their tokenization may differ."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from fairseq_phrase.errors import UserError
from fairseq_phrase.report.generation import Generation

# Lines agree if they share this part of their pairs of letters. Texts agree if this part of their lines
# agrees. The threshold is below 1 because fairseq may print unknown words or escapes of a tokenizer.
_COMMON_PAIRS = 0.5
_COMMON_LINES = 0.8
_MARKS = re.compile(r"▁|@@ |<+unk>+|[\W_]")


def check_same_test_set(path: Path, generation: Generation, references: Sequence[str]) -> None:
    """Check that translations and references belong to one test set.

    Args:
        path: the file with the translations, for the message.
        generation: the translations, with fairseq's references if it printed them.
        references: the raw references for the scores.

    Raises:
        UserError: the numbers of lines differ, or fairseq's references are another text.
    """
    count = len(generation.hypotheses)
    if count != len(references):
        raise UserError(
            f"{path} has {count} translations and the reference {len(references)} lines: they do "
            "not belong to the same test set"
        )
    index = different_line(generation.targets, references)
    if index is not None:
        raise UserError(
            f"{path} is the translation of another test set than the reference: sentence {index} should "
            f"become '{_cut(generation.targets[index])}', the reference has "
            f"'{_cut(references[index])}'"
        )


def check_same_sources(outputs: Sequence[tuple[Path, Generation]]) -> None:
    """Check that all translations have the same sources.

    Args:
        outputs: translations and their files.

    Raises:
        UserError: two of them have different sources.
    """
    first_path, first = outputs[0]
    for path, generation in outputs[1:]:
        index = different_line(first.sources, generation.sources)
        if index is not None:
            raise UserError(
                f"{first_path} and {path} have different test sets: sentence {index} is "
                f"'{_cut(first.sources[index])}' and '{_cut(generation.sources[index])}'"
            )


def different_line(lines: Sequence[str], others: Sequence[str]) -> int | None:
    """Compare two texts loosely.

    Args:
        lines: a text.
        others: another text with the same number of lines; lines that are empty in either are ignored.

    Returns:
        The first line that differs, from 0, if the texts are not the same; None if they are.
    """
    pairs = [
        (index, line, other)
        for index, (line, other) in enumerate(zip(lines, others, strict=True))
        if line and other
    ]
    different = [index for index, line, other in pairs if not lines_agree(line, other)]
    if len(different) > (1 - _COMMON_LINES) * len(pairs):
        return different[0]
    return None


def lines_agree(line: str, other: str) -> bool:
    """Return whether two lines have mostly the same letters in the same order."""
    first, second = _letters(line), _letters(other)
    if first == second:
        return True
    pairs, other_pairs = (
        {text[start : start + 2] for start in range(len(text) - 1)} for text in (first, second)
    )
    total = len(pairs) + len(other_pairs)
    return total > 0 and 2 * len(pairs & other_pairs) >= _COMMON_PAIRS * total


def _letters(line: str) -> str:
    return _MARKS.sub("", unicodedata.normalize("NFKC", html.unescape(line)).casefold())


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"
