"""The Tree-LSTMs against recursion over single nodes, in values and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.methods.recurrent.tree_lstm import (
    BinaryTreeLSTM,
    ChildSumTreeLSTM,
    constituency_trees,
    dependency_trees,
)
from fairseq_phrase.syntax.tree_arrays import binarized
from tests.support.tolerance import assert_same
from tests.support.tree_strategies import SHAPES, Tree, chain, flat, trees, zigzag
from tests.twins import tree_lstm as twins
from tests.twins.tree_lstm import Node

WIDTH, HIDDEN = 3, 4
CELLS = {"child-sum": (ChildSumTreeLSTM, twins.child_sum), "binary": (BinaryTreeLSTM, twins.binary)}


def make_module(kind):
    torch.manual_seed(3)
    return CELLS[kind][0](input_dim=WIDTH, hidden_dim=HIDDEN).double()


def compare(module, found, nodes, cell, inputs, padding):
    """Fail unless states and gradients of a batch are those of recursion, sentence by sentence."""
    expected = torch.zeros(*inputs.shape[:2], HIDDEN, dtype=torch.float64)
    for row, roots in enumerate(nodes):
        states = twins.twin(module, roots, inputs[row], cell)
        names = [name for name in states if name >= 0]
        assert sorted(names) == (~padding[row]).nonzero().flatten().tolist()
        for name in names:
            expected[row, name] = states[name]
    assert_same(found, expected)
    weights = torch.randn_like(expected)
    variables = [inputs, *module.parameters()]
    pairs = [
        torch.autograd.grad((states * weights).sum(), variables, allow_unused=True)
        for states in (found, expected)
    ]
    for gradient, expected_gradient in zip(*pairs, strict=True):
        if (
            gradient is None or expected_gradient is None
        ):  # leaves alone have no use for children's weights
            assert all(
                values is None or not values.any() for values in (gradient, expected_gradient)
            )
        else:
            assert_same(gradient, expected_gradient)


# Dependencies


def dependency_nodes(words, heads):
    """The trees of one sentence's tokens, and the number of tokens."""
    nodes = [Node(token) for token in range(len(words))]
    first = {}
    for token, word in enumerate(words):
        if word >= 0:
            first.setdefault(word, nodes[token])
    root = next((word for word, head in enumerate(heads) if head == word), None)
    roots = [nodes[token] for token, word in enumerate(words) if word < 0]
    for word, node in first.items():
        above = root if heads[word] == word else heads[word]
        if word == root:
            roots.append(node)
        else:
            first[above].children.append(node)
    for token, word in enumerate(words):
        if word >= 0 and first[word] is not nodes[token]:
            first[word].children.append(nodes[token])
    return roots


def batch_of(sentences):
    """Pad sentences of words and heads; the tokens of every second one are padded on the left."""
    tokens = 1 + max(len(words) for words, _ in sentences)
    words = torch.full((len(sentences), tokens), -1)
    heads = torch.full((len(sentences), max(len(h) for _, h in sentences)), -1)
    padding = torch.ones(len(sentences), tokens, dtype=torch.bool)
    for row, (word, head) in enumerate(sentences):
        start = tokens - len(word) if row % 2 else 0
        words[row, start : start + len(word)] = torch.tensor(word)
        padding[row, start : start + len(word)] = False
        heads[row, : len(head)] = torch.tensor(head)
    return words, heads, padding


def shifted(nodes, by):
    return [Node(node.name + by, shifted(node.children, by)) for node in nodes]


def check_dependencies(sentences):
    words, heads, padding = batch_of(sentences)
    module = make_module("child-sum")
    inputs = torch.randn(*padding.shape, WIDTH, dtype=torch.float64, requires_grad=True)
    levels = dependency_trees(words, heads, padding).levels
    nodes = [
        shifted(dependency_nodes(word, head), int(padding[row].long().argmin()))
        for row, (word, head) in enumerate(sentences)
    ]
    compare(module, module(inputs, levels), nodes, twins.child_sum, inputs, padding)


