r"""Words per second and memory of a training step of our models, compared with fairseq's Transformer.

With --pair FLAGS a row is compared with the same row with these flags. All models have the same sizes and
are built as fairseq-train builds them. They take their steps (forward, backward, label-smoothed cross
entropy, Adam) in turns on the same batches: a slowdown of the machine affects all of them. The table
shows medians over the steps, and relative to the first model:

- ``words/s``: target tokens per second,
- ``measured``: words per second divided by the first's, the median of the paired ratios,
- ``predicted``: the same ratio if time were proportional to the counted FLOPs of the matrix products
  of forward and backward, including padded nodes,
- ``measured/predicted``: the share of the possible speed that is reached,
- ``MiB``: the peak memory of one step (forward, backward, update) in addition to parameters and
  optimizer state; and that number divided by the first's.

Models that need parses get them with their batches. Without DATA, sentences are random words in random
trees, with Multi30k's lengths or one length (--length).

Left out are the work of a data loader's processes (reading, collating, and the collater's computations
from parses: collate.py), and fairseq-train's clipping of gradients, logging, validation and checkpoints.

All models are in memory until they have taken their last step, each with 12 bytes per parameter in single
precision; only one model has gradients at a time.

On a shared machine, set OMP_NUM_THREADS=1.

Examples:
    python benchmarks/train_step.py DATA --size multi30k --max-tokens 1024 --steps 9
    python benchmarks/train_step.py --models structural --length 256 --max-tokens 1024 --steps 5
    python benchmarks/train_step.py DATA --device cuda --dtype bfloat16 --max-tokens 8192 --steps 30
    python benchmarks/train_step.py --models tree --pair=--neutral-start     cost of a neutral start
    python benchmarks/train_step.py --models 'sequential relative' --pair='--copy pointer' --length 40
    python benchmarks/train_step.py --models transformer --pair='--tree-planting 1' --steps 40
    python benchmarks/train_step.py --models 'Hugging Face encoder' --pair='--relation-bias none'
    python benchmarks/train_step.py --models 'relation bias, both, labels' --length 64 \
        --pair='--relation-vectors keys-values'
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.optim import FP16Optimizer, build_optimizer
from machine import describe_machine, peak_memory, seconds
from models import Built, add_arguments, build_models, build_pair, load_dataset
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from tqdm import tqdm

from fairseq_phrase.text import markdown_table


@dataclass
class Trained:
    """A model in training: its criterion, its optimizer and its measurements."""

    built: Built
    criterion: Any
    optimizer: Any
    flops: int = 0
    memory: int = 0

    @classmethod
    def of(cls, built: Built) -> Trained:
        """Prepare a model for training, as fairseq-train does."""
        built.model.train()
        parameters = [p for p in built.model.parameters() if p.requires_grad]
        if built.cfg.common.bf16:
            optimizer = FP16Optimizer.build_optimizer(built.cfg, parameters)
        else:
            optimizer = build_optimizer(built.cfg.optimizer, parameters)
        return cls(built, built.task.build_criterion(built.cfg.criterion), optimizer)

    def forward_backward(self, sample: dict[str, Any], update: int) -> int:
        """Compute the gradients of one batch, and return its sample size."""
        own = self.built.own_inputs(sample)
        _, sample_size, _ = self.built.task.train_step(
            own, self.built.model, self.criterion, self.optimizer, update
        )
        return sample_size

    def step(self, sample: dict[str, Any], update: int) -> None:
        """Train on one batch."""
        self.optimizer.zero_grad()
        sample_size = self.forward_backward(sample, update)
        self.optimizer.multiply_grads(1 / sample_size)
        self.optimizer.step()

    def release(self) -> None:
        """Free the model, its optimizer's state and its batches; the measurements stay."""
        self.built = replace(self.built, model=None, task=None, _own={})
        self.criterion = self.optimizer = None


