"""Attention with relative positions against Shaw et al.'s eq. 3-4 written out in loops."""

from __future__ import annotations

import math

import pytest
import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from fairseq_phrase.methods.positions import relative_attention as module
from fairseq_phrase.methods.positions.long_positions import FoldedPositions, folded
from fairseq_phrase.methods.positions.relative_attention import (
    RelativeAttention,
    relative_attention,
)
from fairseq_phrase.methods.positions.relative_positions import (
    RelativePositions,
    sequential_positions,
)
from tests.support.tolerance import assert_same, error

CLIPS = {"sequential": 2, "structural": 3}


def make_positions(batch: int, tokens: int, padded: bool = True, clips=CLIPS) -> RelativePositions:
    """Sequential positions, and random ones in the place of structural ones, beyond the clip."""
    generator = torch.Generator().manual_seed(tokens)
    relative = {
        "sequential": sequential_positions(tokens),
        "structural": torch.randint(-5, 6, (batch, tokens, tokens), generator=generator),
    }
    padding = torch.zeros(batch, tokens, dtype=torch.bool)
    for row in range(batch if padded else 0):
        padding[row, tokens - row % tokens :] = True
    return RelativePositions.from_kinds({kind: relative[kind] for kind in clips}, clips, padding)


def make_inputs(batch: int, heads: int, tokens: int, width: int, rows: int, dtype=torch.double):
    """Query, key and value as views of time-first tensors, and tables."""
    torch.manual_seed(0)
    states = [torch.randn(tokens, batch, heads, width, dtype=dtype) for _ in range(3)]
    tables = [torch.randn(rows, width, dtype=dtype) for _ in range(2)]
    return [x.requires_grad_() for x in (*states, *tables)]


def attend(inputs, positions, with_values=True, **options) -> Tensor:
    query, key, value = (states.permute(1, 2, 0, 3) for states in inputs[:3])
    values = inputs[4] if with_values else None
    return relative_attention(query, key, value, positions, inputs[3], values, **options)[0]


def literal_attention(inputs, positions, with_values=True, kept=None) -> Tensor:
    """Eq. 3-4, one sentence, head and pair at a time; ``kept`` are dropout's factors."""
    tokens, batch, heads, width = inputs[0].shape
    output = torch.zeros(batch, heads, tokens, width, dtype=inputs[0].dtype)
    for b in range(batch):
        masked = positions.masked
        visible = [j for j in range(tokens) if masked is None or not masked[b, 0, j]]
        for h in range(heads):
            query, key, value = (states[:, b, h] for states in inputs[:3])
            for i in range(tokens):
                rows = {j: [int(r[b % len(r), i, j]) for r in positions.rows] for j in visible}
                scores = [
                    query[i] @ (key[j] + sum(inputs[3][row] for row in rows[j])) / math.sqrt(width)
                    for j in visible
                ]
                weights = torch.stack(scores).softmax(0)
                for j, weight in zip(visible, weights, strict=True):
                    term = value[j]
                    if with_values:
                        term = term + sum(inputs[4][row] for row in rows[j])
                    factor = 1 if kept is None else kept[b, h, i, j]
                    output[b, h, i] += weight * factor * term
    return output


def gathered_attention(inputs, positions, with_values=True) -> Tensor:
    """The same as naive code has it: a vector per pair."""
    query, key, value = (states.permute(1, 2, 0, 3) for states in inputs[:3])
    keys = sum(inputs[3][rows][:, None] for rows in positions.rows)
    scores = (query.unsqueeze(3) * (key.unsqueeze(2) + keys)).sum(-1) / math.sqrt(query.size(-1))
    if positions.masked is not None:
        scores = scores.masked_fill(positions.masked[:, None], -math.inf)
    weights = scores.softmax(-1)
    values = sum(inputs[4][rows][:, None] for rows in positions.rows) if with_values else 0
    return (weights.unsqueeze(-1) * (value.unsqueeze(2) + values)).sum(3)


def assert_same_gradients(actual: Tensor, expected: Tensor, inputs: list[Tensor]) -> None:
    direction = torch.randn_like(actual)
    gradients, expected_gradients = (
        torch.autograd.grad(output, inputs, direction, allow_unused=True)
        for output in (actual, expected)
    )
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        assert (gradient is None) == (expected_gradient is None)
        if gradient is not None:
            assert_same(gradient, expected_gradient)


