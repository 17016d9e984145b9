"""Speed and memory of training translation models, compared with fairseq's Transformer or ``lstm``.

All models have the same sizes, are built as fairseq-train builds them, and train in turns on the same
batches: a slowdown of the machine affects all of them. Tables show medians, and ratios are medians of the
paired ratios. Models that need parses get them with their batches. Without DATA, sentences are random
words in random trees, with Multi30k's lengths or one length (--length).

On a shared machine, set OMP_NUM_THREADS=1: then CPU time is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from collating import add_collate_arguments, collate
from fairseq.data.iterators import GroupedIterator
from fairseq.logging import metrics
from fairseq.tasks import setup_task
from fairseq.trainer import Trainer
from measuring import (
    Run,
    Turns,
    add_out,
    add_steps,
    describe_machine,
    in_turns,
    peak_memory,
    progress,
    report,
    rotated,
    run_one_of,
    seconds,
    start,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from translation_models import (
    Built,
    Sample,
    Trained,
    add_arguments,
    add_batches,
    add_data,
    add_model_names,
    build_models,
    build_pair,
    build_rows,
    chosen_models,
    configuration,
    load_batches,
    row_flags,
)

from fairseq_phrase.text import markdown_table


def step(options: argparse.Namespace) -> None:
    r"""Words per second and memory of a training step, compared with fairseq's Transformer.

    A step is forward, backward, label-smoothed cross entropy and Adam. With --pair FLAGS a row is
    compared with the same row with these flags. Columns, relative to the first model:

    - ``words/s``: target tokens per second,
    - ``measured``: words per second divided by the first's,
    - ``predicted``: the same ratio if time were proportional to the counted FLOPs of the matrix products
      of forward and backward, including padded nodes,
    - ``measured/predicted``: the share of the possible speed that is reached,
    - ``MiB``: the peak memory of one step (forward, backward, update) in addition to parameters and
      optimizer state; and that number divided by the first's.

    Left out are the work of a data loader's processes (reading, collating, and the collater's
    computations from parses: ``collate``), and fairseq-train's clipping of gradients, logging (both:
    ``whole``), validation and checkpoints.

    All models are in memory until they have taken their last step, each with 12 bytes per parameter in
    single precision; only one model has gradients at a time.

    Examples:
        python benchmarks/training.py step DATA --size multi30k --max-tokens 1024 --steps 9
        python benchmarks/training.py step --models structural --length 256 --max-tokens 1024 --steps 5
        python benchmarks/training.py step DATA --device cuda --dtype bfloat16 --max-tokens 8192
        python benchmarks/training.py step --models tree --pair=--neutral-start
        python benchmarks/training.py step --models 'sequential relative' --pair='--copy pointer'
        python benchmarks/training.py step --models transformer --pair='--tree-planting 1' --steps 40
        python benchmarks/training.py step --models 'Hugging Face encoder' --pair='--relation-bias none'
        python benchmarks/training.py step --models 'relation bias, both, labels' --length 64 \
            --pair='--relation-vectors keys-values'
    """
    name = options.models[0]
    built = build_pair(name, options.pair, options) if options.pair else build_models(options)
    names = [model.name for model in built]
    models, inputs, words = prepare(built, options)
    flops = [count_flops(*arguments) for arguments in zip(models, inputs, strict=True)]
    turns = train_in_turns(models, inputs, options)
    memory = []
    del built
    while models:  # a model that is measured is released
        trained, (first, *_) = models.pop(0), inputs.pop(0)
        # A training step begins with the gradients of the step before.
        trained.forward_backward(first)
        memory.append(peak_memory(partial(trained.step, first), torch.device(options.device)))
    headings = [
        "model", "words/s", "ms per step", "GFLOPs per step", "measured", "predicted",
        "measured/predicted", "MiB", "MiB/first's",
    ]  # fmt: skip
    lines = []
    for index, line in enumerate(speed_lines(names, turns, words)):
        predicted = flops[0] / flops[index]
        lines.append(
            [
                *line[:3], f"{flops[index] / options.batches / 1e9:.1f}", line[3],
                f"{predicted:.3f}", f"{turns.speed(index) / predicted:.2f}",
                f"{memory[index] / 2**20:.0f}", f"{memory[index] / memory[0]:.2f}",
            ]
        )  # fmt: skip
    source = options.subset if options.data else f"random, --length {options.length}"
    conditions = (
        f"{describe_machine(options.device)}, {options.dtype}, size {options.size}, "
        f"{options.batches} batches of {statistics.mean(words):.0f} words on average ({source}, "
        f"--max-tokens {options.max_tokens}), median of {options.steps} steps each, in turns"
    )
    report(conditions, markdown_table(headings, lines, texts=1), options.out)


def prepare(
    built: list[Built], options: argparse.Namespace
) -> tuple[list[Trained], list[list[Sample]], list[int]]:
    """Prepare models for training, as fairseq-train does.

    Returns:
        The models, each model's batches, and the target words of each measured step.
    """
    batches = load_batches(built, options)
    models = [Trained(model.cfg, model.task, model.model) for model in built]
    inputs = [[model.own_inputs(batch) for batch in batches] for model in built]
    words = [int(batches[number % len(batches)]["ntokens"]) for number in range(options.steps)]
    return models, inputs, words


def train_in_turns(
    models: list[Trained], inputs: list[list[Sample]], options: argparse.Namespace
) -> Turns:
    """Take the steps of :func:`prepare`'s models in turns."""

    def train(model: Trained, sample: Sample) -> None:
        model.step(sample)
        model.optimizer.zero_grad()

    def runs(number: int) -> list[Run]:
        return [
            partial(train, model, inputs_of_model[number % len(inputs_of_model)])
            for model, inputs_of_model in zip(models, inputs, strict=True)
        ]

    return in_turns(runs, options.steps, options.device, warmup=options.warmup, unit="step")


