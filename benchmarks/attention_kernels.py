"""Time and peak memory of the attention kernels, compared with plain definitions of the same numbers.

The ways run in turns: a slowdown of the machine affects all. Tables show medians of times and of the
time ratios within a turn. What depends only on the trees or phrases is made once per batch and shared by
all layers. Its time has its own column and is not included in the others.

Peak memory is what one forward and backward allocates in addition to its inputs. On CUDA the caching
allocator counts it. On a CPU it is the running sum of the allocations and releases that the profiler
records, which is exact for tensors but does not include scratch space inside kernels.

On a shared machine, set OMP_NUM_THREADS=1. Threads that wait for a busy processor slow down code of many
small steps several times, and running in turns does not correct this.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from measuring import (
    Run,
    Turns,
    add_device,
    add_out,
    describe_machine,
    in_turns,
    peak_memory,
    progress,
    report,
    run_one_of,
    seconds,
)
from plain_kernels import DenseDefinition, naive_attention
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fairseq_phrase.methods.accumulation.coefficients import coefficients
from fairseq_phrase.methods.accumulation.tree_attention import HierarchicalAccumulation
from fairseq_phrase.methods.common.tree_batch import TreeBatch
from fairseq_phrase.methods.common.tree_positions import TreePositions
from fairseq_phrase.methods.phrases.builtin_sources import chain_phrases, token_ngrams, word_ngrams
from fairseq_phrase.methods.phrases.phrase_attention import hadamard_attention, subset_attention
from fairseq_phrase.methods.phrases.phrase_batch import PhraseBatch
from fairseq_phrase.methods.positions.long_positions import folded
from fairseq_phrase.methods.positions.relative_attention import relative_attention
from fairseq_phrase.methods.positions.relative_positions import (
    RelativePositions,
    sequential_positions,
)
from fairseq_phrase.text import markdown_table

PHRASE_ATTENTION = {"subset": subset_attention, "hadamard": hadamard_attention}
PHRASES = ("token", "word", "dependency")
POSITIONS = ("sequential", "structural")
LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
LEAVES_PER_BATCH = 1600


def add_arguments(
    parser: argparse.ArgumentParser,
    lengths: Sequence[int],
    repeats: int,
    *,
    has_tokens: bool = True,
) -> None:
    """Add the options that the kernels share."""
    add_device(parser)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--lengths", type=int, nargs="+", default=list(lengths))
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=repeats, help="turns per row")
    if has_tokens:
        parser.add_argument(
            "--tokens-per-batch", type=int, help="default: 1024 on a CPU, else 16384"
        )


def batch_of(tokens: int, options: argparse.Namespace) -> int:
    """Return the number of sentences in a batch."""
    default = 1024 if options.device == "cpu" else 16384
    return max(1, (options.tokens_per_batch or default) // tokens)


def random_states(options: argparse.Namespace, *shape: int, requires_grad: bool = True) -> Tensor:
    """Draw states on the device and in the precision of the measurement."""
    dtype = getattr(torch, options.dtype)
    return torch.randn(shape, device=options.device, dtype=dtype, requires_grad=requires_grad)


def measure(ways: Sequence[Run], options: argparse.Namespace) -> tuple[Turns, list[float]]:
    """Measure ways in turns; return their times, and each one's peak memory in MiB."""
    turns = in_turns(lambda _: ways, options.repeats, options.device, warmup=2)
    device = torch.device(options.device)
    return turns, [peak_memory(way, device) / 2**20 for way in ways]


def once_per_batch(make: Run, options: argparse.Namespace) -> str:
    """Return the milliseconds of what is made once per batch."""
    device = torch.device(options.device)
    return f"{1e3 * statistics.median(seconds(make, device) for _ in range(3)):.2f}"


def report_kernel(
    headings: Sequence[str], lines: Sequence[Sequence[str]], texts: int, what: str, options: Any
) -> None:
    """Print a table of rows, and write it to --out."""
    conditions = (
        f"{describe_machine(options.device)}, {options.dtype}, width {options.width}, "
        f"{options.heads} heads, {what}, median of {options.repeats} turns"
    )
    report(conditions, markdown_table(headings, lines, texts=texts), options.out)


def phrase_attention(options: argparse.Namespace) -> None:
    """Attention within phrases, compared with dense references.

    Each row is one shape: the phase-2 attention without its projections, forward and backward, in the
    form for its length (``dense``, or ``edges`` for long inputs) and in the dense form (twin):

    - ``subset``: one ``scaled_dot_product_attention`` with a boolean N x N mask,
    - ``hadamard``: the definition of eq. 5.

    Example:
        python benchmarks/attention_kernels.py phrase-attention --lengths 16 64 512 --repeats 15
    """
    shapes = product(options.phrases, options.masks, options.max_lengths, options.lengths)
    headings = [
        "phrases", "mask", "path", "k", "n", "sentences", "N", "ms", "twin ms", "speed-up", "MiB",
        "twin MiB", "once per batch, ms", "twin's, ms",
    ]  # fmt: skip
    lines = [phrase_row(*shape, options) for shape in progress(list(shapes), unit="row")]
    report_kernel(headings, lines, 3, "phrases, forward and backward", options)


