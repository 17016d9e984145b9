"""The constants of a batch of trees against the trees' parents."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.methods.common.tree_batch import TreeBatch
from tests.support.tree_strategies import (
    SHAPES,
    Tree,
    chain,
    flat,
    forests,
    grown,
    pad_trees,
    unary,
)

padding = st.tuples(st.integers(0, 2), st.integers(0, 2))


@given(forests, padding)
def test_its_constants_are_those_of_the_parents(forest: list[Tree], extra: tuple[int, int]) -> None:
    batch = pad_trees(forest, *extra)
    assert batch.num_nodes == batch.num_leaves + batch.num_nonterminals
    for row, tree in enumerate(forest):
        nodes = range(len(tree.parents))
        for i in range(batch.num_nonterminals):
            real = i < len(tree.parents)
            under = set(tree.under(i)) if real else set()
            assert set(batch.membership[row, i].nonzero().flatten().tolist()) == under
            below = {t for t in nodes if real and i in above(t, tree)}
            assert set(batch.subtrees[row, i].nonzero().flatten().tolist()) == below
            assert batch.leaf_counts[row, i] == len(under)
            assert batch.depths[row, i] == (tree.depth(i) if real else 0)
        depths = [len(tree.ancestors(j)) for j in range(tree.leaves)]
        assert batch.leaf_depths[row].tolist() == depths + [0] * (batch.num_leaves - tree.leaves)
    assert batch.max_depth == max(
        len(tree.ancestors(j)) for tree in forest for j in range(tree.leaves)
    )
    # Sizes that the device is told, so that it does not wait for the host.
    assert batch.sizes[3:] == [batch.membership.sum(), batch.subtrees.sum()]
    counts = [len(tree.under(i)) for tree in forest for i in range(len(tree.parents))]
    assert batch.max_span == max(counts, default=0)


def above(node: int, tree: Tree) -> set[int]:
    """A node's ancestors and itself."""
    nodes_above = set()
    while node >= 0:
        nodes_above.add(node)
        node = tree.parents[node]
    return nodes_above


@given(forests, padding)
def test_paths_are_all_triples_sorted_by_leaf(forest: list[Tree], extra: tuple[int, int]) -> None:
    paths = list(zip(*(index.tolist() for index in pad_trees(forest, *extra).paths()), strict=True))
    expected = {
        (row, i, t, j)
        for row, tree in enumerate(forest)
        for j in range(tree.leaves)
        for i in tree.ancestors(j)
        for t in tree.path(i, j)
    }
    assert len(paths) == len(expected)
    assert set(paths) == expected
    columns = [(row, j) for row, _, _, j in paths]
    assert columns == sorted(columns)


def test_a_deep_chain_and_a_flat_tree_have_as_many_paths_as_they_should() -> None:
    assert len(pad_trees([chain(60)]).paths().leaf) == sum(
        d * (d + 1) // 2 for d in [*range(1, 61), 60]
    )
    assert len(pad_trees([flat(200)]).paths().leaf) == 200


@given(forests, padding)
def test_subtree_masking_is_by_parents_and_no_row_is_empty(
    forest: list[Tree], extra: tuple[int, int]
) -> None:
    batch = pad_trees(forest, *extra)
    mask, keys = batch.subtree_mask[:, 0], batch.key_mask[:, 0, 0]
    n = batch.num_leaves
    for row, tree in enumerate(forest):
        for query in range(batch.num_nodes):
            expected = {query}
            if query < n:
                expected |= set(range(tree.leaves))
            elif query - n < len(tree.parents):
                expected |= set(tree.under(query - n))
                expected |= {n + t for t in range(len(tree.parents)) if query - n in above(t, tree)}
            assert set(mask[row, query].nonzero().flatten().tolist()) == expected
        real = {*range(tree.leaves), *(n + t for t in range(len(tree.parents)))}
        assert set(keys[row].nonzero().flatten().tolist()) == real
        assert torch.equal(batch.node_padding_mask[row], ~keys[row])


def test_a_sentence_of_padding_alone_may_be_attended_to() -> None:
    batch = TreeBatch(
        leaf_spans=torch.full((1, 2, 2), -1), padding_mask=torch.ones(1, 3, dtype=torch.bool)
    )
    assert batch.key_mask.all()