def load_batches(models: list[Built], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Draw the batches as an epoch of fairseq-train does."""
    batches = models[0].task.get_batch_iterator(
        load_dataset(models, options.subset, options),
        max_tokens=options.max_tokens,
        seed=1,
        required_batch_size_multiple=8,
    )
    batches = batches.next_epoch_itr(shuffle=True)
    chosen = [batch for batch, _ in zip(batches, range(options.batches), strict=False)]
    return utils.move_to_cuda(chosen) if options.device.startswith("cuda") else chosen


def count_flops(trained: Trained, batches: list[dict[str, Any]]) -> int:
    """Count the FLOPs of forward and backward over all batches."""
    # The counter does not know every fused kernel (not the CPU's), but it knows the unfused operations.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        for batch in batches:
            trained.optimizer.zero_grad()
            trained.forward_backward(batch, 0)
    trained.optimizer.zero_grad()
    return counter.get_total_flops()


def measure(
    models: list[Trained], batches: list[dict[str, Any]], options: argparse.Namespace
) -> list[list[float]]:
    """Train in turns.

    Returns:
        For each step the seconds that each model took.
    """
    device = torch.device(options.device)
    times = []
    for number in tqdm(range(-options.warmup, options.steps), unit="step", file=sys.stderr):
        batch = batches[number % len(batches)]
        taken = [0.0] * len(models)
        # Each model comes first, second, ... equally often.
        for turn in range(len(models)):
            index = (number + turn) % len(models)
            taken[index] = seconds(lambda i=index, b=batch: models[i].step(b, 1), device)
            models[index].optimizer.zero_grad()
        if number >= 0:
            times.append(taken)
    return times


def table(models: list[Trained], times: list[list[float]], batches: list[dict[str, Any]]) -> str:
    """Format the measurements in Markdown."""
    words = [batches[step % len(batches)]["ntokens"] for step in range(len(times))]
    headings = [
        "model", "words/s", "ms per step", "GFLOPs per step", "measured", "predicted",
        "measured/predicted", "MiB", "MiB/first's",
    ]  # fmt: skip
    lines = []
    for index, trained in enumerate(models):
        own = [step[index] for step in times]
        speed = statistics.median(count / time for count, time in zip(words, own, strict=True))
        measured = statistics.median(step[0] / step[index] for step in times)
        predicted = models[0].flops / trained.flops
        lines.append(
            [
                trained.built.name, f"{speed:.0f}", f"{statistics.median(own) * 1e3:.0f}",
                f"{trained.flops / len(batches) / 1e9:.1f}", f"{measured:.3f}", f"{predicted:.3f}",
                f"{measured / predicted:.2f}", f"{trained.memory / 2**20:.0f}",
                f"{trained.memory / models[0].memory:.2f}",
            ]
        )  # fmt: skip
    return markdown_table(headings, lines, texts=1)


def add_step_arguments(
    parser: argparse.ArgumentParser, *, max_tokens: int, steps: int, batches: int
) -> None:
    """Add the options of :func:`load_batches` and :func:`measure`, with these defaults."""
    parser.add_argument("--subset", default="train", help="split of DATA that batches come from")
    parser.add_argument(
        "--max-tokens", type=int, default=max_tokens, help="in a batch, as fairseq counts"
    )
    parser.add_argument("--steps", type=int, default=steps, help="measured steps of each model")
    parser.add_argument("--warmup", type=int, default=2, help="steps before those")
    parser.add_argument("--batches", type=int, default=batches, help="different batches")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    add_step_arguments(parser, max_tokens=4096, steps=12, batches=4)
    parser.add_argument(
        "--pair",
        metavar="FLAGS",
        help="compare one row with itself with these flags",
    )
    parser.add_argument("--out", type=Path, help="also write the table here, in Markdown")
    return parser.parse_args(arguments)


def main() -> None:
    """Measure all models and print the table."""
    options = parse_arguments()
    # fairseq reports every dictionary, and torch its deprecated names, between the progress bars.
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    torch.manual_seed(1)
    built = (
        build_pair(options.models[0], options.pair, options)
        if options.pair
        else build_models(options)
    )
    batches = load_batches(built, options)
    models = [Trained.of(each) for each in built]
    for trained in models:
        trained.flops = count_flops(trained, batches)
    times = measure(models, batches, options)
    del built
    for trained in models:
        # A training step begins with the gradients of the step before.
        trained.forward_backward(batches[0], 1)
        trained.memory = peak_memory(
            lambda t=trained: t.step(batches[0], 1), torch.device(options.device)
        )
        trained.release()
    words = statistics.mean(batch["ntokens"] for batch in batches)
    conditions = (
        f"{describe_machine(options.device)}, {options.dtype}, size {options.size}, "
        f"{len(batches)} batches of {words:.0f} words on average "
        f"({options.subset if options.data else f'random, --length {options.length}'}, "
        f"--max-tokens {options.max_tokens}), "
        f"median of {options.steps} steps each, in turns"
    )
    report = f"{conditions}\n\n{table(models, times, batches)}\n"
    print(report)
    if options.out:
        options.out.write_text(report)


if __name__ == "__main__":
    main()
