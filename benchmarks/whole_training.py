"""Words per second of a whole training, against fairseq's Transformer, on a data directory with parses.

An update is all work of fairseq-train's main process for it: forward, backward, clipping, Adam, and the
numbers of the log. Its workers (--num-workers, by default one, as fairseq's) read and collate the batch
and make the encoder's computations from parses; without workers, the main process does. The models take
their updates in turns on the same batches. The table shows medians of the paired ratios. On a shared
machine, set OMP_NUM_THREADS=1: then CPU time is measured, without the workers'.

Example:
    python benchmarks/whole_training.py DATA --size tiny --models "phrase, k = 2" tree
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from fairseq.data.iterators import GroupedIterator
from fairseq.logging import metrics
from fairseq.tasks import setup_task
from fairseq.trainer import Trainer
from machine import describe_machine, seconds
from models import MODELS, add_arguments, chosen_models, configuration, size_flags
from tqdm import tqdm

from fairseq_phrase.text import markdown_table


def updates(name: str, options: argparse.Namespace) -> Iterator[int]:
    """Train a model as fairseq-train does; each step is an update, and yields its target words."""
    flags = [*MODELS[name], *size_flags(options.size), "--max-tokens", str(options.max_tokens)]
    flags += ["--clip-norm", "1.0", "--disable-validation"]
    flags += ["--num-workers", str(options.num_workers)]
    cfg = configuration(flags, options.data, options)
    torch.manual_seed(1)
    task = setup_task(cfg.task)
    model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
    trainer = Trainer(cfg, task, model, criterion)
    batches = trainer.get_train_iterator(epoch=1)
    while True:
        trainer.begin_epoch(batches.next_epoch_idx)
        for samples in GroupedIterator(batches.next_epoch_itr(shuffle=True), 1):
            with metrics.aggregate("train_inner"):
                trainer.train_step(samples)
            yield samples[0]["ntokens"]


def measure(names: list[str], options: argparse.Namespace) -> tuple[list[int], list[list[float]]]:
    """Train in turns.

    Returns:
        For each update its target words, and the seconds that each model took.
    """
    device = torch.device(options.device)
    running: list[Any] = [updates(name, options) for name in names]
    words, times = [], []
    for number in tqdm(range(-options.warmup, options.steps), unit="update", file=sys.stderr):
        taken, counted = [0.0] * len(running), [0] * len(running)

        def step(index: int, counted: list[int] = counted) -> None:
            counted[index] = next(running[index])

        # Each model comes first, second, ... equally often.
        for turn in range(len(running)):
            index = (number + turn) % len(running)
            taken[index] = seconds(lambda i=index: step(i), device)
        assert len(set(counted)) == 1, "the models have different batches"
        if number >= 0:
            words.append(counted[0])
            times.append(taken)
    return words, times


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--num-workers", type=int, default=1, help="as fairseq-train's")
    parser.add_argument("--steps", type=int, default=40, help="measured updates of each model")
    parser.add_argument("--warmup", type=int, default=2, help="updates before those")
    options = parser.parse_args()
    if not options.data:
        parser.error("DATA is needed: parses are read from it")
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    names = chosen_models(options)
    words, times = measure(names, options)
    lines = []
    for index, name in enumerate(names):
        own = [taken[index] for taken in times]
        speed = statistics.median(count / time for count, time in zip(words, own, strict=True))
        ratio = statistics.median(taken[0] / taken[index] for taken in times)
        lines.append([name, f"{speed:.0f}", f"{ratio:.3f}"])
    print(
        f"{describe_machine(options.device)}, {options.dtype}, size {options.size}, --max-tokens "
        f"{options.max_tokens}, --num-workers {options.num_workers}, {options.steps} updates of each "
        "model, in turns\n\n" + markdown_table(["model", "words/s", "relative"], lines, texts=1)
    )


if __name__ == "__main__":
    main()
