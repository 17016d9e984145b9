"""Surface tokens of several words: their words in the text's form, and trees over tokens."""

import pytest
from hypothesis import given

from fairseq_phrase.syntax.alignment import merged_into_tokens, words_of_token
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import Edge, ParsedSentence
from tests.support.hostile import constituents


@pytest.mark.parametrize(
    ("words", "token", "form", "expected", "spells"),
    [
        (["zum"], "zum", "Z\u00adum", ["Z\u00adum"], True),
        (["zu", "dem"], "zum", "zum", ["zu", "dem"], False),
        (["zu", "dem"], "zum", "Zum", ["zu", "dem"], False),
        (["can", "not"], "cannot", "CanNot", ["Can", "Not"], True),
        (["10", "000 km"], "10 000 km", "10\u00a0000 km", ["10", "000▁km"], True),
        (["dá", "me"], "dame", "da\u0301me", ["da\u0301", "me"], True),
    ],
)
def test_the_words_of_a_token_have_the_texts_form(words, token, form, expected, spells):
    forms, expansions = words_of_token(words, token, form)
    assert forms == expected
    assert expansions == ([] if spells else [(form, tuple(expected))])


def test_a_token_takes_the_place_of_its_highest_word():
    """Er ging zum Haus: zum is zu dem, zu is above dem."""
    sentence = ParsedSentence(
        ["Er", "ging", "zu", "dem", "Haus"], [True] * 5, tree=DependencyTree([1, 1, 4, 4, 1]),
        deprels=["nsubj", "root", "case", "det", "obl"], tags=["PRON", "VERB", "ADP", "DET", "NOUN"],
        constituents=ConstituencyTree([(2, 5), (3, 5), (0, 5)], ["PP", "NP", "S"], 5),
        features={"factor1": list("abcde")}, edges={"enhanced": [Edge(4, 3, "det"), Edge(2, 3, "fixed")]},
    )  # fmt: skip
    tokens = merged_into_tokens(sentence, [1, 1, 2, 1], ["Er", "ging", "zum", "Haus"], [True] * 4)
    assert tokens.tree.heads.tolist() == [1, 1, 3, 1]
    assert tokens.deprels == ["nsubj", "root", "case", "obl"]
    assert tokens.tags == ["PRON", "VERB", "ADP", "NOUN"]
    assert tokens.constituents.spans.tolist() == [[3, 4], [2, 4], [0, 4]]
    assert tokens.constituents.labels == ["NP", "PP", "S"]
    assert tokens.features == {"factor1": list("abce")}
    assert (tokens.edges, tokens.lost_edges) == ({"enhanced": [Edge(3, 2, "det")]}, 1)


@given(constituents())
def test_constituents_over_tokens_do_not_cross(tree):
    count = tree.num_words
    sentence = ParsedSentence(["a"] * count, [True] * count, constituents=tree)
    sizes = [2] * (count // 2) + [1] * (count % 2)
    tokens = merged_into_tokens(sentence, sizes, ["aa"] * len(sizes), [True] * len(sizes))
    assert tokens.constituents.num_words == len(sizes)
    assert len(tokens.constituents) <= len(tree)
