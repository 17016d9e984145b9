"""The sentences of a joined line, found in its trees."""

from __future__ import annotations

import pytest

from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence_boundaries import sentence_trees


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
