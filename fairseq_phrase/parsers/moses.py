"""Words as the Moses tokenizer escapes them."""

from __future__ import annotations

import re

# The last three are from before 2012; Moses' own deescape-special-chars.perl still reads them.
_ENTITIES = {
    "&apos;": "'",
    "&quot;": '"',
    "&lt;": "<",
    "&gt;": ">",
    "&#124;": "|",
    "&#91;": "[",
    "&#93;": "]",
    "&amp;": "&",
    "&bar;": "|",
    "&bra;": "[",
    "&ket;": "]",
}
_ENTITY = re.compile("|".join(map(re.escape, _ENTITIES)))
# Marks of punctuation that stood between two characters without a space: "@-@" of "well-known".
_SPLIT = re.compile(r"@([-,./:])@")


def unescape_moses(word: str) -> str:
    """Return the text of an escaped word: ``&apos;s`` is ``'s``, ``@-@`` is ``-``.

    What was escaped twice is unescaped once.

    Args:
        word: one word of Moses-tokenized text; others come back as they are.
    """
    if (split := _SPLIT.fullmatch(word)) is not None:
        return split[1]
    return _ENTITY.sub(lambda entity: _ENTITIES[entity[0]], word) if "&" in word else word
