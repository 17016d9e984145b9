"""Words and their subwords: numbering, checking, and back."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.data.subwords.encoded_sentences import words_of_subwords
from fairseq_phrase.syntax.alignment import TextReader, ends_in_text
from tests.twins.alignment import check_words, subwords_of_word

counts_of_subwords = st.lists(st.integers(1, 6), max_size=30)


@given(counts_of_subwords)
def test_each_subword_is_numbered_with_its_word(counts):
    expected = [word for word, count in enumerate(counts) for _ in range(count)]
    words = words_of_subwords(counts)
    assert words.tolist() == expected
    assert words.dtype == np.int64
    check_words(words)


@given(counts_of_subwords)
def test_the_subwords_of_words_are_found_again(counts):
    words = words_of_subwords(counts)
    ranges = subwords_of_word(words, len(counts))
    assert [len(subwords) for subwords in ranges] == counts
    assert [i for subwords in ranges for i in subwords] == list(range(len(words)))


@given(st.lists(st.integers(-2, 6), max_size=8))
def test_words_pass_the_check_only_if_they_count_up_from_0_without_gaps(words):
    steps = [after - before for before, after in zip([-1, *words], words, strict=False)]
    if words and (steps[0] != 1 or not set(steps) <= {0, 1}):
        with pytest.raises(ValueError, match="is of word"):
            check_words(np.array(words))
    else:
        check_words(np.array(words))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([1, 2], "subword 0 is of word 1 after word None"),
        ([-1, 0], "subword 0 is of word -1 after word None"),
        ([0, 0, 2], "subword 2 is of word 2 after word 0"),
        ([0, 1, 0], "subword 2 is of word 0 after word 1"),
    ],
)
def test_the_first_subword_out_of_order_is_named(words, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        check_words(np.array(words))


texts = st.text(st.sampled_from("abß▁🇩_\u0301 \t\u2028\u00a0"), max_size=30)


@given(texts, st.lists(st.integers(1, 4), max_size=30))
def test_words_are_found_where_they_stand_in_the_text(text, lengths):
    # Split the text into words of these lengths, or up to the next space.
    words, ends = [], []
    place = 0
    for length in [*lengths, *[len(text)] * len(text)]:
        while place < len(text) and text[place].isspace():
            place += 1
        word = text[place : place + length].split()[:1]
        if word:
            words += word
            ends.append(place := place + len(word[0]))
    assert ends_in_text(words, text) == ends


def test_a_word_with_a_space_in_it_is_found():
    assert ends_in_text(["a", "b▁c", "▁", "d"], "a  b \tc▁ d") == [1, 7, 8, 10]


@pytest.mark.parametrize(
    ("words", "text", "message"),
    [
        (["a", "bc"], "a bd e", "word 2 is 'bc', and the text has 'bd e' there"),
        (["a", "b"], " a ", "word 2 is 'b', and the text has 'the end of the line' there"),
        (["a"], "a b", "the text goes on after the last word: 'b'"),
        ([], "a", "the text goes on after the last word: 'a'"),
    ],
)
def test_the_first_word_that_is_not_in_the_text_is_named(words, text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ends_in_text(words, text)


@pytest.mark.parametrize(
    ("words", "text", "forms"),
    [
        (["She", "SEES", "Łódź"], "she sees łódź", ["she", "sees", "łódź"]),
        (["Straße", "ÉTÉ"], "STRASSE e\u0301te\u0301", ["STRASSE", "e\u0301te\u0301"]),
        (["ABC", "ガ", "…"], "ＡＢＣ ｶﾞ ...", ["ＡＢＣ", "ｶﾞ", "..."]),
        (["ＡＢＣ", "ﬁn"], "abc fin", ["abc", "fin"]),
        (["a\u200bb", "c"], "ab\u200c c", ["ab", "c"]),
        (["ab"], "a b\u00ad", ["a b"]),
        (["\u200b", "a"], "a", ["\u200b", "a"]),
        # Letter case of Turkish and Azerbaijani, and of Lithuanian, which keeps the dot under accents.
        (["İstanbul", "IŞIK"], "istanbul ışık", ["istanbul", "ışık"]),
        (["istanbul", "ışık"], "İSTANBUL IŞIK", ["İSTANBUL", "IŞIK"]),
        (["I\u0307stanbul", "İZ"], "istanbul i\u0307z", ["istanbul", "i\u0307z"]),
        (
            ["J\u00cc", "\u012e\u0301"],
            "ji\u0307\u0300 i\u0328\u0307\u0301",
            ["ji\u0307\u0300", "i\u0328\u0307\u0301"],
        ),
        # NFC, NFD, and marks in an order that is neither's.
        (
            ["Vi\u1ec7t", "\ud55c"],
            "Vie\u0323\u0302t \u1112\u1161\u11ab",
            ["Vie\u0323\u0302t", "\u1112\u1161\u11ab"],
        ),
        (["Vie\u0323\u0302t", "\u1112\u1161\u11ab"], "Vi\u1ec7t \ud55c", ["Vi\u1ec7t", "\ud55c"]),
        (["e\u0302\u0323"], "\u1ec7", ["\u1ec7"]),
        (["❤\ufe0f", "葛\U000e0100"], "❤ 葛", ["❤", "葛"]),
    ],
)
def test_case_and_normal_forms_are_compared_as_equal_and_the_text_keeps_its_form(
    words, text, forms
):
    reader = TextReader(text)
    assert [reader.take(word) for word in words] == forms
    assert not reader.rest


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("علی کتاب", "علي كتاب"), ("على", "علی"), ("ہے", "هے"), ("مدرسه", "مدرسة"),
        ("الى احمد", "إلى أحمد"),
        ("العربية", "العـــربية"), ("ل", "لـ"), ("كتب الولد .", "كَتَبَ الوَلَدُ ."), ("كَتَبَ", "كتب"),
        ("هذا رحمن", "هٰذا رَحْمٰن"), ("שלום בראשית", "שָׁלוֹם בְּרֵאשִׁ֖ית"), ("שָׁלוֹם", "שלום"),
        ("كتاب جديد", "كتاب\u08f0 جديد"), ("ܡܠܟܐ", "ܡܠ\u0742ܟܐ"),
        ("ܫܠܡܐ", "ܫܠܵܡܵܐ"), ("जमीन", "ज़मीन"), ("ज\u093cमीन", "\u095bमीन"), ("еще Ёлка", "ещё ЕЛКА"),
        ("е\u0308", "ё"), ("ё", "е\u0308"), ("12 %", "١٢ ٪"), ("۱۲", "١٢"), ("2024", "२०२४"),
        ("3.14 , ?", "٣٫١٤ ، ؟"), ("７", "๗"), ("नमस्ते ।", "नमस्ते ।"),
    ],
)  # fmt: skip
def test_letters_vowels_and_digits_that_normalizers_change_are_equal(words, text):
    for line in (text, "".join(text.split())):
        reader = TextReader(line)
        assert [reader.take(word) for word in words.split()] == text.split()
        assert not reader.rest


def test_a_word_keeps_the_vowels_over_its_last_letter_and_a_space_comes_after_them():
    reader = TextReader("الوَلَدُ. هٰ")
    assert [(reader.take(word), reader.space_before) for word in ("الولد", ".", "ه")] == [
        ("الوَلَدُ", True), (".", False), ("هٰ", True),
    ]  # fmt: skip
    reader = TextReader("لَدُ.")  # the same word without other vowels
    assert (reader.take("لَد"), reader.take("."), reader.space_before) == ("لَدُ", ".", False)
    reader = TextReader("ci\u0307, ❤\ufe0f!")
    assert [reader.take(word) for word in ("Cİ", ",", "❤", "!")] == [
        "ci\u0307",
        ",",
        "❤\ufe0f",
        "!",
    ]
    assert not reader.space_before


@pytest.mark.parametrize(
    ("word", "text", "form"),
    [
        ("Việt_Nam", "Việt Nam thắng", "Việt Nam"), ("a_pesar_de", "a pesar  de", "a pesar  de"),
        ("A_Pesar", "a\u00a0pesar", "a\u00a0pesar"), ("a_b", "a_b", "a_b"),
        ("a_b c_d", "a_b c d", "a_b c d"), ("a__b", "a_ b", "a_ b"), ("a_ـb", "a b", "a b"),
    ],
)  # fmt: skip
def test_an_underscore_within_a_word_is_white_space_of_the_text(word, text, form):
    assert TextReader(text).take(word) == form


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("a_b", "ab"), ("_a", " a"), ("a_", "a b"), ("_", " "), ("a_b", "a  -b"), ("a_b", "a\u200bb"),
        ("कि", "क"), ("ใน", "ไน"), ("กิน", "กน"), ("が", "か"), ("й", "и"), ("٣", "4"), ("ا", "ب"),
    ],
)  # fmt: skip
def test_other_letters_and_vowels_that_are_never_left_out_differ(word, text):
    assert TextReader(text).take(word) is None


MARKS = [
    ("'s ` ''", "’s ‘ ”"), ("don't", "don’t"), ("’", "'"), ("O'z", "Oʻz"), ("'", "´"),
    ("`` '' `", "“ ” ‚"), ('" "', "« »"), ("`` ''", "<< >>"), ('"', "„"), ("„", ",,"), ("“", '"'),
    ('צה"ל', "צה״ל"),
    ("-- --- --", "– — —"), ("–", "--"), ("—", "-"), ("well-known", "well‑known"), ("-5", "−5"),
    ("10--20", "10–20"), ("...", "…"), ("…", "..."), ("# 5", "£ 5"), ("#5", "£5"), ("$ 5", "€ 5"),
    (r"1\/2 1/2", "½ ½"), (r"and\/or", "and/or"), (r"\*", "*"), ("-LRB- -rrb-", "( )"), ("(", "-LRB-"),
    (":-RRB-", ":)"), ("LRB x RRB", "( x )"), ("-LSB- -LCB-", "[ {"), ("&amp; &lt;", "& <"),
    ("'s \"", "&apos;s &quot;"), ("-LAB- -AMP-", "< &"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "text"), MARKS)
def test_marks_as_texts_tokenizers_and_treebanks_write_them_are_equal(words, text):
    for line in (text, "".join(text.split())):
        reader = TextReader(line)
        assert [reader.take(word) for word in words.split()] == text.split()
        assert not reader.rest


@pytest.mark.parametrize(
    ("words", "text", "forms"),
    [
        ("— - x", "-- - x", "-- - x"),
        ("' ' \"", "'' \"", "' ' \""),
        ("“ '", "'''", "'' '"),
        ("- -LRB-", "-(", "- ("),
        ("– –", "- -", "- -"),
    ],
)
def test_a_mark_takes_no_more_of_the_text_than_is_its_own(words, text, forms):
    reader = TextReader(text)
    assert [reader.take(word) for word in words.split()] == forms.split()
    assert not reader.rest


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("e", "é"), ("a", "b"), ("½", "1⁄"), ("1", "½"), ("ab", "a"), ("e'", "é"), ("'", '"'),
        ("ė", "e"), ("ż", "z"), ("#", "$"), ("--", "_"), ("(", "["), ("cents", "£"),
    ],
)  # fmt: skip
def test_other_words_are_not_taken(word, text):
    reader = TextReader(text)
    assert reader.take(word) is None
    assert (reader.end, reader.rest) == (0, text)
