"""Dependency trees: what they refuse; depths, cuts and positions against naive walks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.syntax.dependency import RELATIONS, DependencyTree
from tests.support.hostile import trees


def depth(heads, word):
    """Edges up to the root, one at a time."""
    count = 0
    while heads[word] != word:
        word, count = heads[word], count + 1
    return count


def nearest_kept(heads, word, keep):
    """The nearest proper ancestor that is kept; None where there is none."""
    while heads[word] != word:
        word = heads[word]
        if keep[word]:
            return word
    return None


def without(heads, keep):
    """The heads of the kept words by a walk for each; the first without a kept ancestor is root."""
    kept = [word for word in range(len(heads)) if keep[word]]
    lifted = {word: nearest_kept(heads, word, keep) for word in kept}
    root = next((word for word in kept if lifted[word] is None), None)
    return [kept.index(root if lifted[word] is None else lifted[word]) for word in kept]


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


def edges_between(heads, start):
    """Edges from one word to every other, by breadth-first search."""
    neighbours = [[] for _ in heads]
    for word, head in enumerate(heads):
        if word != head:
            neighbours[word].append(head)
            neighbours[head].append(word)
    found, front = {start: 0}, [start]
    for word in front:
        for other in neighbours[word]:
            if other not in found:
                found[other] = found[word] + 1
                front.append(other)
    return [found[word] for word in range(len(heads))]


def is_above(heads, upper, lower):
    """Whether a walk from one word towards the root meets the other."""
    while heads[lower] != lower:
        lower = heads[lower]
        if lower == upper:
            return True
    return False


def relative_position(heads, relation, i, j):
    """Eq. 6 for one pair, and what ``path`` and ``distance`` make of it."""
    order = (i > j) - (i < j)
    if relation == "distance":
        return order * edges_between(heads, i)[j]
    same_edge = i != j and (heads[i] == j or heads[j] == i)
    if relation == "path":
        same_edge = is_above(heads, i, j) or is_above(heads, j, i)
    if same_edge:
        return depth(heads, i) - depth(heads, j)
    return order * (depth(heads, i) + depth(heads, j))


@given(trees())
def test_distances_are_those_of_a_breadth_first_search(heads):
    expected = [edges_between(heads, word) for word in range(len(heads))]
    assert DependencyTree(heads).distances().tolist() == expected


@pytest.mark.parametrize("relation", RELATIONS)
@given(heads=trees(12))
def test_relative_positions_are_the_definition_pair_by_pair(relation, heads):
    words = range(len(heads))
    expected = [[relative_position(heads, relation, i, j) for j in words] for i in words]
    assert DependencyTree(heads).relative_positions(relation).tolist() == expected


def test_the_three_relations_differ_where_the_specification_says_so():
    # 0 <- 1 <- 2 <- 3, and 4 under 1: of 3 and 4 the lowest common ancestor is 1, not the root.
    tree = DependencyTree([0, 0, 1, 2, 1])
    edge, path, distance = (tree.relative_positions(relation) for relation in RELATIONS)
    assert (edge[3, 1], path[3, 1], distance[3, 1]) == (4, 2, 2)  # two levels below
    assert (edge[1, 3], path[1, 3], distance[1, 3]) == (-4, -2, -2)
    assert (edge[3, 4], path[3, 4], distance[3, 4]) == (-5, -5, -3)
    assert (edge[3, 2], path[3, 2], distance[3, 2]) == (1, 1, 1)
    # A word to the left of its head is below it, and yet before it.
    tree = DependencyTree([1, 1])
    assert [tree.relative_positions(relation)[0, 1] for relation in RELATIONS] == [1, 1, -1]


@given(forests(), st.sampled_from(RELATIONS))
def test_words_under_several_roots_are_related_through_the_first(heads, relation):
    joined = DependencyTree(heads).heads.tolist()
    actual = DependencyTree(heads).relative_positions(relation)
    assert actual.tolist() == DependencyTree(joined).relative_positions(relation).tolist()
    assert (actual == -actual.T).all()


@pytest.mark.parametrize("relation", RELATIONS)
def test_one_word_is_at_0_from_itself_and_no_words_have_no_relations(relation):
    assert DependencyTree([0]).relative_positions(relation).tolist() == [[0]]
    assert DependencyTree([]).relative_positions(relation).shape == (0, 0)


def test_an_unknown_relation_is_named_with_those_there_are():
    with pytest.raises(ValueError, match="unknown relation 'depth', expected one of edge, path"):
        DependencyTree([0]).relative_positions("depth")
