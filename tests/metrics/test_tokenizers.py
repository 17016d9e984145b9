"""Texts in scripts with and without spaces between words."""

from __future__ import annotations

from fairseq_phrase.metrics.tokenizers import has_space_between, is_unspaced


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
