"""Lines that change when they are segmented and joined again. A model cannot generate them."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import NamedTuple

from fairseq_phrase.data.preprocessing.options import SplitCounts
from fairseq_phrase.text import plain_spaces

#: Number of changed lines in a warning.
SHOWN = 3
_CONTEXT = 15  # characters
_NAMED = 3


class Change(NamedTuple):
    """A line before and after segmentation and joining, with single spaces."""

    before: str
    after: str


def change(before: str, after: str) -> Change | None:
    """Compare a line with the text of its subwords; None if they differ only in white space."""
    first, second = (" ".join(plain_spaces(text).split()) for text in (before, after))
    return None if first == second else Change(first, second)


def described(found: Change) -> str:
    """Describe the first difference."""
    before, after = found
    pairs = enumerate(zip_longest(before, after))
    start = next(index for index, (old, new) in pairs if old != new)
    window = slice(start, start + 2 * _CONTEXT)
    matcher = SequenceMatcher(None, before[window], after[window], autojunk=False)
    _, first, last, new_first, new_last = next(
        opcode for opcode in matcher.get_opcodes() if opcode[0] != "equal"
    )
    old = before[start + first : start + last]
    new = after[start + new_first : start + new_last]
    context = before[max(0, start - _CONTEXT) : start + last + _CONTEXT]
    verb = f"{_named(old)} becomes {_named(new) or 'nothing'}" if old else f"{_named(new)} is added"
    return f"{verb} in '{context}'"


def _named(text: str) -> str:
    names = [f"U+{ord(each):04X} {unicodedata.name(each, '')}".strip() for each in text[:_NAMED]]
    return ", ".join([*names, *(["…"] if len(text) > _NAMED else [])])


def warning_of(
    split: str, counts: SplitCounts, shown: Mapping[str, Sequence[str]], advice: str
) -> str:
    """Summarize the changed lines of a split; empty if there are none.

    Args:
        shown: the first changed lines, described, by language.
        advice: the options that keep the text, or empty.
    """
    return "\n".join(
        f"{count} of the {counts.kept} lines of {split}.{language} change when they are cut into "
        f"subwords and joined again, so a model cannot read or write them as they are{advice}:\n  "
        + "\n  ".join(shown[language])
        for language, count in counts.changed.items()
    )
