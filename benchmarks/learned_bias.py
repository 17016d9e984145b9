"""What a learned bias costs attention, and other ways to sum the gradients of its table.

A table has a number for each head and kind of pair (a tree's edge, a distance). Attention adds the number
of a pair to its score, so the gradient of a number is the sum over all pairs of its kind. Kinds have the
frequencies 1, 1/2, 1/3, … Each row is one length: the time of attention without its projections, forward
and backward, without a bias, and as a multiple of that time

- with a bias that needs no gradient (``fixed``),
- with a bias whose every pair needs a gradient, not summed (``pairs``),
- with a table that is looked up and gets the sums, as relation biases do (``learned``).

Then the sums alone, of given gradients of pairs, in the package's two ways:

- ``a sentence``: into one number for each sentence, head and kind (on a CPU),
- ``a query``: into one number for each query too, which are summed afterwards (on a GPU, where threads
  that add to one number wait for each other).

Both are compared with sums in float64 first, and the run stops if one differs.

Examples:
    python benchmarks/learned_bias.py --lengths 32 256 --repeats 7
    python benchmarks/learned_bias.py --device cuda --dtype bfloat16
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from unittest.mock import patch

import torch
from attention_kernels import add_arguments, batch_of, measure, random_states, report_kernel
from measuring import add_out, progress, run_command
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fairseq_phrase.methods.common import biased_attention
from fairseq_phrase.methods.common.biased_attention import pair_bias

LENGTHS = (32, 64, 128, 256, 512, 1024)
#: Of the sums, relative to the largest one.
TOLERANCE = 1e-5

HEADINGS = (
    "n", "sentences", "kinds", "no bias, ms", "fixed", "pairs", "learned", "learned, MiB",
    "a sentence, ms", "a query, ms",
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
    """Compare both ways to sum with float64, and return the milliseconds of each."""
    table = gradient.new_zeros(options.heads, kinds, requires_grad=True)
    exact_table = table.detach().double().requires_grad_()
    (exact,) = torch.autograd.grad(pair_bias(exact_table, index), exact_table, gradient.double())

    def bias_of(parts: int) -> Tensor:
        with patch.object(biased_attention, "parts_of_sums", lambda *_: parts):
            return pair_bias(table, index)

    def sums(bias: Tensor) -> Tensor:
        return torch.autograd.grad(bias, table, gradient, retain_graph=True)[0]

    # The sums are in float32; they are rounded to the table's type at the end.
    tolerance = max(TOLERANCE, torch.finfo(table.dtype).eps)
    ways = [partial(sums, bias_of(parts)) for parts in (1, gradient.size(2))]
    for heading, way in zip(HEADINGS[-2:], ways, strict=True):
        off = (way() - exact).abs().max() / exact.abs().max()
        if off > tolerance:
            sys.exit(f"{heading.removesuffix(', ms')}: {off:.1e} off the sums in float64")
    turns, _ = measure(ways, options)
    return [f"{1e3 * turns.median(way):.2f}" for way in range(len(ways))]


def add_learned_bias_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`learned_bias`."""
    add_arguments(parser, LENGTHS, repeats=9)
    parser.add_argument("--kinds", type=int, nargs="+", default=[60], help="of pairs")
    add_out(parser)


if __name__ == "__main__":
    sys.exit(run_command(learned_bias, add_learned_bias_arguments, __doc__))
