"""Shared code of the benchmarks: commands and options, the machine, times in turns, memory, reports."""

from __future__ import annotations

import argparse
import inspect
import logging
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm

from fairseq_phrase.cores import num_cores
from fairseq_phrase.repairs import mkl

Run = Callable[[], object]
Command = Callable[[argparse.Namespace], "int | None"]
AddArguments = Callable[[argparse.ArgumentParser], None]

HelpFormatter = argparse.RawDescriptionHelpFormatter
#: A progress bar that does not mix with the table.
progress = partial(tqdm, file=sys.stderr)


def run_command(command: Command, add_arguments: AddArguments, description: str | None) -> int:
    """Parse the command line and run the command."""
    parser = argparse.ArgumentParser(description=description, formatter_class=HelpFormatter)
    add_arguments(parser)
    options = parser.parse_args()
    start()
    return command(options) or 0


def run_one_of(commands: dict[Command, AddArguments], description: str | None) -> int:
    """Run the command that the command line names.

    Args:
        commands: functions, each with a function that adds its options. The docstring is the help.
        description: the help of the file.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=HelpFormatter)
    names = parser.add_subparsers(metavar="COMMAND", required=True)
    for command, add_arguments in commands.items():
        text = inspect.cleandoc(command.__doc__ or "")
        name = command.__name__.replace("_", "-")
        summary = text.partition("\n")[0]
        subparser = names.add_parser(
            name, help=summary, description=text, formatter_class=HelpFormatter
        )
        add_arguments(subparser)
        subparser.set_defaults(command=command)
    options = parser.parse_args()
    start()
    return options.command(options) or 0


def start() -> None:
    """Load MKL and choose kernels of attention as trainings do, silence the libraries, seed torch."""
    use_intel_kernels()
    torch.backends.cuda.enable_cudnn_sdp(False)  # as compat.patches.patch_fairseq
    # fairseq reports every dictionary, and torch its deprecated names, between the progress bars.
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    torch.manual_seed(1)


def use_intel_kernels() -> None:
    """Start this process again with the library of ``repairs.mkl``, if it lacks and needs it."""
    try:
        library = mkl.preload() if mkl.is_wanted() else None
    except OSError as error:
        sys.exit(f"{error} (or FAIRSEQ_PHRASE_MKL=as-it-is)")
    if library is not None:
        os.environ["LD_PRELOAD"] = f"{library}:{os.environ.get('LD_PRELOAD', '')}".rstrip(":")
        os.execv(sys.executable, sys.orig_argv)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add --device: by default the GPU, if there is one."""
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")


def add_out(parser: argparse.ArgumentParser) -> None:
    """Add --out, where :func:`report` writes."""
    parser.add_argument("--out", type=Path, help="also write the table here, in Markdown")


def add_steps(parser: argparse.ArgumentParser, steps: int) -> None:
    """Add the numbers of measured steps and of steps before them."""
    parser.add_argument("--steps", type=int, default=steps, help="measured steps of each model")
    parser.add_argument("--warmup", type=int, default=2, help="steps before those")


def describe_machine(device: str) -> str:
    """Name the processor, the threads, torch, and how busy the machine is with other work."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")]
        processor = names[0].split(":")[1].strip() if names else processor
    if device.startswith("cuda"):
        processor = f"{torch.cuda.get_device_name()} ({processor})"
    load = f", load average {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{processor}, {num_cores()} cores, {torch.get_num_threads()} threads{load}, "
        f"torch {torch.__version__}"
    )


def report(conditions: str, table: str, out: Path | None = None) -> None:
    """Print a table under the conditions of its measurements, and write it to --out."""
    text = f"{conditions}\n\n{table}\n"
    print(text)
    if out:
        out.write_text(text)


def synchronize(device: torch.device) -> None:
    """Wait for the device to finish."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(run: Run, device: torch.device) -> float:
    """Time one call; on one thread of a CPU, its CPU time, which other processes hardly change."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    synchronize(device)
    begin = clock()
    run()
    synchronize(device)
    return clock() - begin


@dataclass
class Turns:
    """Times of several ways that ran in turns, so that a slowdown of the machine affects all of them.

    Attributes:
        rows: for each turn the seconds that each way took, in order.
    """

    rows: list[list[float]] = field(default_factory=list)

    def median(self, way: int) -> float:
        """Return the median of a way's seconds."""
        return statistics.median(row[way] for row in self.rows)

    def speed(self, way: int, base: int = 0) -> float:
        """Return how many times as fast as another a way is: the median of the paired ratios."""
        return statistics.median(row[base] / row[way] for row in self.rows)

    def quartiles(self, way: int, base: int = 0) -> str:
        """Return the first and the third quartile of these ratios."""
        if len(self.rows) < 2:
            return ""
        first, _, third = statistics.quantiles(row[base] / row[way] for row in self.rows)
        return f"{first:.3f} to {third:.3f}"

    def rate(self, way: int, counts: Iterable[float]) -> float:
        """Return a way's median count per second, of what each turn counts."""
        pairs = zip(counts, self.rows, strict=True)
        return statistics.median(count / row[way] for count, row in pairs)


def rotated(count: int, number: int) -> Iterator[int]:
    """Yield every index; in turns with successive numbers each is first, second, … equally often."""
    for turn in range(count):
        yield (number + turn) % count


def one_turn(runs: Sequence[Run], number: int, device: torch.device) -> list[float]:
    """Time each of the runs; return their seconds."""
    times = [0.0] * len(runs)
    for index in rotated(len(runs), number):
        times[index] = seconds(runs[index], device)
    return times


def in_turns(
    runs: Callable[[int], Sequence[Run]],
    turns: int,
    device: Any,
    *,
    warmup: int = 1,
    unit: str = "",
) -> Turns:
    """Measure in turns.

    Args:
        runs: returns the runs of a turn by its number. What it does itself is not measured.
        turns: the number of measured turns.
        device: that the runs compute on.
        warmup: turns before those, with negative numbers.
        unit: of the progress bar; none is shown without it.
    """
    device, measured = torch.device(device), Turns()
    for number in progress(range(-warmup, turns), unit=unit, disable=not unit):
        times = one_turn(runs(number), number, device)
        if number >= 0:
            measured.rows.append(times)
    return measured


def peak_memory(run: Run, device: torch.device) -> int:
    """Return the peak memory of one call, in bytes, minus the memory before the call.

    On CUDA the caching allocator counts it. On a CPU it is the running sum of the allocations and
    releases that the profiler records, which is exact for tensors but does not include scratch space
    inside kernels.
    """
    if device.type == "cuda":
        synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        run()
    events = record.profiler.kineto_results.events()
    changes = [event for event in events if event.name() == "[memory]"]
    held = most = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        held += change.nbytes()
        most = max(most, held)
    return most
