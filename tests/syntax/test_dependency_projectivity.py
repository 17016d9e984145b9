"""Projectivity: against naive definitions, and in time that grows no faster than the sentence."""

import random
import time

import pytest
from hypothesis import example, given

from fairseq_phrase.syntax.dependency import DependencyTree, projected_bounds
from tests.support.hostile import trees
from tests.twins.projectivity import is_projective


def below(heads, top):
    """A word and all that depends on it, by a walk from each word."""
    words = []
    for word in range(len(heads)):
        above = word
        while above != top and heads[above] != above:
            above = heads[above]
        if above == top:
            words.append(word)
    return words


@given(trees())
def test_a_tree_is_projective_if_every_subtree_is_a_span(heads):
    subtrees = [below(heads, top) for top in range(len(heads))]
    spans = all(words[-1] - words[0] + 1 == len(words) for words in subtrees)
    assert is_projective(DependencyTree(heads)) == spans


@given(trees())
@example([2, 3, 2, 2, 0])
def test_projected_subtrees_are_the_longest_spans_around_a_word_within_its_subtree(heads):
    starts, ends = projected_bounds(DependencyTree(heads))
    for top, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        words = set(below(heads, top))
        assert top in range(start, end)
        assert words.issuperset(range(start, end))
        assert start - 1 not in words
        assert end not in words


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        ([], True),
        ([0], True),
        ([1, 1, 1], True),
        ([2, 2, 2, 2], True),
        ([2, 3, 3, 3], False),  # 0 hangs off 2, across 1, which hangs off the root
        ([1, 2, 2, 1], False),
    ],
)
def test_projectivity_of_small_trees(heads, expected):
    assert is_projective(DependencyTree(heads)) is expected


@pytest.mark.parametrize("shape", ["chain", "flat", "random", "shuffled chain"])
def test_a_hundred_thousand_words_take_seconds(shape):
    count, draw = 100_000, random.Random(1)
    order = list(range(count))
    if shape in ("random", "shuffled chain"):
        draw.shuffle(order)
    heads = [order[0]] * count
    for place in range(1, count):
        above = {"flat": 0, "random": draw.randrange(place)}.get(shape, place - 1)
        heads[order[place]] = order[above]
    tree = DependencyTree(heads)
    start = time.process_time()
    starts, ends = projected_bounds(tree)
    assert time.process_time() - start < 10
    assert (starts[tree.root], ends[tree.root]) == (0, count)
    assert is_projective(tree) == (shape in ("chain", "flat"))
