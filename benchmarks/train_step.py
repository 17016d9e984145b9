"""Words per second and memory of a training step of our models against fairseq's own transformer.

All models have the same sizes, are built as fairseq-train builds them, and take their steps
(forward, backward, label-smoothed cross entropy, Adam) in turns on the same batches, so that a
machine that slows down slows them all. The table shows medians over the steps:

- ``words/s``: target tokens per second,
- ``measured``: words per second divided by the transformer's, the median of the paired ratios,
- ``predicted``: the same ratio if time were proportional to counted FLOPs, those of the matrix
  products of forward and backward. Nodes take part in it whether they are padding or not,
- ``measured/predicted``: the share of the possible speed that is reached; 1 or more is as good as
  the transformer itself,
- ``MiB``: the most that one step (forward, backward, update) holds at a time beyond parameters and
  optimizer state, which are there before; and that number divided by the transformer's.

A model that needs parses gets them with its batches; computing what follows from them is part of its
step. Without DATA sentences are random words in random trees, of Multi30k's lengths or all of one
length (--length).

On a machine that others use too, set OMP_NUM_THREADS=1.

Examples:
    python benchmarks/train_step.py DATA --size multi30k --max-tokens 1024 --steps 9
    python benchmarks/train_step.py --models structural --length 256 --max-tokens 1024 --steps 5
    python benchmarks/train_step.py DATA --device cuda --dtype bfloat16 --max-tokens 8192 --steps 30
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import options as fairseq_options
from fairseq import utils
from fairseq.data import Dictionary, LanguagePairDataset, ListDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim import FP16Optimizer, build_optimizer
from fairseq.tasks import setup_task
from machine import describe_machine, peak_memory, seconds
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from tqdm import tqdm

# Importing these registers the task and the models, as --user-dir does in fairseq's commands.
import fairseq_phrase.models.phrase_transformer
import fairseq_phrase.models.structural_transformer
import fairseq_phrase.tasks.syntax_translation  # noqa: F401
from fairseq_phrase.data.syntax_dataset import SyntaxDataset

# Width, feed-forward width, heads, layers; the paper's sizes for Multi30k are those of the base
# Transformer where it gives them, and so are the presets'.
SIZES = {
    "tiny": (128, 256, 4, 3),
    "multi30k": (512, 2048, 8, 6),
    "base": (512, 2048, 8, 6),
}
VOCABULARY = 8000

#: The rows, by name. A further architecture is a further row; the first is what all are compared to.
MODELS = {
    "transformer": "--arch transformer",
    "phrase, k = 2": "--arch phrase_transformer --phrase-max-length 2",
    "phrase, k = 3": "--arch phrase_transformer --phrase-max-length 3",
    "structural absolute": "--arch structural_transformer --structural-absolute",
    "structural absolute and relative": "--arch structural_transformer --structural-absolute "
    "--structural-relative",
    "structural, both relative": "--arch structural_transformer --structural-absolute "
    "--structural-relative --sequential-relative",
    "structural, both relative, keys only": "--arch structural_transformer --structural-absolute "
    "--structural-relative --sequential-relative --relative-keys-only",
}


@dataclass
class Trained:
    """A model in training: its task, criterion and optimizer, and what was measured of it."""

    name: str
    task: Any
    model: Any
    criterion: Any
    optimizer: Any
    parses: set[str] = field(default_factory=set)
    flops: int = 0
    memory: int = 0

    def own_inputs(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Leave the parses that the model has not asked for out of a batch."""
        wanted = {"src_tokens", "src_lengths", "prev_output_tokens", *self.parses}
        net_input = {name: x for name, x in sample["net_input"].items() if name in wanted}
        return {**sample, "net_input": net_input}

    def forward_backward(self, sample: dict[str, Any], update: int) -> int:
        """Compute the gradients of one batch, and return its sample size."""
        _, sample_size, _ = self.task.train_step(
            self.own_inputs(sample), self.model, self.criterion, self.optimizer, update
        )
        return sample_size

    def step(self, sample: dict[str, Any], update: int) -> None:
        """Train on one batch."""
        self.optimizer.zero_grad()
        sample_size = self.forward_backward(sample, update)
        self.optimizer.multiply_grads(1 / sample_size)
        self.optimizer.step()


