"""Hierarchical accumulation against its definition: F, U, V and E in loops over nodes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.methods.accumulation import coefficients
from fairseq_phrase.methods.accumulation.long_trees import ConstantSparseMatrix
from fairseq_phrase.methods.accumulation.tree_attention import HierarchicalAccumulation
from tests.support.accumulations import Largest, build, conventions, random_states, random_values
from tests.support.tolerance import assert_same, error
from tests.support.tree_strategies import (
    SHAPES,
    Tree,
    chain,
    flat,
    grown,
    nodes_of,
    pad_trees,
    trees,
)
from tests.twins.hierarchical_accumulation import twin


def compare(forest: list[Tree], module: HierarchicalAccumulation, **padding: int) -> None:
    """Compare a padded batch with the twin, sentence by sentence, in values and all gradients."""
    batch = pad_trees(forest, **padding)
    values, states = random_values(batch, module), random_states(batch, module)
    accumulated = module(values, states, batch)[:, batch.num_leaves :]
    expected = torch.zeros_like(accumulated)
    for row, tree in enumerate(forest):
        expected_rows = twin(values[row, nodes_of(tree, batch)], states[row], tree, module)
        expected = expected.index_put(
            (torch.tensor([row]), torch.arange(len(tree.parents))), expected_rows
        )
    assert_same(accumulated, expected)
    direction = torch.randn_like(accumulated)
    variables = [values, states, *module.parameters()]
    gradients = [
        torch.autograd.grad((output * direction).sum(), variables, materialize_grads=True)
        for output in (accumulated, expected)
    ]
    for actual, literal in zip(*gradients, strict=True):
        assert_same(actual, literal)


@conventions
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_definition_in_value_and_gradient(shape: str, convention: str) -> None:
    heads = 1 if SHAPES[shape].leaves > 20 else 2
    compare([SHAPES[shape]], build(heads, 4, convention=convention), leaves=1, nonterminals=2)


@given(
    st.lists(trees(), min_size=1, max_size=4),
    st.sampled_from(["paper", "released"]),
    st.booleans(),
    st.tuples(st.integers(1, 4), st.integers(1, 5)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.sampled_from([None, 3]),
)
def test_random_batches_are_the_definition_with_every_padding_and_size_of_tables(
    forest: list[Tree],
    convention: str,
    embeddings: bool,
    sizes: tuple[int, int],
    padding: tuple[int, int],
    leaf_dim: int | None,
) -> None:
    module = build(
        convention=convention,
        leaf_dim=leaf_dim,
        embeddings=embeddings,
        max_vertical=sizes[0],
        max_horizontal=sizes[1],
    )
    compare(forest, module, leaves=padding[0], nonterminals=padding[1])


@conventions
def test_padded_nodes_influence_nothing_and_receive_nothing(convention: str) -> None:
    forest = [grown(6, 5, 0, 1), SHAPES["one leaf under nothing"], flat(3)]
    module = build(convention=convention)
    batch = pad_trees(forest, leaves=2, nonterminals=3)
    values, states = random_values(batch, module), random_states(batch, module)
    output = module(values, states, batch)
    padded = batch.node_padding_mask[..., None, None]
    padded_leaves = batch.padding_mask.unsqueeze(-1)
    changed = module(
        torch.where(padded, 1e3 * torch.randn_like(values), values),
        torch.where(padded_leaves, 1e3 * torch.randn_like(states), states),
        batch,
    )
    assert torch.equal(changed.masked_fill(padded, 0), output.masked_fill(padded, 0))
    accumulated = output[:, batch.num_leaves :]
    assert (accumulated[~batch.is_nonterminal] == 0).all()
    gradient, of_states = torch.autograd.grad(accumulated.square().sum(), (values, states))
    assert (gradient.masked_select(padded) == 0).all()
    assert (of_states.masked_select(padded_leaves) == 0).all()
    assert (gradient[0, : forest[0].leaves - 1] != 0).any()


def test_leaves_keep_their_values() -> None:
    batch = pad_trees([grown(5, 4, 1)])
    module = build()
    values = random_values(batch, module)
    output = module(values, random_states(batch, module), batch)
    assert torch.equal(output[:, :5], values[:, :5])


@conventions
def test_a_batch_without_nonterminals_trains_every_parameter_with_a_gradient_of_zero(
    convention: str,
) -> None:
    # Distributed training waits for the gradient of every parameter.
    for nonterminals in (0, 2):
        module = build(convention=convention)
        batch = pad_trees([SHAPES["one leaf under nothing"]] * 2, nonterminals=nonterminals)
        values = random_values(batch, module)
        output = module(values, random_states(batch, module), batch)
        assert torch.equal(output[:, :1], values[:, :1])
        output.sum().backward()
        for parameter in module.parameters():
            assert parameter.grad is not None
            assert (parameter.grad == 0).all()


@pytest.mark.fast(8)
@pytest.mark.parametrize("long", [True, False], ids=["paths", "dense"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "tree", [grown(40, 30, 5), flat(200), chain(60)], ids=["n-ary", "flat", "deep"]
)
def test_low_precision_is_at_most_twice_as_far_off_as_the_definition_in_it(
    tree: Tree, dtype: torch.dtype, long: bool, monkeypatch
) -> None:
    monkeypatch.setattr(coefficients, "COST_OF_A_PATH", 0 if long else math.inf)
    module = build(1, 8)
    batch = pad_trees([tree])
    values = random_values(batch, module, dtype).detach()
    states = random_states(batch, module, dtype).detach()
    # The exact result for the very numbers that low precision starts from.
    exact = twin(values[0].double(), states[0].double(), tree, module.to(dtype).double())
    module = module.to(dtype)
    plain = error(twin(values[0], states[0], tree, module), exact)
    fast = module(values, states, batch)[0, batch.num_leaves :]
    assert error(fast, exact) <= 2 * plain
    assert plain < 0.05


@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_deep_and_long_trees_stay_finite_in_float16(scale: float) -> None:
    module = build().half()
    for tree in (chain(60), flat(1000)):
        batch = pad_trees([tree, flat(3)])
        values, states = (
            (scale * make(batch, module)).half().detach().requires_grad_()
            for make in (random_values, random_states)
        )
        output = module(values, states, batch)
        assert output.isfinite().all()
        output.float().mean().backward()
        for parameter in (values, states, *module.parameters()):
            assert parameter.grad.isfinite().all()


def test_no_tensor_holds_a_vector_for_each_nonterminal_and_leaf() -> None:
    module = build(2, 32)
    tree = grown(100, 80, 2)
    batch = pad_trees([tree] * 2)
    values, states = random_values(batch, module), random_states(batch, module)
    with Largest() as largest:
        module(values, states, batch).sum().backward()
    dense = 2 * 100 * len(tree.parents) * 2 * 32
    assert 0 < largest.size < dense / 10


def test_the_constants_of_a_batch_are_made_once_for_all_layers() -> None:
    batch = pad_trees([grown(6, 5, 0)])
    first, second = build(), build()
    values, states = random_values(batch, first), random_states(batch, first)
    first(values, states, batch)
    cache = dict(batch.cache)
    second(values, states, batch)
    assert {key: id(value) for key, value in batch.cache.items()} == {
        key: id(value) for key, value in cache.items()
    }


@given(st.integers(0, 12), st.integers(1, 4), st.integers(1, 4), st.integers(0, 1000))
def test_a_constant_sparse_matrix_multiplies_as_the_dense_one_does(
    entries: int, num_rows: int, num_columns: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, num_rows, (entries,), generator=generator)
    columns = torch.randint(0, num_columns, (entries,), generator=generator).sort().values
    values = torch.randn(entries, generator=generator, dtype=torch.float64)
    matrix = ConstantSparseMatrix(rows, columns, values, (num_rows, num_columns))
    full = torch.zeros(num_rows, num_columns, dtype=torch.float64)
    full.index_put_((rows, columns), values, accumulate=True)
    dense = torch.randn(num_columns, 3, generator=generator, dtype=torch.float64).requires_grad_()
    direction = torch.randn(num_rows, 3, generator=generator, dtype=torch.float64)
    assert_same(matrix @ dense, full @ dense)
    sparse, expected = (
        torch.autograd.grad((product * direction).sum(), dense)[0]
        for product in (matrix @ dense, full @ dense)
    )
    assert_same(sparse, expected)


def test_weights_and_tables_start_as_documented() -> None:
    torch.manual_seed(0)
    module = HierarchicalAccumulation(embed_dim=512, num_heads=8, convention="released")
    assert module.leaf_weight.weight.shape == (8, 512)
    assert module.leaf_weight.weight.abs().max() <= math.sqrt(6 / 520)
    assert module.leaf_weight.weight.std().item() == pytest.approx(math.sqrt(2 / 520), rel=0.1)
    assert module.vertical.shape == (50, 32)
    assert module.horizontal.shape == (100, 32)
    assert module.horizontal.std().item() == pytest.approx(32**-0.5, rel=0.1)
    assert module.leaf_weight.bias.tolist() == [0.0] * 8
    assert "convention=released, embeddings=50, 100" in repr(module)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embed_dim": 6, "num_heads": 2}, "not divisible into 2 heads of an even width"),
        (
            {"embed_dim": 8, "num_heads": 2, "convention": "other"},
            "expected one of paper, released",
        ),
        ({"embed_dim": 8, "num_heads": 2, "max_vertical": 0}, "sizes of 1 or more, got 0 vertical"),
    ],
)
def test_impossible_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HierarchicalAccumulation(**options)


def test_values_of_another_batch_are_refused() -> None:
    batch = pad_trees([flat(3)])
    with pytest.raises(ValueError, match=r"must have shape \(1, 4, 2, 4\), got \(1, 5, 2, 4\)"):
        build()(torch.zeros(1, 5, 2, 4, dtype=torch.float64), torch.zeros(1, 3, 8).double(), batch)
    with pytest.raises(ValueError, match=r"must have shape \(1, 3, 8\), got \(1, 4, 8\)"):
        build()(torch.zeros(1, 4, 2, 4, dtype=torch.float64), torch.zeros(1, 4, 8), batch)
