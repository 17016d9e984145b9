"""Time and peak memory of attention with relative positions, compared with two references.

Each row is one length: attention without its projections, forward and backward, with sequential and
structural relative positions together (or one kind: --kinds), as in a layer of the encoder. References:

- ``naive``: Shaw et al. with the tables' rows gathered into a vector per pair, an (n, n, head width)
  tensor for keys and one for values, per sentence where positions are structural,
- ``plain``: ``scaled_dot_product_attention`` without positions, as fairseq's Transformer.

All run in turns: a slowdown of the machine affects all. The table shows the medians of the time ratios
within a turn. The pairs' table rows are made once per batch and shared by all layers. Their time has its
own column and is not included in the others. Peak memory is the memory that one forward and backward
allocates in addition to its inputs.

On a shared machine, set OMP_NUM_THREADS=1.

Example:
    python benchmarks/relative_attention.py --device cpu --lengths 32 256 --repeats 7
    python benchmarks/relative_attention.py --device cuda --dtype bfloat16
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from machine import add_kernel_arguments, describe_machine, peak_memory, seconds
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from tqdm import tqdm

from fairseq_phrase.modules.positions.relative_attention import (
    RelativePositions,
    relative_attention,
    sequential_positions,
)
from fairseq_phrase.modules.positions.tree_positions import TreePositions

KINDS = ("sequential", "structural")


def make_positions(batch: int, tokens: int, options: argparse.Namespace) -> RelativePositions:
    """Make the positions of equally long sentences in random trees, the last token ending each.

    Each word's head is at most five words away, as most are in natural language.
    """
    device = torch.device(options.device)
    generator = torch.Generator().manual_seed(tokens)
    words = torch.arange(tokens).expand(batch, tokens).clone()
    words[:, -1] = -1
    index = torch.arange(tokens - 1)
    distance = torch.randint(1, 6, (batch, tokens - 1), generator=generator)
    heads = (index - distance).clamp(min=0)
    padding_mask = torch.zeros(batch, tokens, dtype=torch.bool, device=device)
    relative = {}
    if "sequential" in options.kinds:
        relative["sequential"] = sequential_positions(tokens, device)
    if "structural" in options.kinds:
        tree = TreePositions(words.to(device), heads.to(device), padding_mask)
        relative["structural"] = tree.relative(options.relation)
    return RelativePositions.from_kinds(
        relative, dict.fromkeys(relative, options.clip), padding_mask
    )


def naive_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: RelativePositions,
    keys: Tensor,
    values: Tensor | None,
) -> Tensor:
    """Attend with a vector per pair, of shape (batch or 1, queries, keys, head width)."""
    batch = len(query)
    scores = query @ key.transpose(2, 3)
    for rows in positions.rows:
        pairs = keys[rows].expand(batch, -1, -1, -1)
        scores = scores + torch.einsum("bhid,bijd->bhij", query, pairs)
    weights = (scores / math.sqrt(query.size(-1))).softmax(-1)
    output = weights @ value
    for rows in positions.rows if values is not None else ():
        pairs = values[rows].expand(batch, -1, -1, -1)
        output = output + torch.einsum("bhij,bijd->bhid", weights, pairs)
    return output


def measure(tokens: int, options: argparse.Namespace) -> str:
    """Measure one length; return its line of the table."""
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    batch = max(1, options.tokens_per_batch // tokens)
    once = statistics.median(
        seconds(lambda: make_positions(batch, tokens, options), device) for _ in range(3)
    )
    positions = make_positions(batch, tokens, options)
    width = options.width // options.heads
    # The memory order of a time-first projection's output.
    shapes = [(tokens, batch, options.heads, width)] * 3 + [(positions.num_rows, width)] * 2
    inputs = [torch.randn(x, device=device, dtype=dtype, requires_grad=True) for x in shapes]
    gradient = torch.randn(shapes[0], device=device, dtype=dtype).permute(1, 2, 0, 3)

    def step(attend: Callable[..., Tensor]) -> None:
        states = [state.permute(1, 2, 0, 3) for state in inputs[:3]]
        values = None if options.keys_only else inputs[4]
        output = attend(*states, positions, inputs[3], values)
        torch.autograd.grad(output, inputs, gradient, allow_unused=True)

    ways: dict[str, Callable[..., Tensor]] = {
        "ours": lambda *arguments: relative_attention(*arguments)[0],
        "naive": naive_attention,
        "plain": lambda *arguments: scaled_dot_product_attention(*arguments[:3]),
    }
    turns: list[dict[str, float]] = []
    for number in range(-1, options.repeats):
        names = [*ways][number % 3 :] + [*ways][: number % 3]
        times = {name: seconds(lambda n=name: step(ways[n]), device) for name in names}
        turns += [times] if number >= 0 else []
    memory = {name: peak_memory(lambda n=name: step(ways[n]), device) / 2**20 for name in ways}
    time = {name: statistics.median(turn[name] for turn in turns) * 1e3 for name in ways}
    faster = statistics.median(turn["naive"] / turn["ours"] for turn in turns)
    slower = statistics.median(turn["ours"] / turn["plain"] for turn in turns)
    return (
        f"| {tokens} | {batch} | {time['ours']:.2f} | {time['naive']:.2f} | {faster:.1f} "
        f"| {time['plain']:.2f} | {slower:.2f} | {memory['ours']:.1f} | {memory['naive']:.1f} "
        f"| {memory['naive'] / memory['ours']:.1f} | {memory['plain']:.1f} | {once * 1e3:.2f} |"
    )


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_kernel_arguments(parser, [16, 32, 64, 128, 256, 512])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--relation", default="edge", choices=["edge", "path", "distance"])
    parser.add_argument("--clip", type=int, default=16)
    parser.add_argument("--keys-only", action="store_true", help="leave the value side out")
    parser.add_argument("--tokens-per-batch", type=int, help="default: 1024 on a CPU, else 16384")
    parser.add_argument("--repeats", type=int, default=9, help="turns per row")
    parser.add_argument("--out", type=Path, help="also write the table here, in Markdown")
    options = parser.parse_args(arguments)
    if options.tokens_per_batch is None:
        options.tokens_per_batch = 1024 if options.device == "cpu" else 16384
    return options


def main() -> None:
    """Measure all lengths and print the table."""
    options = parse_arguments()
    torch.manual_seed(1)
    lines = [
        "| n | sentences | ms | naive ms | naive/ours | plain ms | ours/plain | MiB | naive MiB "
        "| naive/ours | plain MiB | once per batch, ms |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for tokens in tqdm(options.lengths, unit="row", file=sys.stderr):
        lines.append(measure(tokens, options))
    conditions = (
        f"{describe_machine(options.device)}, {options.dtype}, width {options.width}, "
        f"{options.heads} heads, {' and '.join(options.kinds)} relative positions"
        f"{', keys only' if options.keys_only else ''}, forward and backward, median of "
        f"{options.repeats} turns"
    )
    report = "\n".join([conditions, "", *lines, ""])
    print(report)
    if options.out:
        options.out.write_text(report)


if __name__ == "__main__":
    main()
