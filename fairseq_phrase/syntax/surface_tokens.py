"""Surface tokens of several words: German ``zum`` is ``zu dem``."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np

from fairseq_phrase.syntax.alignment import forms_in_text
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import Edge, Expansion, ParsedSentence, join_white_space


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
        own = forms_in_text(words, form)
    except ValueError:
        changed = [join_white_space(word) or "_" for word in _changed_alike(words, token, form)]
        return changed, [Expansion(form, tuple(changed))]
    return [join_white_space(one) or word for one, word in zip(own, words, strict=True)], []


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


def over_tokens(
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
        kept = [e for e in graph if e.head == e.dependent or owner[e.head] != owner[e.dependent]]
        moved = (Edge(int(owner[e.head]), int(owner[e.dependent]), e.label) for e in kept)
        graphs[name] = sorted(set(moved))
        lost += len(graph) - len(kept)
    keep = np.zeros(count, dtype=bool)
    keep[highest] = True
    return ParsedSentence(
        forms,
        space_before,
        # The head of a token's highest word is higher, so it belongs to another token. There is no cycle.
        None if tree is None else DependencyTree(owner[tree.heads[highest]] if highest else []),
        [sentence.deprels[word] for word in highest] if sentence.deprels else [],
        [sentence.tags[word] for word in highest] if sentence.tags else [],
        None if sentence.constituents is None else sentence.constituents.restricted_to(keep),
        {name: [labels[word] for word in highest] for name, labels in sentence.features.items()},
        graphs,
        sentence.lost_edges + lost,
    )
