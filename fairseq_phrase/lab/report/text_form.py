"""Whether a reference and outputs are tokenized and lower-cased alike."""

from __future__ import annotations

import re
from collections.abc import Sequence

# A mark after a word, with the space between them. French has spaces before other marks.
_MARK = re.compile(r"[^\W\d_](\s?)[.,。，、](?=\s|$)")
_FEW = 10  # marks or lines; fewer are not reliable
_MOST, _ALMOST_NONE = 0.9, 0.1  # shares of a text's marks that are separate from words
_OFTEN, _NEVER = 0.5, 0.01  # shares of a text's lines with capital letters
_COMMON = 0.3  # share of the reference's pairs of letters that outputs must have to be judged


def form_differences(outputs: Sequence[str], references: Sequence[str]) -> list[str]:
    """Name the differences between the form of a reference and the form of outputs.

    One text must have the form nearly everywhere, and the other nearly nowhere. After few updates, a
    model writes so few words that their form is unknown.

    Args:
        outputs: a system's outputs.
        references: the lines of the reference.

    Returns:
        ``tokenized``, ``lower-cased``, ``not tokenized``, ``not lower-cased``: each holds of the
        reference, and not of the outputs.
    """
    reference_pairs, output_pairs = _letter_pairs(references), _letter_pairs(outputs)
    if len(reference_pairs & output_pairs) < _COMMON * len(reference_pairs):
        return []
    forms = []
    for form, measure in (("tokenized", _is_tokenized), ("lower-cased", _is_lower_cased)):
        pair = measure(references), measure(outputs)
        if pair == (True, False):
            forms.append(form)
        elif pair == (False, True):
            forms.append(f"not {form}")
    return forms


def _letter_pairs(lines: Sequence[str]) -> set[str]:
    """Return the pairs of neighbouring letters, without case, spaces and marks."""
    texts = (re.sub(r"[\W\d_]+", "", line).casefold() for line in lines)
    return {text[at : at + 2] for text in texts for at in range(len(text) - 1)}


def _is_tokenized(lines: Sequence[str]) -> bool | None:
    """Return whether marks are separate from words; None if the text does not decide it."""
    apart = [bool(between) for line in lines for between in _MARK.findall(line)]
    share = sum(apart) / max(1, len(apart))
    if len(apart) < _FEW or _ALMOST_NONE < share < _MOST:
        return None
    return share >= _MOST


def _is_lower_cased(lines: Sequence[str]) -> bool | None:
    """Return whether no line has a capital letter; None if the text does not decide it."""
    cased = [line for line in lines if line.lower() != line.upper()]
    share = sum(line != line.lower() for line in cased) / max(1, len(cased))
    if len(cased) < _FEW or _NEVER < share < _OFTEN:
        return None
    return share <= _NEVER
