"""Sentences read back from a data directory as text with trees."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from fairseq.data import Dictionary
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.data.store.manifest import Manifest, SplitRecord
from fairseq_phrase.data.subwords.encoded_sentences import words_of_subwords
from fairseq_phrase.errors import UserError
from fairseq_phrase.lab.inspection.parsed_text import ParsedTextReader, load_dictionaries, printable
from fairseq_phrase.parsers.conllu import ConlluFiles
from fairseq_phrase.text import read_lines
from tests.support.stores import SPLIT, write_store


def reader_of(data_directory, split):
    manifest = Manifest.load(data_directory, "de")
    return ParsedTextReader(
        data_directory, manifest, split, load_dictionaries(data_directory, manifest)
    )


def test_text_words_and_labels_are_those_that_were_preprocessed(data_directory, synthetic_corpus):
    reader = reader_of(data_directory, "test.de-en")
    text = synthetic_corpus / "test.de"
    lines = list(read_lines(text))
    gold = list(ConlluFiles().read(synthetic_corpus / "test.de.conllu", iter(lines)))
    assert len(reader) == len(lines) == len(gold) == 100
    for number, (line, expected) in enumerate(zip(lines, gold, strict=True), start=1):
        sentence = reader.read(reader.index_of(number))
        assert sentence.location == f"test.de-en.de, line {number}"
        assert sentence.text == line
        assert sentence.words == expected.words
        assert sentence.space_before == expected.space_before
        assert sentence.heads.tolist() == expected.tree.heads.tolist()
        assert (sentence.deprels, sentence.tags) == (expected.deprels, expected.tags)
        for word, subwords in zip(sentence.words, sentence.subwords, strict=True):
            assert "".join(subwords).removeprefix("▁") == word


@pytest.mark.parametrize("line", [0, -1, 101])
def test_a_line_that_is_not_there_is_refused_with_those_that_are(data_directory, line):
    with pytest.raises(UserError, match=f"has lines 1 to 100, not {line}"):
        reader_of(data_directory, "test.de-en").index_of(line)


def stored(tmp_path, bpe, symbols, counts, protected=()):
    """One sentence of these subwords, so many for each word, all words under the first."""
    words = len(counts)
    dictionaries = {name: Dictionary() for name in ("text", "deprels", "tags", "spans")}
    for name in ("deprels", "tags", "spans"):
        dictionaries[name].add_symbol("L")
    numbers = [dictionaries["text"].add_symbol(symbol) for symbol in symbols]
    parse = {
        "words": words_of_subwords(counts),
        "heads": np.zeros(words, dtype=np.int64),
        "deprels": np.full(words, 4),
        "tags": np.full(words, 4),
        "spans": np.array([[0, words, 4]]),
    }
    write_store(tmp_path, [parse], text=[[*numbers, 2]])
    record = SplitRecord(1, words, len(symbols), {})
    manifest = SimpleNamespace(
        language="de", bpe=bpe, fields=["words"], protected=[*protected], splits={SPLIT: record}
    )
    return ParsedTextReader(tmp_path, manifest, SPLIT, dictionaries).read(0)


def test_sentencepiece_marks_are_taken_off(tmp_path):
    symbols = ["▁", "Hu", "nd", ",", "▁New", "▁York", "<unk>"]
    sentence = stored(tmp_path, "sentencepiece", symbols, [3, 1, 2, 1])
    assert sentence.words == ["Hund", ",", "New York", "<unk>"]
    assert sentence.subwords == [["▁", "Hu", "nd"], [","], ["New", "▁York"], ["<unk>"]]
    assert sentence.text == "Hund, New York<unk>"
    assert sentence.summary == f"{SPLIT}.de, line 1: 4 words, 7 subwords"


def test_protected_tokens_are_no_part_of_words(tmp_path):
    symbols = ["▁Hu", "<g1>", "nd", "▁<g2>"]
    sentence = stored(tmp_path, "sentencepiece", symbols, [3, 1], protected=["<g1>"])
    assert sentence.words == ["Hund", "<g2>"]
    assert sentence.subwords == [["Hu", "<g1>", "nd"], ["<g2>"]]


def test_subword_nmt_marks_are_taken_off(tmp_path):
    sentence = stored(tmp_path, "subword_nmt", ["Hu@@", "nd", "@@", "a@@", "@@"], [2, 1, 2])
    assert sentence.words == ["Hund", "@@", "a@@"]
    assert sentence.text == "Hund @@ a@@"


@given(st.text(st.characters()))
def test_printable_text_says_the_same_and_holds_no_control_characters(text):
    printed = printable(text)
    assert printed.isprintable() or not any(
        ord(sign) < 32 or sign in "\x7f\x9b" for sign in printed
    )
    assert not set(printed) & set(
        "\x1b\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028"
    )
    if text.isprintable() and "\\" not in text:
        assert printed == text
    printed.encode("utf-8")  # no lone surrogate is left
