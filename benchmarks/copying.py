"""Cost of copying in the Transformer: training steps with ``--copy`` and without, in turns.

``cost`` is the median of the paired ratios of times, minus 1. ``MiB`` is the peak memory of a step in
addition to parameters and optimizer state.

Examples:
    python benchmarks/copying.py --length 40 --max-tokens 1024 --steps 11
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import warnings

import torch
from machine import describe_machine, peak_memory
from models import VOCABULARY, add_arguments, build, write_dictionaries
from train_step import Trained, add_step_arguments, load_batches, measure

from fairseq_phrase.modules.copying import COPIES
from fairseq_phrase.text import markdown_table

# Without options, this encoder and this decoder are fairseq's own.
ARCHITECTURE = ["--arch", "structural_transformer"]


def build_rows(options: argparse.Namespace) -> list[Trained]:
    """Build the Transformer without copying, and with each form of it."""
    with tempfile.TemporaryDirectory() as made:
        if not options.data:
            write_dictionaries(made, options)
        data = options.data or made
        return [
            Trained.of(build(kind, [*ARCHITECTURE, "--copy", kind], data, options))
            for kind in ("none", *(options.kinds or COPIES))
        ]


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--kinds", nargs="*", choices=list(COPIES), help="default: all")
    add_step_arguments(parser, max_tokens=1024, steps=11, batches=2)
    return parser.parse_args()


def main() -> None:
    """Measure all forms and print the table."""
    options = parse_arguments()
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    torch.manual_seed(1)
    models = build_rows(options)
    batches = load_batches([each.built for each in models], options)
    times = measure(models, batches, options)
    device = torch.device(options.device)
    lines = []
    for index, trained in enumerate(models):
        own = statistics.median(step[index] for step in times)
        cost = statistics.median(step[index] / step[0] for step in times) - 1
        memory = peak_memory(lambda t=trained: t.step(batches[0], 1), device)
        lines.append(
            [trained.built.name, f"{own * 1e3:.0f}", f"{cost:+.1%}", f"{memory / 2**20:.0f}"]
        )
    shape = tuple(batches[0]["net_input"]["src_tokens"].shape)
    print(
        f"{describe_machine(options.device)}, {options.dtype}, size {options.size}, vocabulary "
        f"{len(models[0].built.task.target_dictionary) if options.data else VOCABULARY}, first batch "
        f"{shape} source tokens, median of {options.steps} steps each, in turns\n\n"
        f"{markdown_table(['copy', 'ms per step', 'cost', 'MiB'], lines, texts=1)}"
    )


if __name__ == "__main__":
    main()
