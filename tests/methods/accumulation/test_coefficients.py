"""Coefficients of hierarchical accumulation: both forms against loops, and deep trees."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fairseq_phrase.methods.accumulation import coefficients
from fairseq_phrase.methods.accumulation.coefficients import lists_paths
from fairseq_phrase.methods.common.tree_batch import Indices
from tests.support.accumulations import build, conventions, random_states, random_values
from tests.support.tolerance import assert_same
from tests.support.tree_strategies import (
    Tree,
    chain,
    flat,
    forests,
    grown,
    pad_trees,
    unary,
    zigzag,
)
from tests.twins.hierarchical_accumulation import place, twin_head


def twin(
    weights: Tensor, tree: Tree, indices: Indices, sizes: tuple[int, int, int], leaves: int
) -> Tensor:
    """One sentence's coefficients, triple by triple. Shape: (heads, nonterminals, sum of sizes)."""
    nodes, vertical, _ = sizes
    sums = weights.new_zeros(weights.size(1), nodes - leaves, sum(sizes)) + 0 * weights.sum()
    convention = "released" if indices.from_root else "paper"
    for j in range(tree.leaves):
        for i in tree.ancestors(j):
            path = tree.path(i, j)
            branch = len(path) + (convention == "paper")
            share = weights[j] / (len(tree.under(i)) * branch)
            sums[:, i, j] = sums[:, i, j] + share
            for t in path:
                places = [leaves + t]
                if indices.max_vertical:
                    v, h = place(t, j, tree, convention)
                    places.append(nodes + min(v, indices.max_vertical) - 1)
                    places.append(nodes + vertical + min(h, indices.max_horizontal) - 1)
                for k in places:
                    sums[:, i, k] = sums[:, i, k] + share
    return sums


@given(
    forests,
    st.sampled_from([Indices(False, 50, 100), Indices(True, 50, 100), Indices(True, 0, 0)])
    | st.builds(Indices, st.booleans(), st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
def test_both_forms_are_the_sum_over_triples_in_value_and_gradient(
    forest: list[Tree], indices: Indices, padding: tuple[int, int]
) -> None:
    batch = pad_trees(forest, *padding)
    generator = torch.Generator().manual_seed(len(forest))
    shape = (batch.batch_size, batch.num_leaves, 2)
    weights = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    expected = torch.stack(
        [
            twin(weights[row], tree, indices, indices.sizes(batch), batch.num_leaves)
            for row, tree in enumerate(forest)
        ]
    )
    for cost in (0, math.inf):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(coefficients, "COST_OF_A_PATH", cost)
            sums = coefficients.coefficients(weights, batch, indices)
            assert_same(sums, expected)
            direction = torch.randn(sums.shape, generator=generator, dtype=torch.float64)
            gradients = [
                torch.autograd.grad(
                    (output * direction).sum(), weights, retain_graph=True, materialize_grads=True
                )
                for output in (sums, expected)
            ]
            assert_same(gradients[0][0], gradients[1][0])


# Deep trees: the accumulation column by column, with running sums where the other twin has loops.


def twin_of_columns(
    leaves: Tensor, nonterminals: Tensor, states: Tensor, tree: Tree, module: Any, head: int
) -> Tensor:
    """As :func:`test_tree_attention.twin_head`."""
    outputs = torch.zeros_like(nonterminals)
    counts = torch.tensor([end - start for start, end in tree.spans]).unsqueeze(1)
    starts = [start for start, _ in tree.spans]
    weights = module.leaf_weight(states)[:, head]
    for j in range(tree.leaves):
        path = tree.ancestors(j)
        if not path:
            continue
        below = torch.arange(1, len(path) + 1)
        vertical = below if module.convention == "paper" else below.flip(0)
        horizontal = torch.tensor([j - starts[t] + 1 for t in path])
        embeddings = torch.cat(
            [
                module.vertical[vertical.clamp(max=len(module.vertical)) - 1],
                module.horizontal[horizontal.clamp(max=len(module.horizontal)) - 1],
            ],
            1,
        )
        sums = leaves[j] + (nonterminals[path] + embeddings).cumsum(0)
        lengths = below + (module.convention == "paper")
        outputs = outputs.index_add(
            0, torch.tensor(path), weights[j] * sums / lengths.unsqueeze(1) / counts[path]
        )
    return outputs


DEEP = {
    "a chain of 300 to the right": chain(300),
    "zigzag of 300": zigzag(300, 1),
    "300 over the same leaves": unary(300, 2),
}


@conventions
def test_the_twin_of_columns_is_the_literal_one(convention: str) -> None:
    module = build(1, 4, convention=convention, max_vertical=4, max_horizontal=3)
    tree = zigzag(9, 2)
    batch = pad_trees([tree])
    values, states = random_values(batch, module)[0, :, 0], random_states(batch, module)[0]
    arguments = (values[: tree.leaves], values[tree.leaves :], states, tree, module, 0)
    assert_same(twin_of_columns(*arguments), twin_head(*arguments))


@conventions
@pytest.mark.parametrize("tree", DEEP.values(), ids=DEEP.keys())
def test_deep_trees_are_the_definition_in_value_and_gradient(tree: Tree, convention: str) -> None:
    module = build(1, 4, convention=convention)
    batch = pad_trees([tree, flat(3)], leaves=1, nonterminals=1)
    values, states = random_values(batch, module), random_states(batch, module)
    accumulated = module(values, states, batch)[0, batch.num_leaves :, 0][: len(tree.parents)]
    expected = twin_of_columns(
        values[0, : tree.leaves, 0],
        values[0, batch.num_leaves : batch.num_leaves + len(tree.parents), 0],
        states[0, : tree.leaves], tree, module, 0,
    )  # fmt: skip
    assert_same(accumulated, expected)
    direction = torch.randn_like(accumulated)
    variables = [values, states, *module.parameters()]
    gradients = [
        torch.autograd.grad((output * direction).sum(), variables, retain_graph=True)
        for output in (accumulated, expected)
    ]
    for actual, literal in zip(*gradients, strict=True):
        assert_same(actual, literal)


@pytest.mark.parametrize(
    ("forest", "expected"),
    [
        ([grown(20, 16, 2)] * 2, False),
        ([grown(300, 240, 1)], True),
        ([flat(300)], True),
        ([Tree(1, [], [-1])], False),
        ([chain(20)], False),
        ([chain(200)], False),
        ([chain(150), grown(60, 50, 1)], False),
    ],
)
def test_only_the_paths_of_long_and_shallow_trees_are_listed(
    forest: list[Tree], expected: bool
) -> None:
    batch = pad_trees(forest)
    assert lists_paths(batch, Indices(False, 50, 100)) is expected
    assert batch.num_paths == len(batch.paths().leaf)


def test_a_sentence_beside_a_deep_one_is_accumulated_as_if_alone() -> None:
    module = build()
    tree = grown(9, 8, 3, 1)
    alone, beside = pad_trees([tree]), pad_trees([tree, chain(150)])
    values, states = random_values(beside, module), random_states(beside, module)
    n, m = tree.leaves, len(tree.parents)
    nodes = torch.cat([values[:1, :n], values[:1, beside.num_leaves : beside.num_leaves + m]], 1)
    expected = module(nodes, states[:1, :n], alone)[:, n:]
    accumulated = module(values, states, beside)[:1, beside.num_leaves : beside.num_leaves + m]
    assert_same(accumulated, expected)
