"""Different spellings of one word in texts, tokenizers and treebanks, and the escapes of Moses.

Letters are compared without case and in compatible Unicode forms (full width, ligatures; NFC and NFD).
Marks and symbols are compared by the tables below.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

#: How treebanks write characters that have a meaning in brackets.
TREEBANK_ESCAPES = {
    "-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}",
    r"\/": "/", r"\*": "*", r"\(": "(", r"\)": ")",
}  # fmt: skip
#: How the Moses tokenizer writes special characters. The last three are from before 2012; Moses' own
#: deescape-special-chars.perl still reads them.
MOSES_ESCAPES = {
    "&apos;": "'", "&quot;": '"', "&lt;": "<", "&gt;": ">", "&#124;": "|", "&#91;": "[", "&#93;": "]",
    "&amp;": "&", "&bar;": "|", "&bra;": "[", "&ket;": "]",
}  # fmt: skip
# Characters that are compared as equal. "ı" and "İ" are included because Turkish and Azerbaijani use
# them for the lower-cased I and the upper-cased i. Normalizers of Arabic, Persian and Urdu replace the
# letters and marks of one language by those of another, and forms of alef, yeh and heh; those of
# Russian replace ё.
_SAME = {
    "'": "‘’‚‛‹›`´ʹʻʼ′‵׳", '"': "“”„‟«»″‶〝〞〟״", "-": "‐‑‒−⁃﹣־", "—": "–―⸺⸻", "/": "⁄∕", "i": "ıİ",
    "\u0627": "\u0671", "\u064a": "\u0649\u06cc", "\u0643": "\u06a9\u06aa",
    "\u0647": "\u0629\u06c1\u06be\u06d5", ",": "\u060c\u066c", ".": "\u066b\u06d4", ";": "\u061b",
    "?": "\u061f", "%": "\u066a", "\u0435": "ёЁ",
}  # fmt: skip
_CHARACTERS = str.maketrans({other: one for one, others in _SAME.items() for other in others})
# CoreNLP: "#" for "£" and "$" for "€"; OntoNotes: -LAB-, -RAB- and -AMP-; treetools: LRB, RRB.
_SPELLINGS = [
    {'"', "''", ",,", "<<", ">>"}, {"—", "--", "---", "-"}, {"£", "#"}, {"€", "$"}, {"¢", "cents"},
    {"<", "-LAB-"}, {">", "-RAB-"}, {"&", "-AMP-"}, {"(", "LRB"}, {")", "RRB"}, {"'", "&#39;"},
    *({one, escape} for escapes in (TREEBANK_ESCAPES, MOSES_ESCAPES) for escape, one in escapes.items()),
]  # fmt: skip
_IGNORED = frozenset("▁\ufffd")
_VARIATIONS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")  # of emoji and ideographs
_ENTITY = re.compile("|".join(map(re.escape, MOSES_ESCAPES)))
# Punctuation between two characters without a space: "@-@" in "well-known".
_SPLIT = re.compile(r"@([-,./:])@")
_TATWEEL = "\N{ARABIC TATWEEL}"
_DOT, _OGONEK = "\N{COMBINING DOT ABOVE}", "\N{COMBINING OGONEK}"
_DIAERESIS = "\N{COMBINING DIAERESIS}"
_IE = "\N{CYRILLIC SMALL LETTER IE}"
_NUKTA = 7  # a canonical combining class


def is_optional_mark(character: str) -> bool:
    """Whether a text may lack a mark that a parser's word has, or the other way round.

    These are vowels and points of Hebrew, Arabic and Syriac, nuktas, and tatweel.
    """
    if character == _TATWEEL or unicodedata.combining(character) == _NUKTA:
        return True
    is_semitic = "\u0590" <= character <= "\u074f" or "\u08a0" <= character <= "\u08ff"
    return is_semitic and unicodedata.category(character) == "Mn"


@lru_cache(maxsize=1 << 16)
def _folded(character: str) -> str:
    """Return the form in which a character is compared; empty if it is ignored."""
    form = unicodedata.normalize("NFKD", character.translate(_CHARACTERS)).casefold()
    return "".join(
        str(unicodedata.decimal(part, part))
        for part in unicodedata.normalize("NFKD", form).translate(_CHARACTERS)
        if not part.isspace()
        and part not in _IGNORED
        and not _VARIATIONS.match(part)
        and unicodedata.category(part) not in ("Cc", "Cf")
        and not is_optional_mark(part)
    )


def fold(text: str) -> tuple[str, list[int]]:
    """Return the form in which a text is compared.

    White space, ``▁``, control characters, format characters, variation selectors and optional marks are
    left out.

    Returns:
        The form, decomposed, and for each offset in the text the number of the form's characters that
        represent the text before it. Shape of the list: ``(characters + 1,)``.
    """
    parts, counts, before = [], [0], ""
    for character in text:
        part = _folded(character)
        # Lower-cased, İ has a combining dot above in most languages, and Ì has one in Lithuanian.
        if (part == _DOT and before in ("i", "j")) or (part == _DIAERESIS and before == _IE):
            part = ""
        parts.append(part)
        counts.append(counts[-1] + len(part))
        if part and part != _OGONEK:
            before = part[-1]
    # Only the order of marks over one letter changes.
    return unicodedata.normalize("NFD", "".join(parts)), counts


def _alternatives() -> dict[str, list[tuple[str, list[str]]]]:
    """Return each spelling in its compared form, by its first character, with the others."""
    other_forms: dict[str, set[str]] = {}
    for spellings in _SPELLINGS:
        forms = {fold(spelling)[0] for spelling in spellings}
        for form in forms:
            other_forms.setdefault(form, set()).update(forms - {form})
    spellings_by_start: dict[str, list[tuple[str, list[str]]]] = {}
    for form in sorted(other_forms, key=len, reverse=True):
        longest_first = sorted(other_forms[form], key=lambda spelling: (-len(spelling), spelling))
        spellings_by_start.setdefault(form[0], []).append((form, longest_first))
    return spellings_by_start


_ALTERNATIVES = _alternatives()


def cannot_begin(word: str, text: str) -> bool:
    """Whether a text with this first character cannot begin with a word; a fast test.

    Args:
        word, text: the first characters of the word and of the text.
    """
    word_start, text_start = _folded(word)[:1], _folded(text)[:1]
    return (
        word_start != text_start
        and word_start.isalnum()
        and text_start.isalnum()
        and word_start not in _ALTERNATIVES
    )


def continuations(word: str, at: int, text: str, start: int) -> Iterable[tuple[int, int]]:
    """Yield the offsets after an equal mark or letter in word and text, the likeliest first.

    Args:
        word, text: in the forms in which they are compared (:func:`fold`).
        at, start: the offset in each.
    """
    if text.startswith(word[at], start):
        yield at + 1, start + 1
    for spelling, alternatives in _ALTERNATIVES.get(word[at], ()):
        if word.startswith(spelling, at):
            for alternative in alternatives:
                if text.startswith(alternative, start):
                    yield at + len(spelling), start + len(alternative)


def unescape_moses(word: str) -> str:
    """Return the text of an escaped word: ``&apos;s`` is ``'s``, ``@-@`` is ``-``.

    A word that was escaped twice is unescaped once.

    Args:
        word: one word of Moses-tokenized text; words without escapes are returned unchanged.
    """
    if (split := _SPLIT.fullmatch(word)) is not None:
        return split[1]
    return _ENTITY.sub(lambda entity: MOSES_ESCAPES[entity[0]], word) if "&" in word else word


def unescaped_offsets(word: str) -> list[int]:
    """Find each character of an escaped word in the result of :func:`unescape_moses`.

    Returns:
        For each of its characters, and for its end, the offset in the result. All characters of an
        escape have the offset of the character that it represents.
    """
    if _SPLIT.fullmatch(word) is not None:
        return [0] * len(word) + [1]
    offsets = list(range(len(word) + 1))
    for entity in _ENTITY.finditer(word):
        start, end = entity.span()
        offsets[start:end] = [offsets[start]] * (end - start)
        offsets[end:] = range(offsets[start] + 1, offsets[start] + 2 + len(word) - end)
    return offsets
