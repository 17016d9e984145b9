"""Trees of many sentences at once, against their plain twins for one sentence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.tree_arrays import (
    constituent_depths,
    constituent_parents,
    dependency_depths,
)
from tests.support.hostile import constituents, trees

# Their depths need as many doublings as any tree's of their length.
RISING, FALLING = [*range(1, 64), 63], [0, *range(63)]


def laid_end_to_end(rows):
    """The heads of several sentences as indices into one array, and the longest length."""
    starts = np.cumsum([0, *map(len, rows)])[:-1]
    heads = [np.array(row, dtype=np.int64) + start for row, start in zip(rows, starts, strict=True)]
    return np.concatenate([np.zeros(0, dtype=np.int64), *heads]), max(map(len, rows), default=0)


@given(rows=st.lists(trees(), max_size=4))
@example(rows=[RISING, [0], FALLING])
@example(rows=[FALLING[:63]])  # and no longer sentence beside it
def test_depths_are_those_of_each_sentence(rows):
    heads, longest = laid_end_to_end(rows)
    depths, circling = dependency_depths(heads, longest)
    expected = [depth for row in rows for depth in DependencyTree(row).depths.tolist()]
    assert depths.tolist() == expected
    assert not circling.any()


@pytest.mark.parametrize("length", [2, 3, 4, 5, 8, 63, 64, 65])
def test_words_on_a_cycle_and_below_one_are_found_and_no_others(length):
    cycle = [*range(1, length), 0]
    below = [0, 2, 1, 1, 3]  # 1 and 2 form a cycle, 3 and 4 hang below it
    heads, longest = laid_end_to_end([[1, 1], cycle, below, [0]])
    _, circling = dependency_depths(heads, longest)
    expected = [False] * 2 + [True] * length + [False, True, True, True, True] + [False]
    assert circling.tolist() == expected


def test_no_sentences_have_no_depths():
    nothing = np.zeros(0, dtype=np.int64)
    depths, circling = dependency_depths(nothing, 0)
    assert len(depths) == len(circling) == 0
    assert len(constituent_parents(nothing, nothing)) == len(constituent_depths(nothing)) == 0


@given(rows=st.lists(constituents(), max_size=4))
def test_parents_and_depths_of_constituents_are_those_of_each_sentence(rows):
    spans = np.concatenate([np.zeros((0, 2), dtype=np.int64), *(tree.spans for tree in rows)])
    sentences = np.repeat(np.arange(len(rows)), list(map(len, rows)))
    parents = constituent_parents(spans[:, 0], sentences)
    expected, start = [], 0
    for tree in rows:
        expected += [parent + start if parent >= 0 else -1 for parent in tree.parents.tolist()]
        start += len(tree)
    assert parents.tolist() == expected
    depths = [depth for tree in rows for depth in tree.depths.tolist()]
    assert constituent_depths(parents).tolist() == depths