NON_PROJECTIVE = ([0, 1, 1, 2, 3, -1], [2, 3, 2, 2])
SENTENCES = {
    "one word": ([0, -1], [0]),
    "no word": ([-1], []),
    "one word of three subwords": ([0, 0, 0], [0]),
    "a chain": ([*range(30), -1], [*range(1, 30), 29]),
    "flat": ([*range(20), -1], [7] * 20),
    "non-projective": NON_PROJECTIVE,
    "two roots": ([0, 1, 2, 3, -1], [0, 0, 2, 2]),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_child_sum_is_recursion_over_dependencies(name):
    check_dependencies([SENTENCES[name]])


def test_child_sum_is_recursion_over_a_padded_batch():
    check_dependencies(list(SENTENCES.values()))


@st.composite
def sentences(draw):
    count = draw(st.integers(1, 8))
    heads = [0] + [draw(st.integers(0, word - 1)) for word in range(1, count)]
    order = draw(st.permutations(range(count)))
    moved = [0] * count
    for word, head in enumerate(heads):
        moved[order[word]] = order[head]
    words = [word for word in range(count) for _ in range(draw(st.integers(1, 2)))]
    return words + [-1] * draw(st.integers(0, 1)), moved


@given(st.lists(sentences(), min_size=1, max_size=4))
def test_child_sum_is_recursion_over_any_dependencies(batch):
    check_dependencies(batch)


def test_the_root_of_dependencies_is_its_first_subword():
    words, heads, padding = batch_of([NON_PROJECTIVE, SENTENCES["no word"], ([0, -1], [0])])
    assert dependency_trees(words, heads, padding).roots.tolist() == [3, 6, 0]


@pytest.mark.parametrize(
    ("words", "heads", "message"),
    [
        ([0, 1], [1, 2], "lies outside its sentence"),
        ([0, 2], [0, 0], "lies outside its sentence"),
        ([0, 1, 2], [0, 2, 1], "a node is below itself"),
    ],
)
def test_heads_that_are_no_tree_are_refused(words, heads, message):
    padding = torch.zeros(1, len(words), dtype=torch.bool)
    with pytest.raises(ValueError, match=message):
        dependency_trees(torch.tensor([words]), torch.tensor([heads]), padding)


# Constituents


def constituent_nodes(tree: Tree, first_constituent: int):
    nodes = [Node(leaf) for leaf in range(tree.leaves)]
    nodes += [Node(first_constituent + number) for number in range(len(tree.parents))]
    above = [*tree.above, *tree.parents]
    roots = []
    for node, parent in zip(nodes, above, strict=True):
        (nodes[tree.leaves + parent].children if parent >= 0 else roots).append(node)

    def leftmost(node):
        return leftmost(node.children[0]) if node.children else node.name

    def ordered(node):
        return Node(node.name, sorted(map(ordered, node.children), key=leftmost))

    return [*map(ordered, roots)]


def constituents_of(batch: list[Tree]):
    """The trees as words, spans and padding; every leaf is a word."""
    tokens = max(tree.leaves for tree in batch)
    words = torch.full((len(batch), tokens), -1)
    spans = torch.full((len(batch), max(len(tree.parents) for tree in batch), 2), -1)
    padding = torch.ones(len(batch), tokens, dtype=torch.bool)
    for row, tree in enumerate(batch):
        words[row, : tree.leaves] = torch.arange(tree.leaves)
        padding[row, : tree.leaves] = False
        if tree.parents:
            spans[row, : len(tree.parents)] = torch.tensor(tree.spans)
    return words, spans, padding


def check_constituents(batch, kind):
    words, spans, padding = constituents_of(batch)
    module = make_module(kind)
    trees = constituency_trees(words, spans, padding, binary=kind == "binary")
    shape = trees.padding_mask.shape
    inputs = torch.randn(*shape, WIDTH, dtype=torch.float64, requires_grad=True)
    nodes = [constituent_nodes(tree, words.size(1)) for tree in batch]
    if kind == "binary":
        nodes = [[*map(twins.binarized, roots)] for roots in nodes]
    states = module(inputs, trees.levels)
    compare(module, states, nodes, CELLS[kind][1], inputs, trees.padding_mask)


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize(
    "tree",
    [*SHAPES.values(), chain(40), zigzag(30, 5), flat(20)],
    ids=[*SHAPES, "a deep chain", "a zigzag", "flat"],
)
def test_constituents_are_computed_as_by_recursion(tree, kind):
    check_constituents([tree], kind)


@pytest.mark.parametrize("kind", CELLS)
def test_a_padded_batch_of_constituents_is_computed_as_by_recursion(kind):
    check_constituents([tree for name, tree in SHAPES.items() if "200" not in name], kind)


@given(st.lists(trees(), min_size=1, max_size=4), st.sampled_from(sorted(CELLS)))
def test_any_constituents_are_computed_as_by_recursion(batch, kind):
    check_constituents(batch, kind)


def test_the_root_of_constituents_is_the_last_one_or_the_only_token():
    batch = [flat(3), Tree(1, [], [-1]), chain(3)]
    trees = constituency_trees(*constituents_of(batch), binary=True)
    assert trees.roots.tolist() == [4, 0, 6]


def test_all_nodes_of_a_height_are_one_step():
    words = torch.arange(8).expand(50, -1)
    spans = torch.tensor([[0, 2], [2, 4], [0, 4], [4, 6], [6, 8], [4, 8], [0, 8]]).expand(50, -1, 2)
    padding = torch.zeros(50, 8, dtype=torch.bool)
    levels = constituency_trees(words, spans, padding, binary=True).levels
    assert [step.size for step in levels.steps] == [400, 200, 100, 50]


def test_binarization_branches_to_the_right():
    parents, sides = binarized(np.array([4, 4, 4, 4, -1]))
    assert parents.tolist() == [4, 5, 6, 6, -1, 4, 5]
    assert sides.tolist() == [0, 0, 0, 1, 0, 1, 1]
