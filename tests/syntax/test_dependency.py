"""Dependency trees: what they refuse; depths and kept words against naive walks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.syntax.dependency import DependencyTree
from tests.support.hostile import trees
from tests.twins.dependency import depth


def nearest_kept(heads, word, keep):
    """The nearest proper ancestor that is kept; None where there is none."""
    while heads[word] != word:
        word = heads[word]
        if keep[word]:
            return word
    return None


def without(heads, keep):
    """The heads of the kept words by a walk for each; the first without a kept ancestor is root."""
    words = [word for word in range(len(heads)) if keep[word]]
    lifted = {word: nearest_kept(heads, word, keep) for word in words}
    root = next((word for word in words if lifted[word] is None), None)
    return [words.index(root if lifted[word] is None else lifted[word]) for word in words]


@st.composite
def forests(draw):
    """Heads of several trees whose words are mixed with one another."""
    sizes = draw(st.lists(trees(8), min_size=2, max_size=4))
    places = draw(st.permutations(range(sum(map(len, sizes)))))
    heads, start = [0] * len(places), 0
    for tree in sizes:
        for word, head in enumerate(tree):
            heads[places[start + word]] = places[start + head]
        start += len(tree)
    return heads


@given(trees())
def test_depths_count_the_edges_up_to_the_root(heads):
    tree = DependencyTree(heads)
    assert tree.depths.tolist() == [depth(heads, word) for word in range(len(heads))]
    assert tree.heads.tolist() == heads
    assert tree.depths[tree.root] == 0


@pytest.mark.parametrize("length", [2, 3, 7, 8, 9, 64, 65, 1000])
def test_a_chain_is_as_deep_as_it_is_long_in_either_direction(length):
    rightmost_deepest = DependencyTree([0, *range(length - 1)])
    leftmost_deepest = DependencyTree([*range(1, length), length - 1])
    assert rightmost_deepest.depths.tolist() == list(range(length))
    assert leftmost_deepest.depths.tolist() == list(range(length))[::-1]


@given(forests())
def test_later_roots_and_all_below_them_hang_off_the_first(heads):
    roots = [word for word, head in enumerate(heads) if word == head]
    joined = [roots[0] if word in roots else head for word, head in enumerate(heads)]
    tree = DependencyTree(heads)
    assert tree.heads.tolist() == joined
    assert tree.depths.tolist() == [depth(joined, word) for word in range(len(heads))]
    assert tree.root == roots[0]


def test_crossing_edges_are_a_tree_like_any_other():
    tree = DependencyTree([2, 3, 2, 2, 0])  # 0-2 crosses 1-3, and 4-0 crosses both
    assert tree.depths.tolist() == [1, 2, 0, 1, 2]


def test_one_word_is_its_own_head_at_depth_0():
    tree = DependencyTree([0])
    assert (len(tree), tree.root, tree.depths.tolist()) == (1, 0, [0])


def test_no_words_are_a_tree_without_a_root():
    tree = DependencyTree([])
    assert (len(tree), tree.depths.tolist()) == (0, [])
    with pytest.raises(ValueError, match="no root"):
        tree.root  # noqa: B018 - the access is the test


def test_the_given_heads_are_not_changed():
    heads = np.array([0, 1, 1])
    DependencyTree(heads)
    assert heads.tolist() == [0, 1, 1]


@pytest.mark.parametrize(("heads", "word", "head"), [([0, 0, 3], 2, 3), ([1, 1, -1], 2, -1)])
def test_a_head_out_of_range_is_named_with_its_word(heads, word, head):
    with pytest.raises(ValueError, match=f"word {word} has head {head}: expected 0 to 2"):
        DependencyTree(heads)


def test_the_words_of_a_cycle_are_named_in_its_order():
    with pytest.raises(ValueError, match="cycle") as caught:
        DependencyTree([0, 2, 3, 1, 1])
    assert (
        "2 -> 3 -> 4 -> 2" in str(caught.value)
        or "3 -> 4 -> 2 -> 3" in str(caught.value)
        or ("4 -> 2 -> 3 -> 4" in str(caught.value))
    )


def test_a_sentence_without_a_root_is_a_cycle():
    with pytest.raises(ValueError, match=r"1 -> 2 -> 1|2 -> 1 -> 2"):
        DependencyTree([1, 0])


@given(trees(), st.data())
def test_words_left_out_hand_their_dependents_to_the_nearest_ancestor(heads, data):
    keep = data.draw(st.lists(st.booleans(), min_size=len(heads), max_size=len(heads)))
    restricted = DependencyTree(heads).restricted_to(np.array(keep, dtype=bool))
    assert restricted.heads.tolist() == without(heads, keep)


def test_keeping_every_word_keeps_the_tree():
    heads = [1, 2, 2, 2, 3]
    assert DependencyTree(heads).restricted_to(np.ones(5, dtype=bool)).heads.tolist() == heads


def test_leaving_out_a_long_chain_joins_its_ends():
    keep = np.zeros(100, dtype=bool)
    keep[[0, 99]] = True
    assert DependencyTree([0, *range(99)]).restricted_to(keep).heads.tolist() == [0, 0]
