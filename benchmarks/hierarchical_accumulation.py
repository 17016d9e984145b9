"""Time and peak memory of hierarchical accumulation against its literal dense definition.

Each row is one shape: a layer's accumulation with hierarchical embeddings, measured forward, and forward
and backward. It is computed once by the module and once by the paper's definition: a grid of vectors for
every nonterminal and leaf, with embeddings added, averaged upward and summed over leaves. Both get the
same values and parameters, and the run stops if they differ.

The two run in turns: a slowdown of the machine affects both. The table shows the median of the pairs'
ratios. Tensors that depend only on the trees are made once per batch and shared by all layers and heads.
Their time has its own column and is not included in the others, for both.

The first row is the most important: 32 sentences of 50 leaves and 40 nonterminals. The others have 1,600
leaves in total, and 4 nonterminals for 5 leaves. The definition is skipped if one of its grids would take
more than --dense-limit.

On a shared machine, set OMP_NUM_THREADS=1.

Example:
    python benchmarks/hierarchical_accumulation.py --device cpu --lengths 16 64 --repeats 5
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from machine import add_kernel_arguments, describe_machine, peak_memory, seconds
from random_trees import random_spans, stack
from torch import Tensor
from tqdm import tqdm

from fairseq_phrase.modules.trees.coefficients import branches, coefficients_of
from fairseq_phrase.modules.trees.tree_attention import HierarchicalAccumulation
from fairseq_phrase.modules.trees.tree_batch import TreeBatch

TOKENS = 1600

# From the nodes' values and the leaves' states.
Accumulation = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Row:
    """One line of the table; times in milliseconds, memory in MiB; None where nothing was measured."""

    sentences: int
    leaves: int
    nonterminals: int
    forward: float
    dense_forward: float | None
    forward_speedup: float | None
    both: float
    dense_both: float | None
    both_speedup: float | None
    memory: float
    dense_memory: float | None
    once_per_batch: float


class DenseDefinition:
    """The accumulation as the paper defines it, with a vector for every nonterminal and leaf.

    Args:
        module: the module whose parameters it uses.
        tree: the trees, whose constants it makes once.
    """

    def __init__(self, module: HierarchicalAccumulation, tree: TreeBatch):
        dtype = module.leaf_weight.weight.dtype
        self.module, self.tree = module, tree
        self.membership = tree.membership[:, None, :, :, None].to(dtype)
        self.subtrees = tree.subtrees[:, None].to(dtype)
        path = tree.leaf_depths[:, None] - tree.depths[:, :, None]
        self.branch = (path + 1).clamp(min=1)[:, None, :, :, None].to(dtype)
        self.counts = tree.leaf_counts.clamp(min=1)[:, None, :, None].to(dtype)
        leaves = torch.arange(tree.num_leaves, device=tree.device)
        along = leaves - tree.leaf_spans[..., :1]
        self.vertical = (path - 1).clamp(0, len(module.vertical) - 1)
        self.horizontal = along.clamp(0, len(module.horizontal) - 1)

    def __call__(self, values: Tensor, leaf_states: Tensor) -> Tensor:
        """Accumulate, with the module's arguments and result."""
        module, tree = self.module, self.tree
        leaves, nonterminals = values.transpose(1, 2).split(
            [tree.num_leaves, tree.num_nonterminals], 2
        )
        weights = module.leaf_weight(leaf_states).transpose(1, 2)
        # E and F, shape (batch, heads, nonterminals, leaves, head width)
        embeddings = torch.cat(
            [module.vertical[self.vertical], module.horizontal[self.horizontal]], -1
        )
        grid = (nonterminals.unsqueeze(3) + embeddings.unsqueeze(1)) * self.membership
        # U: every cell and the cells below it in its column
        summed = (self.subtrees @ grid.flatten(3)).view(grid.shape)
        averaged = (leaves.unsqueeze(2) + summed) * self.membership / self.branch
        # V
        accumulated = (weights[:, :, None, :, None] * averaged).sum(3) / self.counts
        return torch.cat([leaves, accumulated], 2).transpose(1, 2)


