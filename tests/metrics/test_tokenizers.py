"""sacrebleu's tokenizers, and where words begin in scripts with and without spaces."""

from __future__ import annotations

import pytest

from fairseq_phrase.metrics.tokenizers import (
    has_space_between,
    is_unspaced,
    is_word_boundary,
    loose_words,
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "cat"), ("(", "cat"), ("«", "cat"), ("well-", "cat"), ("l'", "an"), ("5", "%"),
        ("我的", "猫"), ("我", "GPU"), ("GPU", "我"), ("ทำ", "แม่น้ำ"), ("แม่", "GPU"), ("ကို", "က"),
        ("か", "な"),
    ],
)  # fmt: skip
def test_a_word_may_begin_at_punctuation_and_in_scripts_without_spaces(before, after):
    assert is_word_boundary(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("con", "cat"), ("1", "5"), ("a", "5"), ("_", "a"), ("क", "ि"), ("कि", "क"), ("แม", "่น้ำ"),
        ("한", "국"), ("ا", "ل"), ("می\u200c", "خواهم"),
    ],
)  # fmt: skip
def test_a_word_does_not_begin_within_another_one(before, after):
    assert not is_word_boundary(before, after)


def test_words_between_spaces_are_split_at_punctuation_and_in_scripts_without_spaces():
    assert loose_words("(well-known).") == ["(", "well-known", ")."]
    assert loose_words("养猫，GPU训练") == ["养", "猫", "，", "GPU", "训", "练"]
    assert loose_words("น้ำ") == ["น้", "ำ"]
    assert loose_words("“don't,") == ["“", "don't", ","]
    assert loose_words("--") == ["--"]
    assert loose_words("हिन्दी।") == ["हिन्दी", "।"]
    for word in ("“don't,", "养猫，GPU训练", "\u200cแม่x", ""):
        assert "".join(loose_words(word)) == word


def test_chinese_and_japanese_sentences_follow_one_another_without_a_space():
    assert not has_space_between("我们走。", "你好")
    assert not has_space_between("我们走", "GPU")
    assert not has_space_between("GPU", "「これ」")
    for sentences in [
        ("We go.", "You"),
        ("ฉันไป", "เธอ"),
        ("우리는 간다.", "너"),
        ("", "a"),
        ("a", ""),
    ]:
        assert has_space_between(*sentences)


def test_a_text_without_spaces_is_in_such_a_script_and_has_long_words():
    assert is_unspaced(["我们在公园里看见一只黑色的狗"])
    assert not is_unspaced(["我们 在 公园 里 看见 一 只 狗"])
    assert not is_unspaced(["We see a 狗"])
    assert not is_unspaced(["Donaudampfschifffahrtsgesellschaft"])