def phrase_row(
    kind: str, mask: str, max_length: int, tokens: int, options: argparse.Namespace
) -> list[str]:
    """Measure one row of :func:`phrase_attention`."""
    batch = batch_of(tokens, options)

    def build(is_long: bool) -> PhraseBatch:
        phrases = make_phrases(kind, batch, tokens, max_length, options.device)
        phrases.is_long = is_long
        # Made once per batch, and shared by the layers.
        structure = phrases.edges if is_long else phrases.adjacency
        assert structure is not None
        return phrases

    is_long = make_phrases(kind, batch, tokens, max_length, options.device).is_long
    phrases, twin = build(is_long), build(False)
    shape = (batch, phrases.num_nodes, options.heads, options.width // options.heads)
    # The memory order of a projection's output.
    inputs = [random_states(options, *shape) for _ in range(3)]
    gradient = random_states(options, *shape, requires_grad=False).transpose(1, 2)

    def run(nodes: PhraseBatch) -> tuple[Tensor, ...]:
        output = PHRASE_ATTENTION[mask](*(x.transpose(1, 2) for x in inputs), nodes)
        return torch.autograd.grad(output, inputs, gradient)

    turns, memory = measure([partial(run, phrases), partial(run, twin)], options)
    path = "edges" if is_long else "dense"
    return [
        kind, mask, path, *map(str, (max_length, tokens, batch, phrases.num_nodes)),
        f"{1e3 * turns.median(0):.2f}", f"{1e3 * turns.median(1):.2f}", f"{turns.speed(0, 1):.2f}",
        *(f"{size:.1f}" for size in memory),
        *(once_per_batch(partial(build, form), options) for form in (is_long, False)),
    ]  # fmt: skip


def make_phrases(kind: str, batch: int, tokens: int, max_length: int, device: str) -> PhraseBatch:
    """Make the phrases of a batch of equally long sentences, the last token ending the sentence.

    Words have one or two tokens; dependency trees are random, each head at most five words away,
    as most are in natural language.
    """
    padding_mask = torch.zeros(batch, tokens, dtype=torch.bool, device=device)
    if kind == "token":
        is_unit = ~padding_mask
        is_unit[:, -1] = False
        return token_ngrams(is_unit, padding_mask, max_length, ends_with_eos=True)
    rng = torch.Generator().manual_seed(tokens)
    begins_word = torch.rand(batch, tokens, generator=rng) < 0.8
    begins_word[:, 0] = True
    words = begins_word.cumsum(1) - 1
    words[:, -1] = -1
    words = words.to(device)
    if kind == "word":
        return word_ngrams(words, padding_mask, max_length)
    num_words = int(words.max()) + 1
    heads = near_heads(batch, num_words, rng).to(device)
    order = torch.arange(num_words, device=device)
    heads = heads.masked_fill(order > words.max(1, keepdim=True).values, -1)
    return chain_phrases(words, heads, padding_mask, max_length)


def near_heads(batch: int, words: int, rng: torch.Generator) -> Tensor:
    """Attach each word to one of the five before it, which makes trees with the first word as root."""
    distance = torch.randint(1, 6, (batch, words), generator=rng)
    return (torch.arange(words) - distance).clamp(min=0)


def add_phrase_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`phrase_attention`."""
    add_arguments(parser, LENGTHS, repeats=11)
    masks = list(PHRASE_ATTENTION)
    parser.add_argument("--max-lengths", type=int, nargs="+", default=[2, 3], metavar="K")
    parser.add_argument("--phrases", nargs="+", default=["token", "dependency"], choices=PHRASES)
    parser.add_argument("--masks", nargs="+", default=masks, choices=masks)
    add_out(parser)


def relative_positions(options: argparse.Namespace) -> None:
    """Attention with relative positions, compared with two references.

    Each row is one length: attention without its projections, forward and backward, with sequential and
    structural relative positions together (or one kind: --kinds), as in a layer of the encoder:

    - ``naive``: Shaw et al. with the tables' rows gathered into a vector per pair, an (n, n, head width)
      tensor for keys and one for values, per sentence where positions are structural,
    - ``plain``: ``scaled_dot_product_attention`` without positions, as fairseq's Transformer.

    Examples:
        python benchmarks/attention_kernels.py relative-positions --lengths 32 256 --repeats 7
        python benchmarks/attention_kernels.py relative-positions --device cuda --dtype bfloat16
    """
    headings = [
        "n", "sentences", "ms", "naive ms", "naive/ours", "plain ms", "ours/plain", "MiB",
        "naive MiB", "naive/ours", "plain MiB", "once per batch, ms",
    ]  # fmt: skip
    lines = [relative_row(tokens, options) for tokens in progress(options.lengths, unit="row")]
    title = f"{' and '.join(options.kinds)} relative positions"
    title += ", keys only" if options.keys_only else ""
    report_kernel(headings, lines, 0, f"{title}, forward and backward", options)


def relative_row(tokens: int, options: argparse.Namespace) -> list[str]:
    """Measure one row of :func:`relative_positions`."""
    batch, width = batch_of(tokens, options), options.width // options.heads
    make = partial(make_positions, batch, tokens, options)
    positions = make()
    folded_positions = folded(positions)
    # The memory order of a time-first projection's output.
    states = [random_states(options, tokens, batch, options.heads, width) for _ in range(3)]
    tables = [random_states(options, positions.num_rows, width) for _ in range(2)]
    gradient = torch.randn_like(states[0]).permute(1, 2, 0, 3)

    def run(attend: Callable[..., Tensor]) -> None:
        values = None if options.keys_only else tables[1]
        output = attend(*(x.permute(1, 2, 0, 3) for x in states), tables[0], values)
        torch.autograd.grad(output, [*states, *tables], gradient, allow_unused=True)

    ways = (
        lambda *arguments: relative_attention(*arguments[:3], folded_positions, *arguments[3:])[0],
        lambda *arguments: naive_attention(*arguments[:3], positions, *arguments[3:]),
        lambda *arguments: scaled_dot_product_attention(*arguments[:3]),
    )
    turns, (ours, naive, plain) = measure([partial(run, way) for way in ways], options)
    return [
        str(tokens), str(batch), f"{1e3 * turns.median(0):.2f}", f"{1e3 * turns.median(1):.2f}",
        f"{turns.speed(0, 1):.1f}", f"{1e3 * turns.median(2):.2f}", f"{turns.speed(2, 0):.2f}",
        f"{ours:.1f}", f"{naive:.1f}", f"{naive / ours:.1f}", f"{plain:.1f}",
        once_per_batch(lambda: folded(make()), options),
    ]  # fmt: skip


def make_positions(batch: int, tokens: int, options: argparse.Namespace) -> RelativePositions:
    """Make the positions of equally long sentences in random trees, the last token ending each."""
    device = torch.device(options.device)
    words = torch.arange(tokens).expand(batch, tokens).clone()
    words[:, -1] = -1
    heads = near_heads(batch, tokens - 1, torch.Generator().manual_seed(tokens))
    padding_mask = torch.zeros(batch, tokens, dtype=torch.bool, device=device)
    relative = {}
    if "sequential" in options.kinds:
        relative["sequential"] = sequential_positions(tokens, device)
    if "structural" in options.kinds:
        tree = TreePositions(words.to(device), heads.to(device), padding_mask)
        relative["structural"] = tree.relative(options.relation)
    clips = dict.fromkeys(relative, options.clip)
    return RelativePositions.from_kinds(relative, clips, padding_mask)


def add_relative_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`relative_positions`."""
    add_arguments(parser, LENGTHS[:-1], repeats=9)
    parser.add_argument("--kinds", nargs="+", default=list(POSITIONS), choices=POSITIONS)
    parser.add_argument("--relation", default="edge", choices=["edge", "path", "distance"])
    parser.add_argument("--clip", type=int, default=16)
    parser.add_argument("--keys-only", action="store_true", help="leave the value side out")
    add_out(parser)


def hierarchical_accumulation(options: argparse.Namespace) -> None:
    """Hierarchical accumulation, compared with its literal dense definition.

    Each row is one shape: a layer's accumulation with hierarchical embeddings, measured forward, and
    forward and backward. It is computed once by the module and once by the paper's definition: a grid of
    vectors for every nonterminal and leaf, with embeddings added, averaged upward and summed over leaves.
    Both get the same values and parameters, and the run stops if they differ.

    The first row is the most important: 32 sentences of 50 leaves and 40 nonterminals. The others have
    1,600 leaves in total, and 4 nonterminals for 5 leaves. The definition is skipped if one of its grids
    would take more than --dense-limit.

    Example:
        python benchmarks/attention_kernels.py hierarchical-accumulation --lengths 16 64 --repeats 5
    """
    headings = [
        "sentences", "n", "m", "forward, ms", "definition, ms", "speed-up", "with backward, ms",
        "definition, ms", "speed-up", "MiB", "definition, MiB", "ratio", "once per batch, ms",
    ]  # fmt: skip
    shapes = [(32, 50), *((max(1, LEAVES_PER_BATCH // size), size) for size in options.lengths)]
    lines = [tree_row(*shape, options) for shape in progress(shapes, unit="row")]
    report_kernel(headings, lines, 0, "random trees", options)


def tree_row(sentences: int, leaves: int, options: argparse.Namespace) -> list[str]:
    """Measure one row of :func:`hierarchical_accumulation`."""
    dtype = getattr(torch, options.dtype)
    nonterminals = leaves * 4 // 5
    spans = random_trees(sentences, leaves, nonterminals).to(options.device)
    padding = torch.zeros(sentences, leaves, dtype=torch.bool, device=options.device)
    module = make_accumulation(options)
    values = node_values(options, sentences, leaves + nonterminals)
    leaf_states = random_states(options, sentences, leaves, options.width)
    gradient = torch.randn_like(values)
    variables = [values, leaf_states, *module.parameters()]

    def tree() -> TreeBatch:
        return TreeBatch(leaf_spans=spans, padding_mask=padding)

    def once() -> None:
        coefficients(leaf_states.new_zeros(sentences, leaves, 1).float(), tree(), module.indices)

    batch = tree()
    kinds: list[Any] = [partial(module, tree=batch)]
    grid_bytes = nonterminals * leaves * sentences * options.width * values.element_size()
    if grid_bytes <= options.dense_limit * 2**30:
        kinds.append(DenseDefinition(module, batch))
        with torch.no_grad():
            torch.testing.assert_close(
                *(kind(values, leaf_states) for kind in kinds),
                rtol=1e-3,
                atol=1e-3 if dtype == torch.float32 else 0.1,
            )

    def forward(kind: Any) -> None:
        with torch.no_grad():
            kind(values, leaf_states)

    def both(kind: Any) -> None:
        torch.autograd.grad(kind(values, leaf_states), variables, gradient)

    cells = []
    for run in (forward, both):
        turns, memory = measure([partial(run, kind) for kind in kinds], options)
        cells += [f"{1e3 * turns.median(way):.1f}" for way in range(len(kinds))]
        cells += [f"{turns.speed(0, 1):.1f}"] if len(kinds) > 1 else ["", ""]
    ratio = [f"{memory[1]:.1f}", f"{memory[0] / memory[1]:.3f}"] if len(kinds) > 1 else ["", ""]
    shape = [str(sentences), str(leaves), str(nonterminals)]
    return [*shape, *cells, f"{memory[0]:.1f}", *ratio, once_per_batch(once, options)]


def make_accumulation(options: argparse.Namespace) -> HierarchicalAccumulation:
    """Build the module."""
    module = HierarchicalAccumulation(embed_dim=options.width, num_heads=options.heads)
    return module.to(options.device, getattr(torch, options.dtype))


def node_values(options: argparse.Namespace, sentences: int, nodes: int) -> Tensor:
    """Draw the nodes' values. Shape: (sentences, nodes, heads, head width)."""
    return random_states(options, sentences, nodes, options.heads, options.width // options.heads)


def random_trees(sentences: int, leaves: int, nonterminals: int) -> Tensor:
    """Draw n-ary trees. Shape: (sentences, nonterminals, 2), the half-open leaves in post-order.

    Adjacent nodes are joined, mostly in twos, until one is left.

    Args:
        leaves: of every tree.
        nonterminals: of every tree, fewer than leaves.
    """
    rng, trees = random.Random(leaves), []
    for _ in range(sentences):
        nodes = [(leaf, leaf + 1) for leaf in range(leaves)]
        spans = []
        for remaining in range(nonterminals, 0, -1):
            # Join more than two nodes where joins of two would leave more than one node.
            surplus = (len(nodes) - 1) - remaining
            size = 2 + surplus if remaining == 1 else 2 + (rng.random() < surplus / remaining)
            start = rng.randrange(len(nodes) - size + 1)
            span = (nodes[start][0], nodes[start + size - 1][1])
            nodes[start : start + size] = [span]
            spans.append(span)
        trees.append(sorted(spans, key=lambda span: (span[1], -span[0])))
    return torch.tensor(trees, dtype=torch.int64)


def add_tree_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`hierarchical_accumulation`."""
    add_arguments(parser, LENGTHS, repeats=7, has_tokens=False)
    parser.add_argument(
        "--dense-limit",
        type=float,
        default=1.0,
        metavar="GIB",
        help="largest grid of the definition",
    )
    add_out(parser)


COMMANDS = {
    phrase_attention: add_phrase_arguments,
    relative_positions: add_relative_arguments,
    hierarchical_accumulation: add_tree_arguments,
}

if __name__ == "__main__":
    sys.exit(run_one_of(COMMANDS, __doc__))
