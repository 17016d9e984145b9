"""Tests of tables of labels that continue a given dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.data.preprocessing.dictionaries import LabelTable

COUNTS = st.dictionaries(st.sampled_from(["NP", "VP", "S", "<unk>", "<s>", "_"]), st.integers(1, 9))


def table(counts, *continued, may_grow=True):
    labels = LabelTable(*continued, may_grow=may_grow)
    labels.add(counts)
    return labels


def entries(dictionary):
    return list(zip(dictionary.symbols, dictionary.count, strict=True))


@given(known=COUNTS, added=COUNTS, may_grow=st.booleans())
def test_a_continued_dictionary_keeps_its_labels_and_counts(known, added, may_grow):
    dictionary = table(known).dictionary()
    before = entries(dictionary)
    continued = table(added, dictionary, may_grow=may_grow)
    after = entries(continued.dictionary())
    new = added.keys() - known.keys()
    assert after[: len(before)] == before
    assert sorted(count for _, count in after[len(before) :]) == sorted(
        added[label] for label in new if may_grow
    )
    assert len(continued.unknown()) == (0 if may_grow else len(new))
