"""Requirements of translations: constraints, prefixes and terms, beside their lines."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.constrained_search import RequiredText
from fairseq_phrase.inference.constraints import (
    Glossary,
    ParallelTexts,
    Requirements,
    word_translations,
)
from fairseq_phrase.inference.search import Hypothesis, joined_hypotheses

LONGEST = 6


def tokens_of(text, slots, where):
    """Letters are subwords; x is unknown."""
    if "x" in text:
        raise UserError(f"{where}: x is unknown")
    return torch.tensor([ord(letter) for letter in text.replace(" ", "")], dtype=torch.long)


def required_text_of(text, slots, where):
    return RequiredText(text, (*tokens_of(text.strip("\u200b"), slots, where).tolist(),))


def segmented(texts):
    """Two subwords for a word of two or more letters."""
    sentences = []
    for text in texts:
        words = [[word[:1] + "@@", word[1:]] if word[1:] else [word] for word in text.split()]
        numbers = [number for number, subwords in enumerate(words) for _ in subwords]
        subwords = [subword for subwords in words for subword in subwords]
        sentences.append(
            SimpleNamespace(subwords=subwords, words=torch.tensor(numbers), num_words=len(words))
        )
    return sentences


def glossary(terms, **options):
    return Glossary(
        terms, segmented, lambda subwords: subwords.replace("@@ ", ""), required_text_of, **options
    )


def requirements(texts, glossary=None, **given):
    """The constraints and the prefix of each segment, as texts; ``|`` splits a line into segments."""
    beside = ParallelTexts(**given)
    requirements = Requirements(beside, tokens_of, required_text_of, tokens_of, glossary)
    requirements_of_lines = []
    for number, line in enumerate(beside.lines(texts), start=1):
        segments = requirements.segments(
            line, number, segmented(line.text.split("|")), lambda _: (), lambda _: LONGEST
        )
        requirements_of_lines += [
            ([required.text for required in segment.constraints], "".join(map(chr, segment.prefix)))
            for segment in segments
        ]
    return requirements_of_lines


def test_each_line_has_what_is_beside_it():
    requirements_of_lines = requirements(
        ["l", "m", "n"], constraints=["", "ab\tc", " "], prefix=["", "d", "e f"]
    )
    assert requirements_of_lines == [([], ""), (["ab", "c"], "d"), ([], "ef")]


@pytest.mark.parametrize(
    ("parses", "message"),
    [("p", "there are 1 parses, and"), ("ppp", "more parses than the 2 lines")],
)
def test_each_line_has_one_parse(parses, message):
    assert [line.parse for line in ParallelTexts().lines(["l", "m"], "pq")] == ["p", "q"]
    with pytest.raises(UserError, match=message):
        list(ParallelTexts().lines(["l", "m"], parses))


def test_a_constraint_that_leaves_no_subword_requires_nothing():
    assert requirements(["l"], constraints=["\u200b\tab"]) == [(["ab"], "")]


def test_only_the_first_segment_of_a_long_line_has_the_prefix():
    assert requirements(["l|m"], prefix=["a"]) == [([], "a"), ([], "")]


def test_terms_are_words_and_the_longest_is_taken():
    terms = glossary({"ab": "p", "ab cd": "q", "c": "r"})
    assert requirements(["ab cd c|ab x abc|cc"], glossary=terms) == [
        (["q", "r"], ""),
        (["p"], ""),
        ([], ""),
    ]
    assert requirements(["c c"], glossary=terms, constraints=["t"]) == [(["t", "r", "r"], "")]


def test_between_spaces_terms_are_next_to_punctuation_and_in_unspaced_scripts():
    """As words of ``--parser none`` are: what spaces separate."""
    loose = glossary({"猫": "p", "小猫": "q", "cat": "r", "แม่น้ำ": "s", "แม": "t"}, loose=True)
    assert requirements(["养猫，养小猫|“cat”|con|cat's", "ทำแม่น้ำวันนี้"], glossary=loose) == [
        (["p", "q"], ""), (["r"], ""), ([], ""), ([], ""), (["s"], ""),
    ]  # fmt: skip
    assert requirements(["养猫 “cat”"], glossary=glossary({"猫": "p", "cat": "r"})) == [([], "")]


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        ({"constraints": "a\n"}, "{file} has 1 lines, and the source has more"),
        ({"prefix": "a\n\nb\n"}, "{file}, line 3: the source has 2 lines"),
        ({"constraints": "ax\n\n"}, "{file}, line 1: x is unknown"),
        ({"prefix": "\nabcdefg\n"}, "{file}, line 2: the prefix has 7 subwords, .* may have 6"),
        (
            {"constraints": "abcd\tabc\n\n"},
            "{file}, line 1: the constraints of line 1 and its .* 7",
        ),
        (
            {"constraints": "\na\n"},
            "{file}, line 2: the source line is longer than the model reads",
        ),
        ({"target": "a\n"}, "{file} has 1 lines, and the source has more"),
        ({"target": "a\na\n"}, "{file}, line 2: the source line is longer than the model reads"),
        ({"target": "ax\n\n"}, "{file}, line 1: x is unknown"),
        ({"glossary": "l\ta\nm\n"}, "{file}, line 2: expected a term, a tab and its translation"),
        ({"glossary": "l\t\u200b\n"}, "{file}, line 1: expected a term, a tab and its translation"),
        ({"glossary": "l\t\n"}, "{file}, line 1: expected a term, a tab and its translation"),
        ({"glossary": "l\ta\nl\tb\n"}, "{file}, line 2: 'l' is translated by 'a' in another line"),
        ({"glossary": "l\ta\nm\tx\n"}, "{file}, line 2: x is unknown"),
        ({"glossary": "l\tabcdefg\n"}, "{file}, line 1: the constraints of line 1 .* 7 subwords"),
    ],
)
def test_mistakes_name_their_file_and_line(beside, message, tmp_path):
    file = tmp_path / "beside.txt"
    ((name, text),) = beside.items()
    file.write_text(text)
    with pytest.raises(UserError, match=message.format(file=file)):
        requirements(["l", "m|n"], **{name: glossary(file) if name == "glossary" else file})


def test_words_are_translated_by_a_file(tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("a b\nc\td\n")
    assert word_translations(file) == {"a": "b", "c": "d"}
    file.write_text("a b\nc\n")
    with pytest.raises(UserError, match=f"{file}, line 2: expected a word and its translation"):
        word_translations(file)


def test_segments_of_a_line_are_aligned_one_after_the_other():
    hypotheses = [
        Hypothesis("a b", -1, 3, [(0, 0), (2, 1)], (3, 2)),
        Hypothesis("c", -1, 2, [(1, 0)]),
    ]
    (joined,) = joined_hypotheses([[hypothesis] for hypothesis in hypotheses], 1)
    assert joined.alignment == [(0, 0), (2, 1), (4, 2)]


def test_segments_of_chinese_lines_are_joined_without_a_space():
    hypotheses = [
        Hypothesis("我。", -1, 3, [(0, 0)], (1, 1)),
        Hypothesis("你 a", -1, 2, [(0, 0), (1, 1)], (2, 2)),
    ]
    hypotheses += [Hypothesis("b", -1, 2, [(0, 0)], (1, 1)), Hypothesis("", -1, 1)]
    (joined,) = joined_hypotheses([[hypothesis] for hypothesis in hypotheses], 1)
    assert joined.text.rstrip() == "我。你 a b"
    assert joined.alignment == [(0, 0), (1, 0), (2, 1), (3, 2)]
