"""Moses' escapes: undone word by word, as sacremoses undoes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacremoses import MosesDetokenizer, MosesTokenizer

from fairseq_phrase.syntax.spellings import unescape_moses
from fairseq_phrase.text import read_lines
from tests.support.hostile import lines
from tests.support.repository import shared_data

TOKENIZER = MosesTokenizer("en")
DETOKENIZER = MosesDetokenizer("en")


@pytest.mark.parametrize(
    ("word", "plain"),
    [
        ("&apos;s", "'s"), ("&quot;", '"'), ("&amp;", "&"), ("&#124;", "|"), ("&lt;", "<"),
        ("&gt;", ">"), ("&#91;", "["), ("&#93;", "]"), ("@-@", "-"), ("@.@", "."), ("@,@", ","),
        ("&bar;", "|"), ("&bra;", "["), ("&ket;", "]"), ("R&amp;D", "R&D"),
        ("&lt;&lt;b&gt;&gt;", "<<b>>"), ("&amp;apos;", "&apos;"), ("&amp;amp;", "&amp;"),
    ],
)  # fmt: skip
def test_escapes_are_undone(word, plain):
    assert unescape_moses(word) == plain


@pytest.mark.parametrize(
    "word",
    [
        "",
        "Haus",
        "&",
        "&apos",
        "apos;",
        "&APOS;",
        "&#39;",
        "&nbsp;",
        "@",
        "@@",
        "a@-@b",
        "@-",
        "bro@@",
    ],
)
def test_other_words_stay_as_they_are(word):
    assert unescape_moses(word) == word


@given(lines(3).filter(lambda text: text not in {"@-@", "@,@", "@.@", "@/@", "@:@"}))
def test_what_moses_escapes_comes_back(text):
    assert unescape_moses(TOKENIZER.escape_xml(text)) == text


@given(
    st.lists(st.sampled_from(["&", "&amp;", "&apos;", "&#124;", "lt;", "gt;", "x"])).map("".join)
)
def test_escapes_are_undone_as_sacremoses_undoes_them(word):
    # sacremoses undoes &amp; before the rest at times, and then what was escaped twice twice.
    if "&amp;" not in word and not word.endswith("&"):
        assert unescape_moses(word) == DETOKENIZER.unescape_xml(word)


def test_words_that_moses_made_are_those_it_makes_without_escapes(synthetic_corpus):
    folder = shared_data("multi30k")
    path = synthetic_corpus / "test.en" if folder is None else folder / "test_2016_flickr.en.gz"
    odd = ["A \"well-known\" <b> & 'old' [dog]|cat isn't $5.", "state-of-the-art R&D &amp; &lt;"]
    for line in [*list(read_lines(path))[:200], *odd]:
        words_of_moses = {
            escape: TOKENIZER.tokenize(line, aggressive_dash_splits=True, escape=escape)
            for escape in (True, False)
        }
        plain = ["-" if word == "@-@" else word for word in words_of_moses[False]]
        assert [unescape_moses(word) for word in words_of_moses[True]] == plain