def build(name: str, flags: list[str], data: str, options: argparse.Namespace) -> Trained:
    """Build a model as fairseq-train does, from its flags."""
    width, ffn, heads, layers = SIZES[options.size]
    arguments = [data, "--task", "syntax_translation", "--source-lang", options.source_lang]
    arguments += ["--target-lang", options.target_lang, *flags, "--dropout", "0.1"]
    for side in ("encoder", "decoder"):
        arguments += [f"--{side}-embed-dim", str(width), f"--{side}-ffn-embed-dim", str(ffn)]
        arguments += [f"--{side}-attention-heads", str(heads), f"--{side}-layers", str(layers)]
    arguments += ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]
    arguments += ["--optimizer", "adam", "--lr", "1e-4"]
    arguments += [] if options.device.startswith("cuda") else ["--cpu"]
    arguments += ["--bf16"] if options.dtype == "bfloat16" else []
    parser = fairseq_options.get_training_parser(default_task="syntax_translation")
    cfg = convert_namespace_to_omegaconf(
        fairseq_options.parse_args_and_arch(parser, input_args=arguments)
    )
    task = setup_task(cfg.task)
    parses: set[str] = set()
    task.require_parses = lambda fields: parses.update(f"src_{field}" for field in fields)
    model = task.build_model(cfg.model).to(options.device, getattr(torch, options.dtype))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if options.dtype == "bfloat16":
        optimizer = FP16Optimizer.build_optimizer(cfg, parameters)
    else:
        optimizer = build_optimizer(cfg.optimizer, parameters)
    criterion = task.build_criterion(cfg.criterion)
    return Trained(name, task, model.train(), criterion, optimizer, parses)


def write_dictionaries(directory: str, options: argparse.Namespace) -> None:
    """Make what a data directory needs for models to be built: two dictionaries."""
    dictionary = Dictionary()
    for index in range(VOCABULARY - len(dictionary)):
        dictionary.add_symbol(f"word{index}")
    for language in (options.source_lang, options.target_lang):
        dictionary.save(str(Path(directory) / f"dict.{language}.txt"))


def random_dataset(task: Any, length: int | None, sentences: int = 8192) -> SyntaxDataset:
    """Make sentences of random words in random trees.

    Args:
        task: knows the dictionaries.
        length: of all sentences, with end of sentence; None for Multi30k's: 18 subwords on average.
        sentences: how many.
    """
    generator = np.random.default_rng(1)
    source = np.exp(generator.normal(2.75, 0.32, sentences)).round().clip(4, 60).astype(np.int64)
    target = (source + generator.normal(0, 2, sentences).round()).clip(4, 60).astype(np.int64)
    if length is not None:
        source[:] = target[:] = length - 1

    def side(lengths: np.ndarray, dictionary: Dictionary) -> ListDataset:
        rows = [
            torch.from_numpy(generator.integers(dictionary.nspecial, len(dictionary), length + 1))
            for length in lengths
        ]
        for row in rows:
            row[-1] = dictionary.eos()
        return ListDataset(rows, lengths + 1)

    def parse(subwords: int) -> dict[str, np.ndarray]:
        # Four of five subwords begin a word, whose head is one of the five before it.
        words = np.r_[0, (generator.random(subwords - 1) < 0.8).cumsum()]
        index = np.arange(words[-1] + 1)
        heads = (index - generator.integers(1, 6, len(index))).clip(0)
        return {"words": words, "heads": heads}

    sources = side(source, task.source_dictionary)
    targets = side(target, task.target_dictionary)
    pairs = LanguagePairDataset(
        sources, source + 1, task.source_dictionary,
        targets, target + 1, task.target_dictionary,
        left_pad_source=False,
    )  # fmt: skip
    return SyntaxDataset(pairs, [parse(subwords) for subwords in source])