def measure(sentences: int, leaves: int, options: argparse.Namespace) -> Row:
    """Measure one row."""
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    nonterminals = leaves * 4 // 5
    chance = random.Random(leaves)
    spans = stack([random_spans(leaves, nonterminals, chance) for _ in range(sentences)]).to(device)
    padding = torch.zeros(sentences, leaves, dtype=torch.bool, device=device)
    module = HierarchicalAccumulation(embed_dim=options.width, num_heads=options.heads)
    module = module.to(device, dtype)
    shape = (sentences, leaves + nonterminals, options.heads, options.width // options.heads)
    values = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    leaf_states = torch.randn(
        (sentences, leaves, options.width), device=device, dtype=dtype, requires_grad=True
    )
    gradient = torch.randn(shape, device=device, dtype=dtype)
    wanted = [values, leaf_states, *module.parameters()]

    def tree() -> TreeBatch:
        return TreeBatch(leaf_spans=spans, padding_mask=padding)

    def once() -> None:
        coefficients_of(made := tree(), module.indices, torch.float32)
        branches(made, module.indices.from_root, dtype)

    def run(accumulate: Accumulation, backward: bool) -> object:
        if not backward:
            with torch.no_grad():
                return accumulate(values, leaf_states)
        return torch.autograd.grad(accumulate(values, leaf_states), wanted, gradient)

    batch = tree()
    fast: Accumulation = lambda values, leaf_states: module(values, leaf_states, batch)  # noqa: E731
    kinds = [fast]
    grid_bytes = nonterminals * leaves * sentences * options.width * values.element_size()
    if grid_bytes <= options.dense_limit * 2**30:
        kinds.append(DenseDefinition(module, batch))
        with torch.no_grad():
            torch.testing.assert_close(
                *(kind(values, leaf_states) for kind in kinds),
                rtol=1e-3,
                atol=1e-3 if dtype == torch.float32 else 0.1,
            )
    times, speedups = {}, {}
    for backward in (False, True):
        for kind in kinds:
            run(kind, backward)
        pairs = [
            [seconds(lambda k=kind, b=backward: run(k, b), device) for kind in kinds]
            for _ in range(options.repeats)
        ]
        times[backward] = [1e3 * statistics.median(column) for column in zip(*pairs, strict=True)]
        speedups[backward] = statistics.median(pair[-1] / pair[0] for pair in pairs)
    memory = [peak_memory(lambda kind=kind: run(kind, True), device) / 2**20 for kind in kinds]
    dense = len(kinds) > 1
    return Row(
        sentences=sentences,
        leaves=leaves,
        nonterminals=nonterminals,
        forward=times[False][0],
        dense_forward=times[False][1] if dense else None,
        forward_speedup=speedups[False] if dense else None,
        both=times[True][0],
        dense_both=times[True][1] if dense else None,
        both_speedup=speedups[True] if dense else None,
        memory=memory[0],
        dense_memory=memory[1] if dense else None,
        once_per_batch=1e3 * statistics.median(seconds(once, device) for _ in range(3)),
    )


def table(rows: list[Row]) -> str:
    """Format the rows in Markdown."""
    lines = [
        "| sentences | n | m | forward, ms | definition, ms | speed-up | with backward, ms "
        "| definition, ms | speed-up | MiB | definition, MiB | ratio | once per batch, ms |",
        "|--:" * 13 + "|",
    ]

    def cell(value: float | None, digits: int = 1) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    for row in rows:
        ratio = row.memory / row.dense_memory if row.dense_memory else None
        cells = [
            str(row.sentences), str(row.leaves), str(row.nonterminals), cell(row.forward),
            cell(row.dense_forward), cell(row.forward_speedup), cell(row.both), cell(row.dense_both),
            cell(row.both_speedup), cell(row.memory), cell(row.dense_memory), cell(ratio, 3),
            cell(row.once_per_batch),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_kernel_arguments(parser, [16, 32, 64, 128, 256, 512, 1024])
    parser.add_argument("--repeats", type=int, default=7, help="pairs of measurements per row")
    parser.add_argument(
        "--dense-limit",
        type=float,
        default=1.0,
        metavar="GIB",
        help="largest grid of the definition",
    )
    parser.add_argument("--out", type=Path, help="also write the table here, as .md or .json")
    options = parser.parse_args(arguments)
    if options.out and options.out.suffix not in (".md", ".json"):
        parser.error(f"--out must end in .md or .json, got {options.out}")
    return options


def main() -> None:
    """Measure all rows and print them."""
    options = parse_arguments()
    torch.manual_seed(1)
    shapes = [(32, 50), *((max(1, TOKENS // length), length) for length in options.lengths)]
    rows = []
    for sentences, leaves in tqdm(shapes, unit="row", file=sys.stderr):
        rows.append(measure(sentences, leaves, options))
    conditions = (
        f"{describe_machine(options.device)}, {options.dtype}, width {options.width}, "
        f"{options.heads} heads, median of {options.repeats} pairs"
    )
    report = f"{conditions}\n\n{table(rows)}\n"
    print(report)
    if options.out and options.out.suffix == ".json":
        content = {"machine": conditions, "rows": [asdict(row) for row in rows]}
        options.out.write_text(json.dumps(content, indent=2) + "\n")
    elif options.out:
        options.out.write_text(report)


if __name__ == "__main__":
    main()
