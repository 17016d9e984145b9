"""Parsed sentences to encoded sentences: the subwords of each word, and trees over the words.

Either a parser's words are segmented one by one, and the word of every subword is known; or a line was
segmented before it is parsed, and the words are found in its subwords by characters.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate, chain, pairwise
from operator import itemgetter

import numpy as np

from fairseq_phrase.data.subwords.protected_tokens import Segmenter, Token
from fairseq_phrase.data.subwords.segmented_lines import SegmentedLine
from fairseq_phrase.data.subwords.segmenters import segment_words
from fairseq_phrase.parsers import Unparsed
from fairseq_phrase.parsers.interfaces import flat, split_at_white_space
from fairseq_phrase.parsers.pipeline import Parse
from fairseq_phrase.syntax.alignment import TextReader
from fairseq_phrase.syntax.brackets import NO_TAG
from fairseq_phrase.syntax.sentence import EncodedSentence, ParsedSentence


def encode_sentence(
    sentence: ParsedSentence, segmenter: Segmenter, tokens: Sequence[Token] = (), text: str = ""
) -> EncodedSentence:
    """Segment a sentence's words (:func:`encode_words`).

    Args:
        tokens: the protected tokens that :meth:`ProtectedTokens.separate` removed from the line.
        text: the line without them.
    """
    if not tokens:
        return encode_words(sentence, segment_words(marked_words(sentence), segmenter))
    words, space_before = sentence.words, sentence.space_before
    slots = _slots_of(sentence, tokens, text)
    # A token within a word divides it: its parts are segmented separately.
    bounds = sorted({(number, 0) for number in range(len(words) + 1)}.union(slots))
    parts = [
        ("▁" if space_before[word] and not start else "")
        + words[word][start : end if word == end_word else None]
        for (word, start), (end_word, end) in pairwise(bounds)
    ]
    segmented = segment_words(parts, segmenter)
    subwords: list[list[str]] = [[] for _ in words]
    for (word, _), part in zip(bounds, segmented, strict=False):
        subwords[word] += part
    index_of = dict(zip(bounds, [0, *accumulate(map(len, segmented))], strict=True))
    inserted = [(index_of[slot], token.token) for slot, token in zip(slots, tokens, strict=True)]
    return encode_words(sentence, subwords).with_tokens(inserted)


def _slots_of(
    sentence: ParsedSentence, tokens: Sequence[Token], text: str
) -> list[tuple[int, int]]:
    """Find the word that contains or follows each protected token, and its characters before that."""
    spans = _spans_in_text(sentence, text)
    if spans is None:
        return [_slot_by_white_space(sentence, token) for token in tokens]
    spans.append((len(text), len(text) + 1))
    slots = []
    for token in tokens:
        word = bisect_right(spans, token.offset, key=itemgetter(1))
        slots.append((word, max(0, token.offset - spans[word][0])))
    return slots


def _spans_in_text(sentence: ParsedSentence, text: str) -> list[tuple[int, int]] | None:
    """Find where each word starts and ends in the text; None if the words do not spell it.

    Words that the text does not spell (``zu dem`` for ``zum``) start and end where their token ends.
    """
    reader, words, expansions = TextReader(text), sentence.words, [*sentence.expansions]
    spans: list[tuple[int, int]] = []
    while len(spans) < len(words):
        several = expansions[0].words if expansions else ()
        following = words[len(spans) : len(spans) + len(several)]
        if several and tuple(following) == several and reader.take(expansions[0].token) is not None:
            spans += [(reader.end, reader.end)] * len(several)
            del expansions[0]
            continue
        word = words[len(spans)]
        if (form := reader.take(word)) is None or len(form) != len(word):
            return None
        spans.append((reader.end - len(form), reader.end))
    return spans


def _slot_by_white_space(sentence: ParsedSentence, token: Token) -> tuple[int, int]:
    """Find a token's word and characters by the number of words at white space before it."""
    starts = [n for n, space in enumerate(sentence.space_before) if space or not n]
    starts += [len(sentence.words)] * (token.words + 2 - len(starts))
    word, last = starts[token.words : token.words + 2]
    offset = token.characters
    while offset and word < last:
        length = len(sentence.words[word])
        if offset < length:
            return word, offset
        word, offset = word + 1, offset - length
    return word, 0


def marked_words(sentence: ParsedSentence) -> list[str]:
    """Return the words, with ``▁`` in front of words after white space."""
    return [
        "▁" + word if space else word
        for word, space in zip(sentence.words, sentence.space_before, strict=True)
    ]


def encode_words(sentence: ParsedSentence, subwords: Sequence[Sequence[str]]) -> EncodedSentence:
    """Encode a sentence with segmented words.

    Unary chains of constituents are collapsed. A word of several subwords becomes a constituent with its
    part of speech as the label; it is below other constituents over the same word
    (``docs/models/tree_attention.md``, "Trees"). A word without subwords (for example, a zero-width
    space) is removed from the trees, with its edges in graphs; every word then has a subword.
    """
    if not all(subwords):
        sentence = sentence.restricted_to(
            np.array([bool(of_word) for of_word in subwords], dtype=bool)
        )
        subwords = [of_word for of_word in subwords if of_word]
    words = words_of_subwords(list(map(len, subwords)))
    constituents = sentence.constituents
    if constituents is not None:
        split = [word for word, of_word in enumerate(subwords) if len(of_word) > 1]
        spans = np.array(split, dtype=np.int64)[:, None] + np.array([0, 1])
        labels = [sentence.tags[word] if sentence.tags else NO_TAG for word in split]
        constituents = constituents.collapsed().with_lower(spans, labels)
    return EncodedSentence(
        list(chain.from_iterable(subwords)),
        words,
        heads=None if sentence.tree is None else sentence.tree.heads,
        deprels=sentence.deprels,
        tags=sentence.tags,
        spans=None if constituents is None else constituents.spans,
        span_labels=[] if constituents is None else constituents.labels,
        features=sentence.features,
        edges=sentence.edges,
        lost_edges=sentence.lost_edges,
    )


def words_of_subwords(subwords_per_word: Sequence[int] | np.ndarray) -> np.ndarray:
    """Number each subword with its word, from 0. Shape: ``(subwords,)``, int64.

    Args:
        subwords_per_word: number of subwords of each word. Shape: ``(words,)``, all at least 1.
    """
    counts = np.asarray(subwords_per_word, dtype=np.int64)
    return np.repeat(np.arange(len(counts)), counts)


def encode_line(
    parse: Parse, line: SegmentedLine, fields: Collection[str]
) -> tuple[EncodedSentence, str | None]:
    """Encode a line that was segmented before it was parsed.

    Args:
        fields: the fields that flat trees must have.

    Returns:
        The sentence, and the error of its parse or None. If the parse does not spell the line, the
        sentence has flat trees over the words between white space.
    """
    if isinstance(parse, Unparsed):
        problem = parse.reason
    else:
        try:
            subwords = line.subwords_of(parse.words)
        except ValueError as error:
            problem = f"its parse is not one of this text: {error}"
        else:
            return encode_words(parse, subwords).with_tokens(line.tokens), None
    sentence = flat(split_at_white_space(line.text), fields)
    encoded = encode_words(sentence, line.subwords_of(sentence.words))
    return encoded.with_tokens(line.tokens), problem