@given(forests, st.booleans(), st.data())
def test_spans_over_words_become_spans_over_their_subwords(
    forest: list[Tree], left: bool, data: st.DataObject
) -> None:
    """Each word of one to three subwords; an end of sentence; padding on either side."""
    rows, spans, expected = [], [], []
    for tree in forest:
        counts = data.draw(st.lists(st.integers(1, 3), min_size=tree.leaves, max_size=tree.leaves))
        words = [word for word, count in enumerate(counts) for _ in range(count)]
        rows.append([*words, -1])
        spans.append(tree.spans)
        expected.append(
            [[words.index(s), words.index(e - 1) + counts[e - 1]] for s, e in tree.spans]
        )
    width, constituents = max(map(len, rows)), max(map(len, spans))
    words, padding_mask = torch.full((len(rows), width), -1), torch.ones(len(rows), width).bool()
    padded_spans = torch.full((len(rows), constituents, 3), -1)
    for number, row in enumerate(rows):
        start = width - len(row) if left else 0
        words[number, start : start + len(row)] = torch.tensor(row)
        padding_mask[number, start : start + len(row)] = False
        for node, span in enumerate(spans[number]):
            padded_spans[number, node] = torch.tensor([*span, 7])
        offset = torch.tensor(start)
        expected[number] = [[int(s + offset), int(e + offset)] for s, e in expected[number]]
    batch = TreeBatch.from_words(words, padded_spans, padding_mask)
    for number, tree_spans in enumerate(expected):
        padding = [[-1, -1]] * (constituents - len(tree_spans))
        assert batch.leaf_spans[number].tolist() == tree_spans + padding


def test_sentences_can_be_chosen() -> None:
    batch = pad_trees([grown(5, 4, 0), flat(3), chain(4)])
    selection = batch.index_select(torch.tensor([2, 0, 0]))
    assert torch.equal(selection.membership, batch.membership[[2, 0, 0]])
    assert torch.equal(selection.subtree_mask, batch.subtree_mask[[2, 0, 0]])


def test_of_two_nonterminals_with_the_same_leaves_the_later_is_the_parent() -> None:
    batch = pad_trees([unary(3, 2)])
    assert batch.depths.tolist() == [[2, 1, 0]]
    assert batch.subtrees[0].tolist() == torch.ones(3, 3).tril().bool().tolist()


def test_a_batch_without_nonterminals_has_empty_constants() -> None:
    batch = pad_trees([SHAPES["one leaf under nothing"]] * 2)
    assert (batch.num_nonterminals, batch.max_depth, batch.max_span) == (0, 0, 0)
    assert batch.subtree_mask.tolist() == [[[[True]]]] * 2
    words = torch.tensor([[0, -1], [0, 0]])
    empty = torch.zeros(2, 0, 3, dtype=torch.int64)
    trees = TreeBatch.from_words(words, empty, torch.zeros(2, 2, dtype=torch.bool))
    assert trees.leaf_spans.shape == (2, 0, 2)


PADDING = torch.tensor([[False, False, False, True]])


@pytest.mark.parametrize(
    "spans",
    [
        [[0, 2], [1, 3]],  # crossing
        [[0, 3], [0, 2]],  # the parent first
        [[1, 1]],  # empty
        [[2, 4]],  # padding
        [[3, 5]],  # out of range
        [[-1, 2]],
        [[-2, -2]],
    ],
)
def test_spans_that_are_no_tree_are_refused(spans: list[list[int]]) -> None:
    with pytest.raises(ValueError, match=r"nonterminal [01] of sentence 0 covers the leaves \["):
        TreeBatch(leaf_spans=torch.tensor([spans]), padding_mask=PADDING)


def test_malformed_tensors_are_refused_by_name() -> None:
    spans = torch.zeros(1, 0, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"padding_mask must be a torch.bool .* \(batch, leaves\)"):
        TreeBatch(leaf_spans=spans, padding_mask=PADDING.long())
    with pytest.raises(ValueError, match=r"leaf_spans must be a torch.int64"):
        TreeBatch(leaf_spans=spans.float(), padding_mask=PADDING)
    with pytest.raises(ValueError, match=r"leaf_spans must be .* shape \(1, nonterminals, 2\)"):
        TreeBatch(leaf_spans=spans.expand(2, 0, 2), padding_mask=PADDING)
    with pytest.raises(ValueError, match=r"words must be a torch.int64"):
        TreeBatch.from_words(PADDING, spans, PADDING)


@pytest.mark.parametrize("words", [[0, 2, 3, -1], [1, 1, 1, -1], [0, -1, 1, -1], [1, 0, 0, -1]])
def test_words_out_of_order_are_refused(words: list[int]) -> None:
    spans = torch.zeros(1, 0, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match="in order, from 0, and together"):
        TreeBatch.from_words(torch.tensor([words]), spans, PADDING)


def test_constituents_of_words_that_are_not_there_are_refused() -> None:
    spans = torch.tensor([[[0, 3, 5]]])
    with pytest.raises(ValueError, match="words that its sentence lacks"):
        TreeBatch.from_words(torch.tensor([[0, 1, -1, -1]]), spans, PADDING)
