"""Time and peak memory of attention within phrases, compared with dense references.

Each row is one shape: the phase-2 attention without its projections, forward and backward, once
on the path that :func:`choose_path` takes and once by the dense reference (twin):

- ``subset``: one ``scaled_dot_product_attention`` with a boolean N x N mask,
- ``hadamard``: the dense definition of eq. 5.

The two run in turns: a slowdown of the machine affects both. The table shows the median of
the pairs' time ratios. Masks and lists of pairs are made once per batch and shared by all layers.
Their time has its own column and is not included in the others.

Peak memory is the memory that one forward and backward allocates in addition to its inputs. On CUDA
the caching allocator counts it. On a CPU it is the running sum of the allocations and releases that
the profiler records, which is exact for tensors but does not include scratch space inside kernels.

On a shared machine, set OMP_NUM_THREADS=1. Threads that wait for a busy processor slow
down code of many small steps several times, and running in turns does not correct this.

Example:
    python benchmarks/phrase_attention.py --device cpu --lengths 16 64 512 --repeats 15
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from machine import add_kernel_arguments, describe_machine, peak_memory, seconds
from torch import Tensor
from tqdm import tqdm

from fairseq_phrase.modules.phrases.builtin_sources import chain_phrases, token_ngrams, word_ngrams
from fairseq_phrase.modules.phrases.phrase_attention import (
    choose_path,
    hadamard_attention,
    subset_attention,
)
from fairseq_phrase.modules.phrases.phrase_batch import PhraseBatch

ATTENTION = {"subset": subset_attention, "hadamard": hadamard_attention}
KINDS = ("token", "word", "dependency")


@dataclass
class Row:
    """One line of the table; times in milliseconds, memory in MiB."""

    phrases: str
    mask: str
    max_length: int
    tokens: int
    sentences: int
    nodes: int
    path: str
    time: float
    twin_time: float
    speedup: float
    memory: float
    twin_memory: float
    once_per_batch: float
    twin_once_per_batch: float


def make_phrases(
    kind: str, batch: int, tokens: int, max_length: int, device: torch.device
) -> PhraseBatch:
    """Make the phrases of a batch of equally long sentences, the last token ending the sentence.

    Words have one or two tokens; dependency trees are random, each head at most five words away,
    as most are in natural language.
    """
    padding_mask = torch.zeros(batch, tokens, dtype=torch.bool, device=device)
    if kind == "token":
        is_unit = ~padding_mask
        is_unit[:, -1] = False
        return token_ngrams(is_unit, padding_mask, max_length, ends_with_eos=True)
    generator = torch.Generator().manual_seed(tokens)
    begins_word = torch.rand(batch, tokens, generator=generator) < 0.8
    begins_word[:, 0] = True
    words = begins_word.cumsum(1) - 1
    words[:, -1] = -1
    words = words.to(device)
    if kind == "word":
        return word_ngrams(words, padding_mask, max_length)
    num_words = int(words.max()) + 1
    # Attaching each word to one of the five before it makes a tree, the first word its root.
    index = torch.arange(num_words)
    distance = torch.randint(1, 6, (batch, num_words), generator=generator)
    heads = (index - distance).clamp(min=0).to(device)
    heads = heads.masked_fill(index.to(device) > words.max(1, keepdim=True).values, -1)
    return chain_phrases(words, heads, padding_mask, max_length)


def prepare(phrases: PhraseBatch, mask: str, path: str) -> PhraseBatch:
    """Make the tensors that a path needs from the phrases, which the layers share."""
    made = [phrases.adjacency if path == "dense" else phrases.edges]
    if mask == "hadamard" and path == "edges":
        made.append(phrases.degrees)
    return phrases


def measure(kind: str, mask: str, max_length: int, tokens: int, options: argparse.Namespace) -> Row:
    """Measure one row."""
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    batch = max(1, options.tokens_per_batch // tokens)

    def build(path: str) -> PhraseBatch:
        return prepare(make_phrases(kind, batch, tokens, max_length, device), mask, path)

    path = choose_path(build("dense"), mask)
    phrases = build(path)
    once = [
        statistics.median(seconds(lambda name=name: build(name), device) for _ in range(3))
        for name in (path, "dense")
    ]
    shape = (batch, phrases.num_nodes, options.heads, options.width // options.heads)
    # The memory order of a projection's output.
    inputs = [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
    gradient = torch.randn(shape, device=device, dtype=dtype).transpose(1, 2)

    def run(name: str) -> tuple[Tensor, ...]:
        output = ATTENTION[mask](*(x.transpose(1, 2) for x in inputs), phrases, path=name)
        return torch.autograd.grad(output, inputs, gradient)

    for _ in range(2):
        run(path)
        run("dense")
    pairs = []
    for repeat in range(options.repeats):
        order = (path, "dense") if repeat % 2 == 0 else ("dense", path)
        times = [seconds(lambda name=name: run(name), device) for name in order]
        pairs.append(times if repeat % 2 == 0 else times[::-1])
    memory, twin_memory = (
        peak_memory(lambda name=name: run(name), device) for name in (path, "dense")
    )
    return Row(
        phrases=kind,
        mask=mask,
        max_length=max_length,
        tokens=tokens,
        sentences=batch,
        nodes=phrases.num_nodes,
        path=path,
        time=statistics.median(pair[0] for pair in pairs) * 1e3,
        twin_time=statistics.median(pair[1] for pair in pairs) * 1e3,
        speedup=statistics.median(pair[1] / pair[0] for pair in pairs),
        memory=memory / 2**20,
        twin_memory=twin_memory / 2**20,
        once_per_batch=once[0] * 1e3,
        twin_once_per_batch=once[1] * 1e3,
    )


def machine(options: argparse.Namespace) -> str:
    """Describe the machine and the settings of the measurements."""
    return (
        f"{describe_machine(options.device)}, {options.dtype}, width {options.width}, "
        f"{options.heads} heads, about {options.tokens_per_batch} tokens per batch, "
        f"forward and backward, median of {options.repeats} pairs"
    )


def table(rows: list[Row]) -> str:
    """Format the rows in Markdown."""
    lines = [
        "| phrases | mask | k | n | sentences | N | path | ms | twin ms | speed-up | MiB "
        "| twin MiB | once per batch, ms | twin's, ms |",
        "|---|---|--:|--:|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row.phrases} | {row.mask} | {row.max_length} | {row.tokens} | {row.sentences} "
        f"| {row.nodes} | {row.path} | {row.time:.2f} | {row.twin_time:.2f} | {row.speedup:.2f} "
        f"| {row.memory:.1f} | {row.twin_memory:.1f} | {row.once_per_batch:.2f} "
        f"| {row.twin_once_per_batch:.2f} |"
        for row in rows
    ]
    return "\n".join(lines)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_kernel_arguments(parser, [16, 32, 64, 128, 256, 512, 1024])
    parser.add_argument("--max-lengths", type=int, nargs="+", default=[2, 3], metavar="K")
    parser.add_argument("--phrases", nargs="+", default=["token", "dependency"], choices=KINDS)
    parser.add_argument("--masks", nargs="+", default=list(ATTENTION), choices=list(ATTENTION))
    parser.add_argument("--tokens-per-batch", type=int, help="default: 1024 on a CPU, else 16384")
    parser.add_argument("--repeats", type=int, default=11, help="pairs of measurements per row")
    parser.add_argument("--out", type=Path, help="also write the table here, as .md or .json")
    options = parser.parse_args(arguments)
    if options.out and options.out.suffix not in (".md", ".json"):
        parser.error(f"--out must end in .md or .json, got {options.out}")
    if options.tokens_per_batch is None:
        options.tokens_per_batch = 1024 if options.device == "cpu" else 16384
    return options


def main() -> None:
    """Measure all rows and print them."""
    options = parse_arguments()
    torch.manual_seed(1)
    shapes = [
        (kind, mask, max_length, tokens)
        for kind in options.phrases
        for mask in options.masks
        for max_length in options.max_lengths
        for tokens in options.lengths
    ]
    rows = []
    for shape in (progress := tqdm(shapes, unit="row", file=sys.stderr)):
        progress.set_description("{} {} k={} n={}".format(*shape))
        rows.append(measure(*shape, options))
    report = f"{machine(options)}\n\n{table(rows)}\n"
    print(report)
    if options.out and options.out.suffix == ".json":
        content = {"machine": machine(options), "rows": [asdict(row) for row in rows]}
        options.out.write_text(json.dumps(content, indent=2) + "\n")
    elif options.out:
        options.out.write_text(report)


if __name__ == "__main__":
    main()
