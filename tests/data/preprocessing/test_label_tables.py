"""Tests of tables of labels that continue a given dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.data.preprocessing.dictionaries import LabelTable

COUNTS = st.dictionaries(st.sampled_from(["NP", "VP", "S", "<unk>", "<s>", "_"]), st.integers(1, 9))


def table(counts, *dictionary, may_grow=True):
    labels = LabelTable(*dictionary, may_grow=may_grow)
    labels.add(counts)
    return labels


def entries(dictionary):
    return list(zip(dictionary.symbols, dictionary.count, strict=True))


@given(old=COUNTS, new=COUNTS, may_grow=st.booleans())
def test_a_continued_dictionary_keeps_its_labels_and_counts(old, new, may_grow):
    dictionary = table(old).dictionary()
    before = entries(dictionary)
    second = table(new, dictionary, may_grow=may_grow)
    after = entries(second.dictionary())
    extra = new.keys() - old.keys()
    assert after[: len(before)] == before
    assert sorted(count for _, count in after[len(before) :]) == sorted(
        new[label] for label in extra if may_grow
    )
    assert len(second.unknown()) == (0 if may_grow else len(extra))