def load_batches(models: list[Trained], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Draw the batches as an epoch of fairseq-train does, with all parses that models ask for."""
    task = models[0].task
    if options.data:
        fields = {name.removeprefix("src_") for trained in models for name in trained.parses}
        if fields:
            type(task).require_parses(task, sorted(fields))
        task.load_dataset(options.subset)
        dataset = task.dataset(options.subset)
    else:
        dataset = random_dataset(task, options.length)
    batches = task.get_batch_iterator(
        dataset, max_tokens=options.max_tokens, seed=1, required_batch_size_multiple=1
    ).next_epoch_itr(shuffle=True)
    chosen = [batch for batch, _ in zip(batches, range(options.batches), strict=False)]
    return utils.move_to_cuda(chosen) if options.device.startswith("cuda") else chosen


def count_flops(trained: Trained, batches: list[dict[str, Any]]) -> int:
    """Count the FLOPs of forward and backward over all batches."""
    # The counter does not know every fused kernel (not the CPU's); those of the plain form it does.
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
        if number >= 0:
            times.append(taken)
    return times


def table(models: list[Trained], times: list[list[float]], batches: list[dict[str, Any]]) -> str:
    """Format the measurements in Markdown."""
    words = [batches[step % len(batches)]["ntokens"] for step in range(len(times))]
    lines = [
        "| model | words/s | ms per step | GFLOPs per step | measured | predicted "
        "| measured/predicted | MiB | MiB/transformer's |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for index, trained in enumerate(models):
        own = [step[index] for step in times]
        speed = statistics.median(count / time for count, time in zip(words, own, strict=True))
        measured = statistics.median(step[0] / step[index] for step in times)
        predicted = models[0].flops / trained.flops
        lines.append(
            f"| {trained.name} | {speed:.0f} | {statistics.median(own) * 1e3:.0f} "
            f"| {trained.flops / len(batches) / 1e9:.1f} | {measured:.3f} | {predicted:.3f} "
            f"| {measured / predicted:.2f} | {trained.memory / 2**20:.0f} "
            f"| {trained.memory / models[0].memory:.2f} |"
        )
    return "\n".join(lines)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "data",
        metavar="DATA",
        nargs="?",
        help="a directory made by fairseq-phrase-preprocess or fairseq-preprocess; without it, "
        f"random words of {VOCABULARY} in sentences as long as Multi30k's",
    )
    parser.add_argument("--source-lang", default="de")
    parser.add_argument("--target-lang", default="en")
    parser.add_argument("--subset", default="train", help="split of DATA that batches come from")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--size", default="multi30k", choices=list(SIZES))
    parser.add_argument(
        "--models",
        nargs="+",
        default=[""],
        metavar="NAME",
        help=f"compare those alone whose names begin so: {', '.join([*MODELS][1:])}",
    )
    parser.add_argument(
        "--length", type=int, help="of every source and target, with end of sentence, without DATA"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=4096, help="in a batch, as fairseq counts"
    )
    parser.add_argument("--steps", type=int, default=12, help="measured steps of each model")
    parser.add_argument("--warmup", type=int, default=2, help="steps before those")
    parser.add_argument("--batches", type=int, default=4, help="different batches")
    parser.add_argument("--out", type=Path, help="also write the table here, in Markdown")
    return parser.parse_args(arguments)


def main() -> None:
    """Measure all models and print the table."""
    options = parse_arguments()
    # fairseq reports every dictionary, and torch its disuse of old names, between the bars.
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    torch.manual_seed(1)
    names = [name for name in MODELS if name.startswith(("transformer", *options.models))]
    with tempfile.TemporaryDirectory() as made:
        if not options.data:
            write_dictionaries(made, options)
        models = [
            build(name, MODELS[name].split(), options.data or made, options) for name in names
        ]
    batches = load_batches(models, options)
    for trained in models:
        trained.flops = count_flops(trained, batches)
    times = measure(models, batches, options)
    for trained in models:
        trained.memory = peak_memory(
            lambda t=trained: t.step(batches[0], 1), torch.device(options.device)
        )
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
