"""Subwords that came before the words: what they spell, and which words they are of."""

from __future__ import annotations

import io
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from subword_nmt.apply_bpe import BPE

from fairseq_phrase.data.subwords.segmented_lines import SegmentedLine
from fairseq_phrase.syntax.sentence import join_white_space
from fairseq_phrase.syntax.spellings import unescape_moses, unescaped_offsets
from tests.support.hostile import lines


def owners_by_characters(subwords, words):
    """The word of each subword: the one that its first character is of, counted out one by one.

    Args:
        subwords: the subwords' texts, without marks and spaces; one without text belongs to the next.
        words: the words' texts, without spaces.
    """
    word_of = [number for number, word in enumerate(words) for _ in word]
    place, owners = 0, []
    for subword in subwords:
        owners.append(word_of[min(place, len(word_of) - 1)])
        place += len(subword)
    return owners


def owners(line, words):
    return [number for number, subwords in enumerate(line.subwords_of(words)) for _ in subwords]


@st.composite
def split_strings(draw, text):
    """A text split at random places into parts."""
    places = draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=12))
    bounds = [0, *sorted(place for place in places if place < len(text)), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


# SentencePiece


@given(st.data(), st.text(st.sampled_from("aß🇩 "), min_size=1, max_size=25))
def test_sentencepieces_go_to_the_word_of_their_first_character(data, text):
    subwords = data.draw(split_strings(text.replace(" ", "▁")))
    line = SegmentedLine.from_sentencepiece(subwords)
    if not text.strip():
        assert line.subwords_of(["▁" * len(text)]) == [subwords]
        return
    assert line.text == text.strip()
    words = [word for word in map(join_white_space, data.draw(split_strings(line.text))) if word]
    expected = owners_by_characters(
        *([part.replace("▁", "") for part in x] for x in (subwords, words))
    )
    assert owners(line, words) == expected
    handed = line.subwords_of(words)
    assert len(handed) == len(words)
    assert [subword for subwords_of_word in handed for subword in subwords_of_word] == subwords


@pytest.mark.parametrize(
    ("subwords", "words", "expected"),
    [
        ("▁Ein ▁H und .", ["Ein", "Hund", "."], [["▁Ein"], ["▁H", "und"], ["."]]),
        ("▁ Ein ▁ Hund", ["Ein", "Hund"], [["▁", "Ein"], ["▁", "Hund"]]),
        ("▁Hu nd. ▁", ["Hund", "."], [["▁Hu", "nd."], ["▁"]]),
        ("▁do n't ▁▁ ...", ["do", "n't", ".", ".", "."], [["▁do"], ["n't"], ["▁▁", "..."], [], []]),
        ("▁New ▁York", ["New▁York"], [["▁New", "▁York"]]),
        ("", [], []),
    ],
)
def test_sentencepieces_of_words(subwords, words, expected):
    assert SegmentedLine.from_sentencepiece(subwords.split()).subwords_of(words) == expected


# subword-nmt


def bpe(merges="a b\nab c</w>\nH u\n"):
    return BPE(io.StringIO("#version: 0.2\n" + merges))


@given(lines())
def test_subwords_of_subword_nmt_are_their_words(line):
    words = line.split()
    # A word that ends in the sign of a join reads as one that goes on: nobody can tell.
    words = [word for word in words if not word.endswith("@")]
    subwords = bpe().process_line(" ".join(words)).split()
    segmented = SegmentedLine.from_subword_nmt(subwords)
    assert segmented.text.split() == words
    expected = [bpe().segment(word).split() for word in words]
    assert segmented.subwords_of(words) == expected


@pytest.mark.parametrize(
    ("subwords", "text", "words", "expected"),
    [
        ("a@@ b c@@", "ab c", ["ab", "c"], [["a@@", "b"], ["c@@"]]),
        ("a @@", "a @@", ["a", "@@"], [["a"], ["@@"]]),
        ("a@@ @@ b", "ab", ["ab"], [["a@@", "@@", "b"]]),
        ("z@@ um Haus", "zum Haus", ["zu", "m", "Haus"], [["z@@", "um"], [], ["Haus"]]),
    ],
)
def test_subwords_of_words_that_the_text_does_not_split_so(subwords, text, words, expected):
    segmented = SegmentedLine.from_subword_nmt(subwords.split())
    assert segmented.text == text
    assert segmented.subwords_of(words) == expected


def test_escapes_are_spelled_for_files_that_have_none():
    subwords = ["&a@@", "pos@@", ";s", "@-@", "x&amp@@", ";@@", "&quot@@", ";", "."]
    segmented = SegmentedLine.from_subword_nmt(subwords, unescape=True)
    assert segmented.text == "'s - x&\" ."
    assert segmented.subwords_of(["'", "s", "-", "x", '&"', "."]) == [
        ["&a@@", "pos@@", ";s"], [], ["@-@"], ["x&amp@@"], [";@@", "&quot@@", ";"], ["."],
    ]  # fmt: skip


words_with_escapes = st.lists(
    st.sampled_from(["a", "ß", "&", ";", "&apos;", "&amp;", "&quot;", "&#91;", "apos;"]), min_size=1
).map("".join)


@given(st.one_of(words_with_escapes, st.sampled_from(["@-@", "@,@", "@x@", "@"])))
def test_characters_are_found_in_what_an_escaped_word_stands_for(word):
    offsets = unescaped_offsets(word)
    plain = unescape_moses(word)
    assert len(offsets) == len(word) + 1
    assert offsets[-1] == len(plain)
    steps = {after - before for before, after in pairwise(offsets)}
    assert steps <= {0, 1}
    # Split anywhere between escapes, the parts stand for the parts.
    escape = re.compile(r"&(?:apos|amp|quot|#91);")
    inside = {place for match in escape.finditer(word) for place in range(*match.span())} - {
        match.start() for match in escape.finditer(word)
    }
    if not word.startswith("@"):
        for place in set(range(len(word) + 1)) - inside:
            assert plain[: offsets[place]] == unescape_moses(word[:place])


def test_words_that_do_not_spell_the_text_are_named():
    with pytest.raises(ValueError, match="word 2 is 'dem', and the text has"):
        SegmentedLine.from_sentencepiece(["▁zu", "m", "▁Haus"]).subwords_of(["zu", "dem", "Haus"])
