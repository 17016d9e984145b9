"""Words per second of the recurrent models, compared with fairseq's own ``lstm`` of the same sizes.

The first row is fairseq's: bilinear attention after the cell, with input feeding. The second row is the
same model as ``--arch seq2seq``. The others are its other attentions. All take training steps in turns on
the same batches. ``measured`` is the median of the paired ratios of words per second: at 1 or more, a
model is at least as fast as fairseq's.

Examples:
    python benchmarks/recurrent.py --max-tokens 1024 --steps 11
    python benchmarks/recurrent.py DATA --width 256 --layers 2 --models bilinear
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import warnings

import torch
from machine import describe_machine
from models import add_arguments, build_of_flags, write_dictionaries
from train_step import Trained, add_step_arguments, load_batches, measure

from fairseq_phrase.text import markdown_table

FAIRSEQS = "fairseq's lstm"
ROWS = {
    FAIRSEQS: ["--arch", "lstm"],
    "bilinear, input feeding": ["--input-feeding"],
    "bilinear": [],
    "none": ["--attention", "none"],
    "dot": ["--attention", "dot"],
    "additive": ["--attention", "additive"],
    "concat": ["--attention", "concat"],
    "additive, before": ["--attention", "additive", "--attention-time", "before"],
    "bilinear, local-p, input feeding": ["--attention-window", "local-p", "--input-feeding"],
    "gru, bilinear": ["--cell", "gru"],
}


def build_rows(options: argparse.Namespace) -> list[Trained]:
    """Build the chosen models."""
    sizes = ["--encoder-bidirectional"] if options.bidirectional else []
    for side in ("encoder", "decoder"):
        twice = 2 if side == "decoder" and options.bidirectional else 1
        sizes += [f"--{side}-embed-dim", str(options.width)]
        sizes += [f"--{side}-hidden-size", str(options.width * twice)]
        sizes += [f"--{side}-layers", str(options.layers)]
    fairseqs = ["--decoder-out-embed-dim", str(options.width)]
    chosen = {
        name: flags
        for name, flags in ROWS.items()
        if name == FAIRSEQS or name.startswith(tuple(options.models))
    }
    with tempfile.TemporaryDirectory() as made:
        if not options.data:
            write_dictionaries(made, options)
        data = options.data or made
        return [
            Trained.of(
                build_of_flags(
                    name,
                    [*flags, *sizes, *fairseqs]
                    if name == FAIRSEQS
                    else ["--arch", "seq2seq", *flags, *sizes],
                    data,
                    options,
                )
            )
            for name, flags in chosen.items()
        ]


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--width", type=int, default=512, help="of embeddings and states")
    parser.add_argument("--layers", type=int, default=1, help="of encoder and decoder")
    parser.add_argument("--bidirectional", action="store_true", help="bidirectional encoders")
    add_step_arguments(parser, max_tokens=1024, steps=11, batches=4)
    return parser.parse_args()


def main() -> None:
    """Measure all models and print the table."""
    options = parse_arguments()
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    torch.manual_seed(1)
    models = build_rows(options)
    batches = load_batches([each.built for each in models], options)
    times = measure(models, batches, options)
    words = [batches[step % len(batches)]["ntokens"] for step in range(len(times))]
    lines = []
    for index, trained in enumerate(models):
        own = [step[index] for step in times]
        speed = statistics.median(count / time for count, time in zip(words, own, strict=True))
        ratio = statistics.median(step[0] / step[index] for step in times)
        lines.append(
            [
                trained.built.name,
                f"{speed:.0f}",
                f"{statistics.median(own) * 1e3:.0f}",
                f"{ratio:.3f}",
            ]
        )
    print(
        f"{describe_machine(options.device)}, {options.dtype}, width {options.width}, "
        f"{options.layers} layers, {statistics.mean(words):.0f} words in a batch, median of "
        f"{options.steps} steps each, in turns\n\n"
        f"{markdown_table(['model', 'words/s', 'ms per step', 'measured'], lines, texts=1)}"
    )


if __name__ == "__main__":
    main()