def speed_lines(names: Sequence[str], turns: Turns, words: Sequence[int]) -> list[list[str]]:
    """Return for each model its name, words per second, milliseconds, and speed over the first's."""
    return [
        [
            name, f"{turns.rate(way, words):.0f}", f"{1e3 * turns.median(way):.0f}",
            f"{turns.speed(way):.3f}",
        ]
        for way, name in enumerate(names)
    ]  # fmt: skip


def count_flops(trained: Trained, samples: list[Sample]) -> int:
    """Count the FLOPs of forward and backward over all batches."""
    # The counter does not know every fused kernel (not the CPU's), but it knows the unfused operations.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        for sample in samples:
            trained.optimizer.zero_grad()
            trained.forward_backward(sample)
    trained.optimizer.zero_grad()
    return counter.get_total_flops()


def add_step_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`step`."""
    add_arguments(parser)
    add_batches(parser, max_tokens=4096, batches=4)
    add_steps(parser, 12)
    parser.add_argument(
        "--pair", metavar="FLAGS", help="compare one row with itself with these flags"
    )
    add_out(parser)


def encoders(options: argparse.Namespace) -> None:
    """Time and memory of encoders alone, forward and backward, compared with fairseq's.

    Columns:

    - ``time``: the median of the paired ratios to the first encoder's,
    - ``MiB``: the peak memory in addition to parameters; and that number divided by the first's.

    Example:
        python benchmarks/training.py encoders --size tiny --length 512 --max-tokens 1024
    """
    built = build_models(options)
    (batch,) = load_batches(built, options)
    runs = [partial(encode, each.model.train(), each.own_inputs(batch)) for each in built]
    turns = in_turns(lambda _: runs, options.steps, options.device, warmup=2, unit="step")
    memory = [peak_memory(run, torch.device(options.device)) for run in runs]
    lines = [
        [
            each.name, f"{1e3 * turns.median(way):.1f}", f"{1 / turns.speed(way):.2f}",
            f"{memory[way] / 2**20:.0f}", f"{memory[way] / memory[0]:.2f}",
        ]
        for way, each in enumerate(built)
    ]  # fmt: skip
    conditions = (
        f"{describe_machine(options.device)}, {options.dtype}, size {options.size}, "
        f"{len(batch['id'])} sentences, --length {options.length}, median of {options.steps} steps "
        "each, in turns"
    )
    headings = ["encoder", "ms", "time", "MiB", "MiB/first's"]
    report(conditions, markdown_table(headings, lines, texts=1), options.out)


def encode(model: Any, sample: Sample) -> None:
    """Compute an encoder's states and the gradients of its parameters."""
    inputs = {name: x for name, x in sample["net_input"].items() if name != "prev_output_tokens"}
    model.encoder(**inputs)["encoder_out"][0].square().mean().backward()
    model.zero_grad()


