"""What a learned bias costs attention, and other ways to sum the gradients of its table.

A table has a number for each head and kind of pair (a tree's edge, a distance). Attention adds the number
of a pair to its score, so the gradient of a number is the sum over all pairs of its kind. Kinds have the
frequencies 1, 1/2, 1/3, … Each row is one length: the time of attention without its projections, forward
and backward, without a bias, and as a multiple of that time

- with a bias that needs no gradient (``fixed``),
- with a bias whose every pair needs a gradient, not summed (``pairs``),
- with a table that is looked up and gets the sums, as relation biases do (``learned``).

Then the sums alone, of given gradients of pairs:

- ``scatter``: into one number for each sentence, head and kind (the package's way),
- ``by query``: into one number for each query too, which are summed afterwards: on a GPU, fewer sums wait
  for each other,
- ``one-hot``: by products with one-hot vectors, made where they are multiplied, by a kernel in Triton.
  No sum waits for another, and the order of summation is fixed. "-" without Triton, and on a CPU; there,
  TRITON_INTERPRET=1 checks the values in float32 and float16, and its times say nothing.

The last two are compared with sums in float64 first, and the run stops if one differs.

Examples:
    python benchmarks/learned_bias.py --lengths 32 256 --repeats 7
    python benchmarks/learned_bias.py --device cuda --dtype bfloat16
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from typing import Any

import torch
from attention_kernels import add_arguments, batch_of, measure, random_states, report_kernel
from measuring import add_out, progress, run_command
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fairseq_phrase.modules.positions.biased_attention import pair_bias

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

LENGTHS = (32, 64, 128, 256, 512, 1024)
PAIRS_PER_PRODUCT, PRODUCTS = 64, 16  # of one program of the kernel
#: Of the sums, relative to the largest one.
TOLERANCE = 1e-5

HEADINGS = (
    "n", "sentences", "kinds", "no bias, ms", "fixed", "pairs", "learned", "learned, MiB",
    "scatter, ms", "by query, ms", "one-hot, ms",
)  # fmt: skip


def learned_bias(options: argparse.Namespace) -> None:
    """Print a table with one row for each length and number of kinds."""
    shapes = [(tokens, kinds) for kinds in options.kinds for tokens in options.lengths]
    lines = [row(*shape, options) for shape in progress(shapes, unit="row")]
    report_kernel(HEADINGS, lines, 0, "a learned bias, forward and backward", options)


def row(tokens: int, kinds: int, options: argparse.Namespace) -> list[str]:
    """Measure one length."""
    batch, heads = batch_of(tokens, options), options.heads
    width = options.width // heads
    # The memory order of a projection's output.
    states = [random_states(options, batch, tokens, heads, width) for _ in range(3)]
    frequencies = 1 / torch.arange(1, kinds + 1, device=options.device)
    index = frequencies.multinomial(batch * tokens**2, replacement=True)
    index = index.view(batch, tokens, tokens)
    table = random_states(options, heads, kinds)
    fixed = pair_bias(table.detach(), index)
    pairs = fixed.clone().requires_grad_()
    gradient = random_states(options, batch, heads, tokens, width, requires_grad=False)

    def attend(bias: Tensor | None, *others: Tensor) -> None:
        output = scaled_dot_product_attention(*(x.transpose(1, 2) for x in states), bias)
        torch.autograd.grad(output, [*states, *others], gradient)

    ways = [
        partial(attend, None),
        partial(attend, fixed),
        partial(attend, pairs, pairs),
        lambda: attend(pair_bias(table, index), table),
    ]
    turns, memory = measure(ways, options)
    return [
        *map(str, (tokens, batch, kinds)), f"{1e3 * turns.median(0):.2f}",
        *(f"{1 / turns.speed(way):.2f}" for way in (1, 2, 3)), f"{memory[3]:.1f}",
        *time_sums(torch.randn_like(fixed), index, kinds, options),
    ]  # fmt: skip


def time_sums(
    gradient: Tensor, index: Tensor, kinds: int, options: argparse.Namespace
) -> list[str]:
    """Compare the ways to sum with float64, and return the milliseconds of each."""
    table = gradient.new_zeros(options.heads, kinds, requires_grad=True)
    exact_table = table.detach().double().requires_grad_()
    bias = pair_bias(table, index)
    (exact,) = torch.autograd.grad(pair_bias(exact_table, index), exact_table, gradient.double())
    others: list[Any] = [sums_by_query]
    # The interpreter reads bfloat16 as integers.
    interpreted = gradient.dtype != torch.bfloat16 and os.environ.get("TRITON_INTERPRET") == "1"
    if triton and (gradient.is_cuda or interpreted):
        others.append(sums_by_one_hot)
    for way in others:
        off = (way(gradient, index, kinds) - exact).abs().max() / exact.abs().max()
        if off > TOLERANCE:
            sys.exit(f"{way.__name__}: {off:.1e} off the sums in float64")
    ways = [
        lambda: torch.autograd.grad(bias, table, gradient, retain_graph=True),
        *(partial(way, gradient, index, kinds) for way in others),
    ]
    turns, _ = measure(ways, options)
    cells = [f"{1e3 * turns.median(way):.2f}" for way in range(len(ways))]
    return [*cells, "-"][:3]


def sums_by_query(gradient: Tensor, index: Tensor, kinds: int) -> Tensor:
    """Sum the gradients of each kind and query first. Shape: (heads, kinds), float32.

    Args:
        gradient: Shape: (batch, heads, queries, keys)
        index: the kind of each pair. Shape: (batch, queries, keys), int64
    """
    exact = gradient.float()
    sums = exact.new_zeros(*exact.shape[:3], kinds)
    return sums.scatter_add_(3, index[:, None].expand_as(exact), exact).sum((0, 2))


def sums_by_one_hot(gradient: Tensor, index: Tensor, kinds: int) -> Tensor:
    """Multiply the gradients by one-hot vectors of their kinds, with all heads as rows."""
    gradient, index = gradient.contiguous(), index.contiguous()
    batch, heads, queries, keys = gradient.shape
    pairs = queries * keys
    parts = triton.cdiv(pairs, PAIRS_PER_PRODUCT * PRODUCTS)
    sums = gradient.new_empty(batch, parts, heads, kinds, dtype=torch.float32)
    # A product has at least 16 rows and columns.
    rows, columns = (max(16, triton.next_power_of_2(size)) for size in (heads, kinds))
    shape = (heads, kinds, rows, columns, PAIRS_PER_PRODUCT, PRODUCTS)
    _one_hot_kernel[(batch, parts)](gradient, index, sums, pairs, *shape)
    return sums.sum((0, 1))


if triton:

    @triton.jit
    def _one_hot_kernel(
        gradient,
        index,
        sums,
        pairs,
        heads: tl.constexpr,
        kinds: tl.constexpr,
        rows: tl.constexpr,
        columns: tl.constexpr,
        block: tl.constexpr,
        products: tl.constexpr,
    ):
        # One program sums a part of the pairs of one sentence, for all heads.
        sentence = tl.program_id(0).to(tl.int64)
        part = tl.program_id(1)
        head, kind = tl.arange(0, rows)[:, None], tl.arange(0, columns)[None, :]
        total = tl.zeros((rows, columns), tl.float32)
        for product in range(products):
            pair = (part * products + product) * block + tl.arange(0, block)
            of_pair = tl.load(index + sentence * pairs + pair, mask=pair < pairs, other=-1)
            here = (head < heads) & (pair < pairs)[None, :]
            start = gradient + (sentence * heads + head) * pairs
            numbers = tl.load(start + pair[None, :], mask=here, other=0.0)
            one_hot = (of_pair[:, None] == kind).to(numbers.dtype)
            total += tl.dot(numbers, one_hot, input_precision="ieee")
        into = (sentence * tl.num_programs(1) + part) * heads + head
        tl.store(sums + into * kinds + kind, total, mask=(head < heads) & (kind < kinds))


def add_learned_bias_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`learned_bias`."""
    add_arguments(parser, LENGTHS, repeats=9)
    parser.add_argument("--kinds", type=int, nargs="+", default=[60], help="of pairs")
    add_out(parser)


if __name__ == "__main__":
    sys.exit(run_command(learned_bias, add_learned_bias_arguments, __doc__))
