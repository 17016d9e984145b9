"""Sizes from which one way of computing is faster than another on this device; --write stores them.

- ``subset_min_sparsity``, ``hadamard_min_sparsity``: node pairs per adjacent pair from which attention
  within phrases uses the list of pairs (``edges``) and not all pairs (``dense``), forward and backward.
- ``tree_paths_per_leaf``: listed triples per leaf up to which hierarchical accumulation lists them
  (``PathCoefficients``) in chains, the deepest trees, with the making of the list and --layers layers.

A ratio is the second way's speed over the first's. A crossover is the geometric mean of the sizes on its
two sides; of several kinds of phrases, the mean.

Examples:
    python benchmarks/crossovers.py --device cpu
    python benchmarks/crossovers.py --device cuda --dtype bfloat16 --write
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from machine import add_kernel_arguments, describe_machine, seconds
from phrase_attention import ATTENTION, make_phrases, prepare
from torch import Tensor

from fairseq_phrase.modules.tensors import CROSSOVERS, crossover
from fairseq_phrase.modules.trees import coefficients
from fairseq_phrase.modules.trees.tree_attention import HierarchicalAccumulation
from fairseq_phrase.modules.trees.tree_batch import TreeBatch
from fairseq_phrase.text import markdown_table

Point = tuple[float, float]  # size, and how many times as fast the way for large sizes is


def crossing(points: list[Point]) -> float:
    """Return the size from which the second way is the faster one.

    If it always is, this is the smallest size; if it never is, twice the largest size.
    """
    points = sorted(points)
    slower = [size for size, ratio in points if ratio < 1]
    if not slower:
        return points[0][0]
    later = [size for size, _ in points if size > slower[-1]]
    return math.sqrt(slower[-1] * later[0]) if later else 2 * slower[-1]


def ratio_of(ways: list[Callable[[], object]], options: argparse.Namespace) -> float:
    """Time two ways in turns, and return the median of the first's time over the second's."""
    device = torch.device(options.device)
    turns = [[seconds(way, device) for way in ways] for _ in range(1 + options.repeats)][1:]
    return statistics.median(first / second for first, second in turns)


def phrase_point(kind: str, mask: str, tokens: int, options: argparse.Namespace) -> Point:
    """Measure attention within phrases of up to two units, at one length."""
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    batch = max(1, options.tokens_per_batch // tokens)
    phrases = make_phrases(kind, batch, tokens, 2, device)
    shape = (batch, options.heads, phrases.num_nodes, options.width // options.heads)
    inputs = [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
    gradient = torch.randn(shape, device=device, dtype=dtype)

    def way(path: str) -> Callable[[], object]:
        prepare(phrases, mask, path)
        return lambda: torch.autograd.grad(
            ATTENTION[mask](*inputs, phrases, path=path), inputs, gradient
        )

    sparsity = phrases.padding_mask.numel() * phrases.num_nodes / max(phrases.max_edges, 1)
    return sparsity, ratio_of([way("dense"), way("edges")], options)


def tree_point(leaves: int, options: argparse.Namespace) -> Point:
    """Measure the layers' accumulation over chains with this number of leaves."""
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    batch = max(1, options.tokens_per_batch // leaves)
    # The last leaf and its neighbour, these two and the leaf before, …
    starts = torch.arange(leaves - 2, -1, -1, device=device)
    spans = torch.stack([starts, torch.full_like(starts, leaves)], 1).expand(batch, -1, -1)
    padding = torch.zeros(batch, leaves, dtype=torch.bool, device=device)
    module = HierarchicalAccumulation(embed_dim=options.width, num_heads=options.heads)
    module = module.to(device, dtype)
    shape = (batch, 2 * leaves - 1, options.heads, options.width // options.heads)
    values = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    states = torch.randn(batch, leaves, options.width, device=device, dtype=dtype)

    def way(limit: float) -> Callable[[], Tensor]:
        def run() -> Tensor:
            coefficients.PATHS_PER_LEAF[device.type] = limit
            tree = TreeBatch(leaf_spans=spans, padding_mask=padding)
            outputs = [module(values, states, tree) for _ in range(options.layers)]
            return torch.autograd.grad(sum(output.sum() for output in outputs), [values])[0]

        return run

    kept = coefficients.PATHS_PER_LEAF.get(device.type)
    ratio = ratio_of([way(math.inf), way(-1)], options)
    coefficients.PATHS_PER_LEAF[device.type] = kept or math.inf
    paths = TreeBatch(leaf_spans=spans, padding_mask=padding).num_paths / (batch * leaves)
    return paths, ratio


def measure(options: argparse.Namespace) -> tuple[dict[str, float], str]:
    """Measure both crossovers; return them, and the table of all points."""
    lines, found = [], {}
    for mask in ATTENTION:
        of_mask = []
        for kind in ("token", "dependency"):
            points = [phrase_point(kind, mask, n, options) for n in options.lengths]
            of_mask.append(crossing(points))
            lines += [[f"phrases: {kind}, {mask}", f"{x:.0f}", f"{y:.2f}"] for x, y in points]
        found[f"{mask}_min_sparsity"] = round(statistics.mean(of_mask), 1)
    points = [tree_point(n, options) for n in options.depths]
    lines += [["paths of chains", f"{x:.0f}", f"{y:.2f}"] for x, y in points]
    found["tree_paths_per_leaf"] = round(crossing(points), 1)
    return found, markdown_table(["crossover", "size", "second / first"], lines, texts=1)


def write(found: dict[str, float], device: str, path: Path) -> None:
    """Add a device's numbers to the file of all devices' numbers, which the code reads."""
    table = json.loads(CROSSOVERS.read_text(encoding="utf-8"))
    for name, number in found.items():
        table[name][torch.device(device).type] = number
    rows = (f"  {json.dumps(name)}: {json.dumps(numbers)}" for name, numbers in table.items())
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_kernel_arguments(parser, [16, 32, 64, 96, 128, 192, 256, 384, 512, 1024])
    parser.add_argument("--depths", type=int, nargs="+", default=[16, 32, 48, 64, 96, 128, 192])
    parser.add_argument("--tokens-per-batch", type=int, help="default: 1024 on a CPU, else 16384")
    parser.add_argument("--layers", type=int, default=12, help="that share the list of a tree")
    parser.add_argument("--repeats", type=int, default=7, help="turns per size")
    parser.add_argument("--json", type=Path, help="write the code's numbers, with these, here")
    parser.add_argument("--write", action="store_true", help=f"and to {CROSSOVERS.name}")
    options = parser.parse_args(arguments)
    if options.tokens_per_batch is None:
        options.tokens_per_batch = 1024 if options.device == "cpu" else 16384
    return options


def main() -> None:
    """Measure, print and write."""
    options = parse_arguments()
    torch.manual_seed(1)
    before = {name: crossover(name) for name in json.loads(CROSSOVERS.read_text())}
    found, points = measure(options)
    summary = [[name, str(before[name]), str(number)] for name, number in found.items()]
    print(
        f"{describe_machine(options.device)}, {options.dtype}\n\n"
        f"{markdown_table(['crossover', 'in the code', 'measured'], summary, texts=2)}\n\n{points}\n"
    )
    for path in [options.json] * bool(options.json) + [CROSSOVERS] * options.write:
        write(found, options.device, path)


if __name__ == "__main__":
    sys.exit(main())
