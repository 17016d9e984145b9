"""Words per second of the same training step under different environment variables.

Each environment is a separate process, since libraries read their variables when they are loaded. The
processes take their steps (forward, backward, Adam, as in train_step.py) in turns on the same batches: a
slowdown of the machine affects all of them. The first environment is the reference. Columns:

- ``words/s``: target tokens per second, median over the steps,
- ``measured``: words per second divided by the reference's, the median of the paired ratios,
- ``loss``: after the last step. It shows whether the environments compute the same.

Examples:
    python benchmarks/environments.py OMP_NUM_THREADS=1 OMP_NUM_THREADS=2 -- --size tiny
    python benchmarks/environments.py '' 'LD_PRELOAD=./mkl_avx512.so' -- DATA --size tiny

If the words after ``--`` are a command, it is run ``--rounds`` times in each environment. Columns: CPU
seconds of the command and its processes, the reference's divided by them, and seconds by the clock:

    python benchmarks/environments.py PYTHONPATH=../before PYTHONPATH=. -- \\
        fairseq-phrase-translate BUNDLE one_line.txt
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import statistics
import subprocess
import sys
import time
import warnings

import torch
from machine import describe_machine, seconds
from models import add_arguments, build_models
from tqdm import tqdm
from train_step import Trained, add_step_arguments, load_batches

from fairseq_phrase.text import markdown_table


class Steps:
    """A process that trains on demand under its own environment.

    Args:
        environment: ``NAME=VALUE NAME=VALUE``, in addition to the variables of this process.
        options: the command line of the training, see :func:`work`.
    """

    def __init__(self, environment: str, options: list[str]):
        variables = dict(word.split("=", 1) for word in environment.split())
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--work", *options],
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

    def step(self) -> tuple[float, float, float]:
        """Train on the next batch; return words, seconds and loss."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        words, time, loss = map(float, self._read().split())
        return words, time, loss


def training_parser() -> argparse.ArgumentParser:
    """Return the parser of the options after ``--``: train_step.py's options for a step."""
    parser = argparse.ArgumentParser(prog="environments.py ... --")
    add_arguments(parser)
    add_step_arguments(parser, max_tokens=4096, steps=12, batches=4)
    return parser


def work(options: argparse.Namespace) -> None:
    """Train on a batch for each line of standard input; print words, seconds and loss."""
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    torch.manual_seed(1)
    trained = Trained.of(build_models(options)[-1])
    batches = load_batches([trained.built], options)
    words = statistics.mean(batch["ntokens"] for batch in batches)
    print(
        f"{describe_machine(options.device)}, {trained.built.name}, size {options.size}, "
        f"batches of {words:.0f} words on average",
        flush=True,
    )
    for number, _ in enumerate(sys.stdin):
        batch = batches[number % len(batches)]
        time = seconds(lambda b=batch: trained.step(b, 1), torch.device(options.device))
        own = trained.built.own_inputs(batch)
        with torch.no_grad():
            loss = trained.criterion(trained.built.model, own)[0].item() / batch["ntokens"]
        print(batch["ntokens"], time, loss, flush=True)


def run_command(environment: str, command: list[str]) -> tuple[float, float]:
    """Run a command in an environment; return its CPU seconds and its seconds by the clock."""
    begin = time.perf_counter()
    variables = dict(word.split("=", 1) for word in environment.split())
    process = subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)} ended with status {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - begin


def compare_commands(environments: list[str], command: list[str], rounds: int) -> None:
    """Run a command in all environments in turns and print the table."""
    measured = [[run_command(each, command) for each in environments] for _ in range(rounds)]
    lines = []
    for environment, runs in zip(environments, zip(*measured, strict=True), strict=True):
        cpu, clock = map(statistics.median, zip(*runs, strict=True))
        ratio = statistics.median(
            first[0] / own[0] for (first, *_), own in zip(measured, runs, strict=True)
        )
        lines.append([environment or "(as it is)", f"{cpu:.2f}", f"{ratio:.3f}", f"{clock:.2f}"])
    print(f"{describe_machine('cpu')}, median of {rounds} runs each, in turns\n")
    print(markdown_table(["environment", "CPU s", "measured", "s"], lines, texts=1))


def main() -> None:
    """Measure all environments and print the table."""
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="After --: a command, or options of train_step.py (the last model is trained).",
    )
    parser.add_argument(
        "environments", nargs="+", metavar="NAME=VALUE ...", help="'' is the present one"
    )
    parser.add_argument("--rounds", type=int, default=5, help="runs of a command")
    given = parser.parse_args(sys.argv[1:split])
    environments = given.environments
    own = sys.argv[split + 1 :]
    if wrong := [word for each in environments for word in each.split() if "=" not in word]:
        parser.error(f"{wrong[0]}: expected NAME=VALUE")
    if own and shutil.which(own[0]):
        return compare_commands(environments, own, given.rounds)
    options = training_parser().parse_args(own)
    processes = [Steps(environment, own) for environment in environments]
    measured: list[list[tuple[float, float, float]]] = [[] for _ in processes]
    for number in tqdm(range(-options.warmup, options.steps), unit="step", file=sys.stderr):
        # Each comes first, second, ... equally often.
        for turn in range(len(processes)):
            index = (number + turn) % len(processes)
            one = processes[index].step()
            if number >= 0:
                measured[index].append(one)
    lines = []
    for environment, steps in zip(environments, measured, strict=True):
        speed = statistics.median(words / time for words, time, _ in steps)
        ratio = statistics.median(
            first[1] / other[1] for first, other in zip(measured[0], steps, strict=True)
        )
        lines.append(
            [environment or "(as it is)", f"{speed:.0f}", f"{ratio:.3f}", f"{steps[-1][2]:.4f}"]
        )
    print(f"{processes[0].conditions}, median of {options.steps} steps each, in turns\n")
    print(markdown_table(["environment", "words/s", "measured", "loss"], lines, texts=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(training_parser().parse_args(sys.argv[2:]))
    else:
        main()
