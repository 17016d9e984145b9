"""Words and the text that they spell; surface tokens of several words: German ``zum`` is ``zu dem``."""

from __future__ import annotations

import itertools
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache

import numpy as np

from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import Edge, Expansion, ParsedSentence, join_white_space
from fairseq_phrase.syntax.spellings import cannot_begin, continuations, fold, is_optional_mark


def ends_in_text(words: Sequence[str], text: str) -> list[int]:
    """Find where words end in the text that they spell, as :class:`TextReader` compares them.

    Raises:
        ValueError: the words do not spell the text.
    """
    reader = TextReader(text)
    ends = []
    for number, word in enumerate(words, start=1):
        if reader.take(word) is None:
            next_text = reader.rest[: len(word) + 10] or "the end of the line"
            raise ValueError(f"word {number} is '{word}', and the text has '{next_text}' there")
        ends.append(reader.end)
    if remainder := reader.rest:
        raise ValueError(f"the text goes on after the last word: '{remainder.strip()[:60]}'")
    return ends


def forms_in_text(words: Sequence[str], text: str) -> list[str]:
    """Return the words in the text's forms, with the white space before each."""
    ends = ends_in_text(words, text)
    return [text[start:end] for start, end in itertools.pairwise([0, *ends])]


class TextReader:
    """Finds words in the text that they spell, one after the other.

    This class alone compares a text with a parser's words. It ignores invisible characters and ``▁``. It
    also ignores the differences that :mod:`fairseq_phrase.syntax.spellings` lists: lower-cased text, and
    text that a tokenizer, treebank or subword model has normalized. ``_`` within a word is equal to white
    space.

    Attributes:
        end: the offset after the last word.
        space_before: whether white space (or the line's start) precedes the last word.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self.end = 0
        self.space_before = True

    @cached_property
    def _compared(self) -> tuple[str, list[int]]:
        return fold(self._text)

    @property
    def rest(self) -> str:
        """The text from the next visible character to the end."""
        remainder = self._text[self.end :]
        return self._text[self._next_visible() :] if remainder.strip() else ""

    def take(self, word: str) -> str | None:
        """Go past a word.

        Returns:
            The text's form of the word if it is next in the text, else None.
        """
        start = self.end
        while start < len(self._text) and self._text[start].isspace():
            start += 1
        end = start + len(word)
        if not self._text.startswith(word, start):
            if start < len(self._text) and cannot_begin(word[:1], self._text[start]):
                return None
            start = self._next_visible()
            end_of_word = self._end_of(word, start)
            if end_of_word is None:
                return None
            start, end = self._with_ignored(word, start, end_of_word)
        while start < end and self._is_ignored_mark(end):
            end += 1
        self.space_before = start > self.end or start == 0
        self.end = end
        return self._text[start:end].strip() or word

    def _next_visible(self) -> int:
        """Return the offset of the next character that is compared."""
        _, counts = self._compared
        return bisect_right(counts, counts[self.end]) - 1

    def _end_of(self, word: str, start: int) -> int | None:
        """Find the end of a word that begins at an offset; None if the text has another word there."""
        text, counts = self._compared
        folded, _ = _folded_word(word)
        if not folded:
            return start
        first = counts[start]
        agenda = [(len(folded), first + len(folded))] if text.startswith(folded, first) else []
        agenda.insert(0, (0, first))
        reached = set(agenda)
        while agenda:
            at, offset = agenda.pop()
            if at < len(folded):
                steps = [
                    step
                    for step in continuations(folded, at, text, offset)
                    if step not in reached and self._adjoin(offset, step[1])
                ]
                if folded[at] == "_" and 0 < at < len(folded) - 1 and self._is_spaced(offset):
                    steps.append((at + 1, offset))
                reached.update(steps)
                agenda.extend(reversed(steps))
            elif counts[end := bisect_left(counts, offset)] == offset:  # not within a ligature
                return end
        return None

    def _adjoin(self, start: int, end: int) -> bool:
        """Whether no ignored character is between compared characters: ``- -`` is not a dash."""
        _, counts = self._compared
        return bisect_left(counts, end) - bisect_right(counts, start) + 1 <= end - start

    def _is_ignored_mark(self, offset: int) -> bool:
        """Whether a mark over the letter before it is not compared."""
        mark = self._text[offset : offset + 1]
        if not mark or not (is_optional_mark(mark) or unicodedata.category(mark) == "Mn"):
            return False
        _, counts = self._compared
        return counts[offset + 1] == counts[offset]

    def _is_spaced(self, offset: int) -> bool:
        """Whether white space precedes a compared character."""
        _, counts = self._compared
        before = self._text[bisect_left(counts, offset) : bisect_right(counts, offset) - 1]
        return any(map(str.isspace, before))

    def _with_ignored(self, word: str, start: int, end: int) -> tuple[int, int]:
        """Extend a word by the ignored characters around it that the text also has."""
        form, counts = _folded_word(word)
        if len(form) == len(word):
            return start, end
        first, last = bisect_right(counts, 0) - 1, bisect_left(counts, counts[-1])
        before, after = word[:first], word[last:]
        if self._text.endswith(before, self.end, start):
            start -= len(before)
        return start, end + len(after) if self._text.startswith(after, end) else end


_folded_word = lru_cache(maxsize=1 << 12)(fold)


def words_of_token(
    words: Sequence[str], token: str, form: str
) -> tuple[list[str], list[Expansion]]:
    """Return the words of a surface token in the text's form, where the text has one.

    Args:
        words: the parser's words for the token.
        token: the token as the parser writes it.
        form: the token in the text.

    Returns:
        The words. If they spell the token, they have the text's own characters. Otherwise they are
        changed as the text changes the token (lower case, NFC), and also returned as an expansion.
    """
    if len(words) == 1:
        return [join_white_space(form) or "_"], []
    try:
        forms = forms_in_text(words, form)
    except ValueError:
        changed = [join_white_space(word) or "_" for word in _changed_alike(words, token, form)]
        return changed, [Expansion(form, tuple(changed))]
    return [
        join_white_space(form_of_word) or word
        for form_of_word, word in zip(forms, words, strict=True)
    ], []


def _turkish_lower(text: str) -> str:
    return text.replace("I", "ı").replace("İ", "i").lower()


_CASES: tuple[Callable[[str], str], ...] = (str, str.lower, _turkish_lower, str.upper)
_FORMS: tuple[Callable[[str], str], ...] = (
    str,
    lambda text: unicodedata.normalize("NFC", text),
    lambda text: unicodedata.normalize("NFD", text),
)


def _changed_alike(words: Sequence[str], token: str, form: str) -> list[str]:
    """Change words as a text changes their token, if the change is a known one."""
    for case, normal in itertools.product(_CASES, _FORMS):
        if normal(case(token)) == form:
            return [normal(case(word)) for word in words]
    return list(words)


def merged_into_tokens(
    sentence: ParsedSentence, sizes: Sequence[int], forms: list[str], space_before: list[bool]
) -> ParsedSentence:
    """Replace words by the surface tokens that contain them.

    A token takes the place of the highest of its words in the dependency tree (the first, if several are
    highest or there is no tree). It has that word's head, relation, tag and constituents, and the
    dependents of all its words. Edges of graphs between words of one token are lost.

    Args:
        sizes: the number of words of each token.
        forms, space_before: the tokens' forms, and whether a space precedes each.
    """
    tree, count = sentence.tree, len(sentence.words)
    depths = [0] * count if tree is None else tree.depths.tolist()
    ends = list(itertools.accumulate(sizes))
    tokens = [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    highest = [min(words, key=depths.__getitem__) for words in tokens]
    owner = np.repeat(np.arange(len(sizes)), sizes)
    graphs, lost = {}, 0
    for name, graph in sentence.edges.items():
        edges = [e for e in graph if e.head == e.dependent or owner[e.head] != owner[e.dependent]]
        moved = (Edge(int(owner[e.head]), int(owner[e.dependent]), e.label) for e in edges)
        graphs[name] = sorted(set(moved))
        lost += len(graph) - len(edges)
    keep = np.zeros(count, dtype=bool)
    keep[highest] = True
    return ParsedSentence(
        forms,
        space_before,
        # The head of a token's highest word is higher, so it belongs to another token. There is no cycle.
        tree=None
        if tree is None
        else DependencyTree(owner[tree.heads[highest]] if highest else []),
        deprels=[sentence.deprels[word] for word in highest] if sentence.deprels else [],
        tags=[sentence.tags[word] for word in highest] if sentence.tags else [],
        constituents=None
        if sentence.constituents is None
        else sentence.constituents.restricted_to(keep),
        features={
            name: [labels[word] for word in highest] for name, labels in sentence.features.items()
        },
        edges=graphs,
        lost_edges=sentence.lost_edges + lost,
    )