def add_encoder_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`encoders`."""
    add_arguments(parser)
    add_batches(parser, max_tokens=1024)
    add_steps(parser, 15)
    add_out(parser)


FAIRSEQS = "fairseq's lstm"
RECURRENT = {
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


def recurrent(options: argparse.Namespace) -> None:
    """Words per second of recurrent models, compared with fairseq's own ``lstm`` of the same sizes.

    The first row is fairseq's: bilinear attention after the cell, with input feeding. The second row is
    the same model as ``--arch seq2seq``. The others are its other attentions. At 1 or more, a model is at
    least as fast as fairseq's.

    Examples:
        python benchmarks/training.py recurrent --max-tokens 1024 --steps 11
        python benchmarks/training.py recurrent DATA --width 256 --layers 2 --models bilinear
    """
    sizes = ["--encoder-bidirectional"] if options.bidirectional else []
    for side in ("encoder", "decoder"):
        twice = 2 if side == "decoder" and options.bidirectional else 1
        sizes += [f"--{side}-embed-dim", str(options.width)]
        sizes += [f"--{side}-hidden-size", str(options.width * twice)]
        sizes += [f"--{side}-layers", str(options.layers)]
    rows = {
        name: ["--arch", "seq2seq", *flags, *sizes]
        for name, flags in RECURRENT.items()
        if name.startswith(tuple(options.models))
    }
    fairseqs = ["--arch", "lstm", *sizes, "--decoder-out-embed-dim", str(options.width)]
    models, inputs, words = prepare(build_rows({FAIRSEQS: fairseqs, **rows}, options), options)
    turns = train_in_turns(models, inputs, options)
    lines = speed_lines([FAIRSEQS, *rows], turns, words)
    report(
        f"{describe_machine(options.device)}, {options.dtype}, width {options.width}, "
        f"{options.layers} layers, {statistics.mean(words):.0f} words in a batch, median of "
        f"{options.steps} steps each, in turns",
        markdown_table(["model", "words/s", "ms per step", "measured"], lines, texts=1),
        options.out,
    )


def add_recurrent_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`recurrent`."""
    add_data(parser)
    add_model_names(parser, list(RECURRENT))
    add_batches(parser, max_tokens=1024, batches=4)
    add_steps(parser, 11)
    parser.add_argument("--width", type=int, default=512, help="of embeddings and states")
    parser.add_argument("--layers", type=int, default=1, help="of encoder and decoder")
    parser.add_argument("--bidirectional", action="store_true", help="bidirectional encoders")
    add_out(parser)


def whole(options: argparse.Namespace) -> None:
    """Words per second of a whole training, on a data directory with parses.

    An update is all work of fairseq-train's main process for it: forward, backward, clipping, Adam, and
    the numbers of the log. Its workers (--num-workers, by default one, as fairseq's) read and collate the
    batch and make the encoder's computations from parses; without workers, the main process does. CPU
    time does not include the workers'.

    The first row is fairseq's Transformer with fairseq's own update, as without this package.

    Example:
        python benchmarks/training.py whole DATA --size tiny --models "phrase, k = 2" tree
    """
    if not options.data:
        sys.exit("DATA is needed: parses are read from it")
    rows = training_rows(options)
    running = [updates(*row, options) for row in rows.values()]
    words: list[list[int]] = [[] for _ in rows]

    def runs(number: int) -> list[Run]:
        return [lambda i=i: words[i].append(next(running[i])) for i in range(len(rows))]

    turns = in_turns(runs, options.steps, options.device, warmup=options.warmup, unit="update")
    assert all(count == words[0] for count in words), "the models have different batches"
    lines = speed_lines([*rows], turns, words[0][options.warmup :])
    lines = [[*line, turns.quartiles(way)] for way, line in enumerate(lines)]
    report(
        f"{describe_machine(options.device)}, {options.dtype}, size {options.size}, --max-tokens "
        f"{options.max_tokens}, --num-workers {options.num_workers}, {options.steps} updates of each "
        "model, in turns",
        markdown_table(
            ["model", "words/s", "ms per update", "relative", "quartiles"], lines, texts=1
        ),
        options.out,
    )


def training_rows(options: argparse.Namespace) -> dict[str, tuple[str, Sequence[str]]]:
    """Return the trainings that are compared, by title: a model and other flags."""
    first, *_ = names = chosen_models(options)
    stock = {f"{first}, fairseq's update": (first, ["--fairseq-update"])}
    return stock | {name: (name, options.flags.split()) for name in names}


def updates(name: str, others: Sequence[str], options: argparse.Namespace) -> Iterator[int]:
    """Train a model as fairseq-train does; each step is an update, and yields its target words.

    Args:
        others: other flags.
    """
    flags = [*row_flags(name, options), *others, "--max-tokens", str(options.max_tokens)]
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
            yield int(samples[0]["ntokens"])


