"""The sentences of a joined line, found in its trees."""

from __future__ import annotations

import numpy as np
import pytest

from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence_boundaries import sentence_trees, sentences_of_constituents

ROOT = 3


@pytest.mark.parametrize(
    ("separators", "expected"),
    [
        ([], [0, 0, 1, 2, 2]),  # the run of words between two constituents is a sentence
        ([2], [0, 0, 0, 1, 1]),
        ([4], [0, 0, 1, 2, 2]),
        ([0], [0, 1, 2, 3, 3]),
        ([2, 3], [0, 0, 0, 0, 1]),
    ],
)
def test_a_separator_belongs_to_the_sentence_before_it(separators, expected):
    spans, labels = np.array([[0, 2], [3, 5], [0, 5]]), np.array([7, 7, ROOT])
    assert sentences_of_constituents(spans, labels, ROOT, 5, separators).tolist() == expected


@pytest.mark.parametrize(
    ("spans", "labels"), [([[0, 2], [0, 4]], [7, 7]), ([[0, 2], [0, 3]], [7, ROOT]), ([], [])]
)
def test_without_a_joined_tree_over_the_line_it_is_one_sentence(spans, labels):
    spans = np.array(spans, dtype=np.int64).reshape(-1, 2)
    assert sentences_of_constituents(spans, np.array(labels), ROOT, 4).tolist() == [0] * 4


@pytest.mark.parametrize(
    ("heads", "relations", "expected"),
    [
        ([1, 1, 1, 2], ["a", "root", "root", "b"], [[1, 1], [0, 0]]),
        ([1, 1, 1, 1], ["a", "root", "b", "c"], [[1, 1, 1, 1]]),  # one root
        ([1, 1, 1, 1], ["a", "root", "root", "root"], [[1, 1], [0], [0]]),
        ([0, 0, 0, 1], ["root", "root", "b", "c"], [[0, 0, 0, 1]]),  # the sentences alternate
    ],
)
def test_a_line_is_divided_at_its_roots(heads, relations, expected):
    trees = sentence_trees(DependencyTree(heads), relations)
    assert [tree.heads.tolist() for tree in trees] == expected
