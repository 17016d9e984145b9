"""Broken records are found and explained, whatever is in them; whole ones pass."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from fairseq.data import Dictionary
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.data.subwords.encoded_sentences import words_of_subwords
from fairseq_phrase.errors import UserError
from fairseq_phrase.lab.inspection.integrity import RecordChecker
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.dependency import DependencyTree
from tests.support.hostile import constituents, trees
from tests.support.sentence_blocks import block
from tests.twins.alignment import check_words

ENTRIES = 12


def dictionary(entries=ENTRIES):
    symbols = Dictionary()
    for number in range(entries - symbols.nspecial):
        symbols.add_symbol(f"s{number}")
    return symbols


DICTIONARIES = {name: dictionary() for name in ("text", "deprels", "tags", "spans")}
CHECKER = RecordChecker(SimpleNamespace(path_of=lambda name: f"split.{name}"), DICTIONARIES)


@st.composite
def records(draw):
    """A sentence's text and parse, whole, as flat lists."""
    tree = draw(constituents(8))
    count = tree.num_words
    heads = draw(trees(min_words=count, max_words=count)) if count else []
    subwords = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    labels = st.lists(st.integers(3, ENTRIES - 1), min_size=count, max_size=count)
    spans = [
        value
        for (start, end), label in zip(tree.spans.tolist(), tree.labels, strict=True)
        for value in (start, end, 3 + len(label))
    ]
    tokens = [draw(st.integers(3, ENTRIES - 1)) for _ in range(sum(subwords))]
    return {
        "text": [*tokens, 2],
        "words": words_of_subwords(subwords).tolist(),
        "heads": heads,
        "deprels": draw(labels),
        "tags": draw(labels),
        "spans": spans,
    }


def is_whole(record):
    """The plain twin: one sentence, by the validating containers."""
    text, spans = record["text"], record["spans"]
    if text[-1:] != [2] or any(not 3 <= token < ENTRIES for token in text[:-1]):
        return False
    if len(record["words"]) != len(text) - 1 or len(spans) % 3:
        return False
    # Protected tokens are of no word.
    words = [word for word in record["words"] if word != -1]
    labels = [record["deprels"], record["tags"], spans[2::3]]
    if any(not 3 <= label < ENTRIES for row in labels for label in row):
        return False
    count = words[-1] + 1 if words else 0
    if any(len(record[name]) != count for name in ("heads", "deprels", "tags")):
        return False
    triples = np.array(spans, dtype=np.int64).reshape(-1, 3)
    try:
        check_words(np.array(words))
        heads = DependencyTree(record["heads"]).heads
        tree = ConstituencyTree(triples[:, :2], list(map(str, triples[:, 2])), count)
    except ValueError:
        return False
    # The containers join several roots and sort constituents; on disk this is done already.
    return heads.tolist() == record["heads"] and np.array_equal(tree.spans, triples[:, :2])


@given(data=st.data(), sentences=st.lists(records(), min_size=1, max_size=5))
def test_whole_records_pass_and_the_first_broken_one_is_named(data, sentences):
    assert all(map(is_whole, sentences))
    CHECKER.check(block(sentences))
    for _ in range(data.draw(st.integers(1, 3))):  # change, take away or add a number
        record = data.draw(st.sampled_from(sentences))
        row = record[data.draw(st.sampled_from(sorted(record)))]
        place = data.draw(st.integers(0, len(row)))
        row[place : place + data.draw(st.integers(0, 1))] = data.draw(
            st.lists(st.integers(-1, ENTRIES + 1), max_size=1)
        )
    broken = [number for number, record in enumerate(sentences, 1) if not is_whole(record)]
    if not broken:
        CHECKER.check(block(sentences))
        return
    with pytest.raises(UserError, match=rf"^split\.\w+\.bin, line {broken[0] + 100}: expected "):
        CHECKER.check(block(sentences, first=100))


WHOLE = {
    "text": [5, 6, 7, 8, 2],
    "words": [0, 1, 1, 2],
    "heads": [1, 1, 1],
    "deprels": [4, 5, 6],
    "tags": [4, 4, 5],
    "spans": [1, 2, 4, 0, 2, 5, 0, 3, 6],
}


@pytest.mark.parametrize(
    ("field", "values", "expected"),
    [
        ("text", [], "the end of the sentence, 2, as the last token, found -1"),
        ("text", [5, 6, 7, 8, 9], "the end of the sentence, 2, as the last token, found 9"),
        ("text", [5, 6, 12, 8, 2], "token 3 to be one of the 12 in the dictionary, .* found 12"),
        ("text", [5, 1, 7, 8, 2], "no padding or end within the sentence, found 1"),
        ("text", [5, 6, 7, 2], "3 subwords, as the text has, found 4"),
        ("words", [0, 1, 1], "4 subwords, as the text has, found 3"),
        ("words", [1, 1, 1, 2], "subword 0 belongs to word 1, after word -1"),
        ("words", [0, 1, 3, 3], "subword 2 belongs to word 3, after word 1"),
        ("words", [0, 1, 0, 1], "subword 2 belongs to word 0, after word 1"),
        ("heads", [1, 1], "3 words, as the words have, found 2"),
        ("heads", [1, 1, 3], "word 2 has head 3: expected 0 to 2"),
        ("heads", [0, 1, 1], "several words are their own heads"),
        ("heads", [1, 2, 0], "the heads of words .* form a cycle"),
        ("heads", [1, 0, 2], "the heads of words .* form a cycle"),
        ("deprels", [4, 5, 12], "word 2 to have a label from 3 to 11, as dict.deprel.txt .* found 12"),
        ("tags", [4, 0, 5], "word 1 to have a label from 3 to 11, as dict.tag.txt .* found 0"),
        ("spans", [1, 2, 4, 0, 2], "groups of 3 numbers, found 5 numbers"),
        ("spans", [1, 1, 4], "covers words 1 to 0: expected at least one word"),
        ("spans", [1, 2, 4, 0, 4, 5], "covers words 0 to 3: expected at least one word out of 0 to 2"),
        ("spans", [0, 2, 4, 1, 2, 5], "children do not come before parents"),
        ("spans", [0, 2, 4, 1, 3, 5], "constituents cross: words 0 to 1 and 1 to 2"),
        ("spans", [0, 3, 12], "constituent 0 to have a label .* dict.constituent.txt .* found 12"),
    ],
)  # fmt: skip
def test_a_broken_record_is_explained(field, values, expected):
    CHECKER.check(block([WHOLE]))
    broken = {**WHOLE, field: values}
    assert not is_whole(broken)
    with pytest.raises(UserError, match=rf"\.bin, line 2: expected .*{expected}"):
        CHECKER.check(block([WHOLE, broken, WHOLE]))