def add_whole_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`whole`."""
    add_arguments(parser)
    add_steps(parser, 40)
    parser.add_argument("--max-tokens", type=int, default=4096, help="in a batch")
    parser.add_argument("--num-workers", type=int, default=1, help="as fairseq-train's")
    parser.add_argument("--flags", default="", help="of all rows but the first")
    add_out(parser)


def environments(options: argparse.Namespace) -> None:
    """Words per second of the same training step under different environment variables.

    Each environment is a separate process, since libraries read their variables when they are loaded. The
    last of the chosen models takes its steps in all of them. The first environment is the reference.
    Columns:

    - ``words/s``: target tokens per second,
    - ``measured``: words per second divided by the reference's,
    - ``loss``: after the last step. It shows whether the environments compute the same.

    Examples:
        python benchmarks/training.py environments --size tiny --set OMP_NUM_THREADS=1 OMP_NUM_THREADS=2
        python benchmarks/training.py environments DATA --set FAIRSEQ_PHRASE_MKL={as-it-is,intel}
    """
    if wrong := [word for text in options.set for word in text.split() if "=" not in word]:
        sys.exit(f"{wrong[0]}: expected NAME=VALUE")
    processes = [Steps(environment, options) for environment in options.set]
    turns, words, losses = Turns(), [], [""] * len(processes)
    for number in progress(range(-options.warmup, options.steps), unit="step"):
        times = [0.0] * len(processes)
        for index in rotated(len(processes), number):
            count, times[index], loss = processes[index].step()
            losses[index] = f"{loss:.4f}"
        if number >= 0:
            turns.rows.append(times)
            words.append(count)
    names = [environment or "(as it is)" for environment in options.set]
    lines = [
        [*line, loss] for line, loss in zip(speed_lines(names, turns, words), losses, strict=True)
    ]
    headings = ["environment", "words/s", "ms per step", "measured", "loss"]
    conditions = f"{processes[0].conditions}, median of {options.steps} steps each, in turns"
    report(conditions, markdown_table(headings, lines, texts=1), options.out)


class Steps:
    """A process that trains on demand under its own environment.

    Args:
        environment: ``NAME=VALUE NAME=VALUE``, in addition to the variables of this process.
        options: of the training.
    """

    def __init__(self, environment: str, options: argparse.Namespace):
        variables = dict(word.split("=", 1) for word in environment.split())
        settings = {
            name: value for name, value in vars(options).items() if name not in ("command", "out")
        }
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--on-demand", json.dumps(settings)],
            env=os.environ | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.conditions = self._read()

    def _read(self) -> str:
        """Read a line of the process.

        Raises:
            SystemExit: the process has ended. Its own messages are printed above.
        """
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the process ended with status {self.process.wait()}")
        return line.strip()

    def step(self) -> tuple[int, float, float]:
        """Train on the next batch; return words, seconds and loss."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        words, time, loss = self._read().split()
        return int(words), float(time), float(loss)


def train_on_demand(options: argparse.Namespace) -> None:
    """Train on a batch for each line of standard input; print words, seconds and loss."""
    name = chosen_models(options)[-1]
    (built,) = build_rows({name: row_flags(name, options)}, options)
    (trained,), (inputs,), _ = prepare([built], options)
    words = statistics.mean(sample["ntokens"] for sample in inputs)
    print(
        f"{describe_machine(options.device)}, {built.name}, size {options.size}, batches of "
        f"{words:.0f} words on average",
        flush=True,
    )
    for number, _ in enumerate(sys.stdin):
        sample = inputs[number % len(inputs)]
        time = seconds(partial(trained.step, sample), torch.device(options.device))
        with torch.no_grad():
            loss = trained.criterion(trained.model, sample)[0].item() / sample["ntokens"]
        print(sample["ntokens"], time, loss, flush=True)


def add_environment_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`environments`."""
    add_arguments(parser)
    add_batches(parser, max_tokens=4096, batches=4)
    add_steps(parser, 12)
    parser.add_argument(
        "--set",
        nargs="+",
        required=True,
        metavar="NAME=VALUE",
        help="'' is the present environment",
    )
    add_out(parser)


COMMANDS = {
    step: add_step_arguments,
    encoders: add_encoder_arguments,
    recurrent: add_recurrent_arguments,
    whole: add_whole_arguments,
    environments: add_environment_arguments,
    collate: add_collate_arguments,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--on-demand"]:  # a process of Steps
        start()
        train_on_demand(argparse.Namespace(**json.loads(sys.argv[2])))
    else:
        sys.exit(run_one_of(COMMANDS, __doc__))