@pytest.mark.parametrize("with_values", [True, False])
@pytest.mark.parametrize("clips", [CLIPS, {"sequential": 2}, {"structural": 3}])
def test_attention_is_the_equations_in_value_and_gradient(clips, with_values):
    positions = make_positions(3, 5, clips=clips)
    inputs = make_inputs(3, 2, 5, 4, positions.num_rows)
    actual = attend(inputs, positions, with_values)
    expected = literal_attention(inputs, positions, with_values)
    assert_same(actual, expected)
    assert_same_gradients(actual, expected, inputs)


def test_batch_first_states_give_the_same():
    positions = make_positions(2, 4)
    inputs = make_inputs(2, 2, 4, 4, positions.num_rows)
    query, key, value = (states.permute(1, 2, 0, 3).contiguous() for states in inputs[:3])
    actual, _ = relative_attention(query, key, value, positions, inputs[3], inputs[4])
    assert_same(actual, attend(inputs, positions))


@pytest.mark.parametrize("with_values", [True, False])
def test_weights_are_returned_beside_the_same_output(with_values):
    positions = make_positions(3, 5)
    inputs = make_inputs(3, 2, 5, 4, positions.num_rows)
    query, key, value = (states.permute(1, 2, 0, 3) for states in inputs[:3])
    values = inputs[4] if with_values else None
    actual, weights = relative_attention(
        query, key, value, positions, inputs[3], values, need_weights=True
    )
    assert_same(actual, attend(inputs, positions, with_values))
    assert_same(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert (weights.masked_select(positions.masked[:, None]) == 0).all()


@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
@pytest.mark.parametrize("alone", [False, True])
def test_weights_have_a_gradient(alone, dropout_p):
    positions = make_positions(2, 4, padded=False)
    inputs = make_inputs(2, 2, 4, 3, positions.num_rows)

    def outputs(*inputs):
        torch.manual_seed(1)
        heads = [states.permute(1, 2, 0, 3) for states in inputs[:3]]
        result = relative_attention(*heads, positions, *inputs[3:], dropout_p, need_weights=True)
        return result[1] if alone else result

    needed = tuple(inputs)
    assert torch.autograd.gradcheck(outputs, needed, check_undefined_grad=False)


def test_looking_up_and_collecting_are_transposes():
    positions = make_positions(3, 6, padded=False)
    per_row = torch.randn(3, 2, 6, positions.num_rows, dtype=torch.double)
    pairs = torch.randn(3, 2, 6, 6, dtype=torch.double)
    forth = (positions.look_up(per_row) * pairs).sum()
    back = (positions.collect(pairs) * per_row).sum()
    assert_same(forth, back)


def half(weights, probability, train=True):
    """Drop what has an odd index among the keys."""
    mask = (torch.arange(weights.size(-1)) % 2 == 0).expand_as(weights)
    return weights * mask * 2, mask


@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
def test_long_sentences_are_computed_alone_and_their_weights_not_kept(
    dropout_p, monkeypatch, alone_beyond
):
    positions = make_positions(3, 50)
    inputs = make_inputs(3, 2, 50, 4, positions.num_rows)
    # Dropout without random numbers, as both ways draw different ones.
    monkeypatch.setattr(torch, "native_dropout", half)
    monkeypatch.setattr(module, "dropout", lambda weights, p: half(weights, p)[0] if p else weights)
    results, largest = [], []
    for limit in (50, 49):
        alone_beyond(limit)
        saved = []
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda x, kept=saved: kept.append(x) or x, lambda x: x
        )
        with hooks, LargestTensor() as largest_tensor:
            output = attend(inputs, positions, dropout_p=dropout_p)
            results.append([output, *torch.autograd.grad(output.sum(), inputs)])
        largest.append(
            (largest_tensor.numel, max(x.numel() for x in saved if x.is_floating_point()))
        )
    for actual, expected in zip(*results, strict=True):
        assert_same(actual, expected)
    pairs = 3 * 2 * 50 * 50
    assert largest == [(pairs, pairs), (pairs // 3, 3 * 2 * 50 * 4)]


def test_a_very_long_sentence_is_computed_a_few_heads_at_a_time(alone_beyond):
    alone_beyond(399)
    positions = make_positions(2, 400)
    inputs = make_inputs(2, 3, 400, 4, positions.num_rows)
    with LargestTensor() as largest_tensor:
        attend(inputs, positions).sum().backward()
    assert largest_tensor.numel == 2 * 400 * 400


FEW_NEAR = {"sequential": 1, "structural": 3}


@pytest.fixture(name="all_long")
def _all_long(alone_beyond):
    alone_beyond(1)


@pytest.mark.usefixtures("all_long")
@pytest.mark.parametrize("with_values", [True, False])
@pytest.mark.parametrize("clips", [CLIPS, {"sequential": 2}, FEW_NEAR])
def test_folded_positions_give_the_equations_in_value_and_gradient(clips, with_values):
    positions = make_positions(3, 12, clips=clips)
    inputs = make_inputs(3, 2, 12, 4, positions.num_rows)
    fold = folded(positions)
    assert isinstance(fold, FoldedPositions)
    actual = attend(inputs, fold, with_values)
    expected = literal_attention(inputs, positions, with_values)
    assert_same(actual, expected)
    assert_same_gradients(actual, expected, inputs)


@pytest.mark.usefixtures("all_long")
def test_the_gradients_of_folded_positions_are_the_numerical_ones():
    fold = folded(make_positions(2, 5, padded=False, clips=FEW_NEAR))
    assert isinstance(fold, FoldedPositions)
    inputs = make_inputs(2, 2, 5, 3, fold.num_rows)
    assert torch.autograd.gradcheck(
        lambda *inputs: attend(inputs, fold), tuple(inputs), check_undefined_grad=False
    )


@pytest.mark.usefixtures("all_long")
@pytest.mark.parametrize("clips", [CLIPS, {"sequential": 2}])
def test_folded_positions_are_recovered_by_kind(clips):
    positions = make_positions(2, 12, clips=clips)
    recovered, expected = folded(positions).by_kind(), positions.by_kind()
    assert [*recovered] == [*expected] == [*clips]
    assert all((recovered[kind] == expected[kind]).all() for kind in clips)


@pytest.mark.usefixtures("all_long")
def test_the_example_of_folded_positions():
    """That of the module's docstring: a pair that is far, and one that is near."""
    order = torch.arange(12)
    sentence, tree = (order[:, None] - order)[None], torch.zeros(1, 12, 12, dtype=torch.int64)
    tree[0, 0, 9] = 5
    fold = folded(RelativePositions.from_kinds({"s": sentence, "t": tree}, {"s": 1, "t": 1}))
    a, b = [1.0, 20.0, 300.0], [4000.0, 50000.0, 600000.0]
    table = fold.table(torch.tensor([*a, *b])[:, None])[:, 0].tolist()
    assert table[:6] == [
        a[0] + b[0],
        a[0] + b[1],
        a[0] + b[2],
        a[2] + b[0],
        a[2] + b[1],
        a[2] + b[2],
    ]
    assert table[6:9] == [0, a[1] - a[0], a[2] - a[0]]
    assert table[9:] == [table[0], table[5]] * 3
    rows = (fold.columns % fold.joint).view(12, 12)
    assert rows[0, 7] == rows[0, 0] == 1
    assert rows[9, 0] == 4
    assert rows[0, 9] == 2
    assert (fold.cells % fold.joint)[fold.near == 0].tolist() == [7]


def test_only_positions_of_long_sentences_are_folded(alone_beyond):
    alone_beyond(11)
    assert type(folded(make_positions(2, 12))) is FoldedPositions
    assert type(folded(make_positions(2, 11))) is RelativePositions
    differ = make_positions(2, 12, clips={"structural": 1})
    assert type(folded(differ)) is RelativePositions  # its first kind differs between sentences


def test_positions_beyond_the_clip_share_the_last_row():
    near, far = (torch.tensor([[[0, size], [-size, 0]]]) for size in (2, 9))
    rows = [RelativePositions.from_kinds({"x": p}, {"x": 2}).rows[0].tolist() for p in (near, far)]
    assert rows[0] == rows[1] == [[[2, 4], [0, 2]]]


def test_padding_and_batching_change_nothing():
    positions = make_positions(4, 6)
    inputs = make_inputs(4, 2, 6, 4, positions.num_rows)
    together = attend(inputs, positions)
    for row in range(4):
        length = 6 - row
        alone = RelativePositions(
            tuple(rows[row % len(rows), :length, :length][None] for rows in positions.rows),
            positions.num_rows,
        )
        unpadded = [states[:length, row : row + 1] for states in inputs[:3]]
        assert_same(attend([*unpadded, *inputs[3:]], alone)[0], together[row, :, :length])


def test_a_sentence_that_is_all_padding_leaves_no_nan():
    padding = torch.tensor([[True, True], [False, False]])
    relative = {"sequential": sequential_positions(2)}
    positions = RelativePositions.from_kinds(relative, {"sequential": 1}, padding)
    inputs = make_inputs(2, 1, 2, 4, 3)
    output = attend(inputs, positions)
    gradients = torch.autograd.grad(output.sum(), inputs)
    assert all(x.isfinite().all() for x in (output, *gradients))


def test_dropout_falls_on_the_weights_of_values_and_tables_alike(monkeypatch):
    positions = make_positions(2, 5)
    inputs = make_inputs(2, 2, 5, 4, positions.num_rows)
    factors = []

    def remembered(weights, probability):
        factors.append(torch.nn.functional.dropout(torch.ones_like(weights), probability))
        return weights * factors[-1]

    # The equation needs the mask that was drawn.
    monkeypatch.setattr(module, "dropout", remembered)
    actual = attend(inputs, positions, dropout_p=0.5)
    assert 0 < (factors[0] == 0).double().mean() < 1
    expected = literal_attention(inputs, positions, kept=factors[0])
    assert_same(actual, expected)
    assert_same_gradients(actual, expected, inputs)


@pytest.mark.parametrize("with_values", [True, False])
def test_dropout_keeps_the_mean_and_is_off_outside_training(with_values):
    torch.manual_seed(0)
    attention = RelativeAttention(
        embed_dim=8, num_heads=2, clips=CLIPS, dropout=0.3, use_values=with_values
    ).double()
    positions, states = make_positions(2, 4), torch.randn(4, 2, 8, dtype=torch.double)
    exact, _ = attention.eval()(states, positions)
    assert_same(exact, attention(states, positions)[0])
    attention.train()
    sampled = torch.stack([attention(states, positions)[0].detach() for _ in range(3000)])
    assert sampled.std(0).min() > 0.01
    noise = sampled.std(0) / math.sqrt(len(sampled))
    assert ((sampled.mean(0) - exact).abs() < 5 * noise).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_values", [True, False])
@pytest.mark.parametrize("long", [False, True])
def test_low_precision_is_as_exact_as_the_naive_form(long, dtype, with_values, alone_beyond):
    positions = make_positions(3, 40)
    inputs = make_inputs(3, 2, 40, 16, positions.num_rows, dtype=torch.float32)
    low = [x.detach().to(dtype).requires_grad_() for x in inputs]
    exact = [x.detach().double().requires_grad_() for x in low]
    expected = gathered_attention(exact, positions, with_values)
    direction = torch.randn_like(expected)
    used = 5 if with_values else 4

    def results(function, arguments):
        output = function(arguments, positions, with_values)
        gradients = torch.autograd.grad(output, arguments[:used], direction.to(output.dtype))
        return [output, *gradients]

    exact_results = results(gathered_attention, exact)
    naive = results(gathered_attention, low)
    if long:
        alone_beyond(1)
        positions = folded(positions)
        assert type(positions) is FoldedPositions
    actual = results(attend, low)
    for low_result, naive_result, truth in zip(actual, naive, exact_results, strict=True):
        assert low_result.dtype == dtype
        assert error(low_result, truth) <= 2 * error(naive_result, truth)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_many_small_weights_are_added_up_in_single_precision(dtype):
    # 4096 weights of 2^-12: in half precision a sum stops growing long before it is 1.
    rows = torch.zeros(1, 1, 4096, dtype=torch.int64)
    positions = RelativePositions((rows,), num_rows=3)
    sums = positions.collect(torch.full((1, 1, 1, 4096), 2.0**-12, dtype=dtype))
    assert sums.dtype == dtype
    assert sums.tolist() == [[[[1, 0, 0]]]]


def test_autocast_trains():
    attention = RelativeAttention(embed_dim=8, num_heads=2, clips=CLIPS)
    positions, states = make_positions(2, 4), torch.randn(4, 2, 8, requires_grad=True)
    exact, _ = attention(states, positions)
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = attention(states, positions)
    output.float().sum().backward()
    torch.testing.assert_close(output.float(), exact, rtol=0.05, atol=0.05)
    assert all(parameter.grad.isfinite().all() for parameter in attention.parameters())


class LargestTensor(TorchDispatchMode):
    """Remembers the most numbers that any operation's result has."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_iter(result):
            if isinstance(leaf, Tensor):
                self.numel = max(self.numel, leaf.numel())
        return result


@pytest.mark.parametrize("with_values", [True, False])
def test_no_tensor_has_a_vector_per_pair_forward_or_backward(with_values):
    batch, heads, tokens, width = 2, 3, 40, 16
    positions = make_positions(batch, tokens)
    inputs = make_inputs(batch, heads, tokens, width, positions.num_rows)
    with LargestTensor() as ours:
        attend(inputs, positions, with_values).sum().backward()
    with LargestTensor() as naive:
        gathered_attention(inputs, positions, with_values).sum().backward()
    assert ours.numel == batch * heads * tokens * tokens < batch * tokens * tokens * width
    assert naive.numel == batch * heads * tokens * tokens * width


def test_without_values_the_bias_goes_to_torchs_fused_attention(monkeypatch):
    calls = []

    def counted(*arguments, **options):
        calls.append(arguments)
        return torch.nn.functional.scaled_dot_product_attention(*arguments, **options)

    # Count the calls.
    monkeypatch.setattr(module, "scaled_dot_product_attention", counted)
    positions = make_positions(2, 5)
    inputs = make_inputs(2, 2, 5, 4, positions.num_rows)
    attend(inputs, positions, with_values=True)
    assert not calls
    attend(inputs, positions, with_values=False)
    assert len(calls) == 1


@pytest.mark.parametrize("with_values", [True, False])
def test_with_empty_tables_the_module_is_fairseqs_own_attention(with_values):
    torch.manual_seed(0)
    ours = RelativeAttention(embed_dim=8, num_heads=2, clips=CLIPS, use_values=with_values).double()
    theirs = MultiheadAttention(8, 2, self_attention=True).double()
    missing = theirs.load_state_dict(
        {name: value for name, value in ours.state_dict().items() if "relative" not in name}
    )
    assert not missing.missing_keys
    for name, table in ours.named_parameters():
        if "relative" in name:
            torch.nn.init.zeros_(table)
    positions, states = make_positions(3, 5), torch.randn(5, 3, 8, dtype=torch.double)
    padding = positions.masked[:, 0]
    expected, _ = theirs(states, states, states, key_padding_mask=padding, need_weights=False)
    assert_same(ours(states, positions)[0], expected)


def test_the_modules_tables_are_one_pair_per_kind_shared_by_its_heads():
    attention = RelativeAttention(embed_dim=8, num_heads=2, clips=CLIPS)
    shapes = {n: tuple(p.shape) for n, p in attention.named_parameters() if "relative" in n}
    assert shapes == {
        f"relative_{side}.{kind}": (2 * clip + 1, 4)
        for side in ("keys", "values")
        for kind, clip in CLIPS.items()
    }
    keys_only = RelativeAttention(embed_dim=8, num_heads=2, clips=CLIPS, use_values=False)
    assert sum("relative" in name for name, _ in keys_only.named_parameters()) == 2
    assert "clips={'sequential': 2, 'structural': 3}" in repr(attention)


def test_what_does_not_fit_is_refused_by_name():
    with pytest.raises(ValueError, match="embed_dim 9 is not divisible into 2 heads"):
        RelativeAttention(embed_dim=9, num_heads=2, clips=CLIPS)
    for clips in ({}, {"sequential": 0}):
        with pytest.raises(ValueError, match="clips of 1 or more"):
            RelativeAttention(embed_dim=8, num_heads=2, clips=clips)
    attention = RelativeAttention(embed_dim=8, num_heads=2, clips={"sequential": 2})
    with pytest.raises(ValueError, match="positions of 12 table rows do not fit tables of 5"):
        attention(torch.randn(4, 2, 8), make_positions(2, 4))
    order = sequential_positions(3)
    with pytest.raises(ValueError, match=r"\['x'\] do not fit tables \['y'\]"):
        RelativePositions.from_kinds({"x": order}, {"y": 2})
    with pytest.raises(ValueError, match="do not fit tables"):
        RelativePositions.from_kinds({}, {})
    with pytest.raises(ValueError, match=r"x positions must be a torch\.int64 tensor"):
        RelativePositions.from_kinds({"x": order.float()}, {"x": 2})
    with pytest.raises(ValueError, match=r"padding_mask must be a torch\.bool tensor"):
        RelativePositions.from_kinds({"x": order}, {"x": 2}, torch.zeros(1, 3))
