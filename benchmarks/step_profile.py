"""Profile of a training step by operation (torch.profiler), and the effect of torch.compile.

For each model: milliseconds per step, kernels launched, and the operations that take the longest; with
--compile the time of the compiled model instead, the number of graph breaks in a step, with reasons, and
the time of the first step, which compiles. If a model cannot be compiled, its line gives the reason.

Examples:
    python benchmarks/step_profile.py --device cuda --dtype bfloat16 --size base --max-tokens 4096
    python benchmarks/step_profile.py --compile --backend inductor --models tree
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
import warnings
from collections import Counter
from typing import Any

import torch
from machine import describe_machine, seconds, synchronize
from models import add_arguments, build_models
from torch._dynamo.utils import counters
from torch.profiler import ProfilerActivity, profile
from train_step import Trained, load_batches

from fairseq_phrase.text import markdown_table

_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")


def milliseconds(trained: Trained, batch: dict[str, Any], options: argparse.Namespace) -> float:
    """Return the median time of a step."""
    device = torch.device(options.device)
    times = [seconds(lambda: trained.step(batch, 1), device) for _ in range(options.steps)]
    return 1e3 * statistics.median(times)


def profile_step(
    trained: Trained, batch: dict[str, Any], options: argparse.Namespace
) -> tuple[list[str], str]:
    """Profile one step.

    Returns:
        The model's line: time, launches, and time on the device; and the table of operations.
    """
    on_cuda = options.device.startswith("cuda")
    for _ in range(2):
        trained.step(batch, 1)
    taken = milliseconds(trained, batch, options)
    kinds = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_cuda]
    with profile(activities=kinds) as record:
        trained.step(batch, 1)
        synchronize(torch.device(options.device))
    events = record.key_averages()
    launches = sum(event.count for event in events if event.key in _LAUNCHES)
    busy = sum(event.self_device_time_total for event in events) / 1e3
    order = "self_device_time_total" if on_cuda else "self_cpu_time_total"
    operations = events.table(sort_by=order, row_limit=options.most, max_name_column_width=60)
    line = [trained.built.name, f"{taken:.1f}", str(launches), f"{busy:.1f}"]
    return line, f"### {trained.built.name}\n\n```\n{operations}\n```\n"


def compiled_step(
    trained: Trained, batch: dict[str, Any], options: argparse.Namespace
) -> tuple[list[str], str]:
    """Time the compiled model and the model without compilation.

    Returns:
        The model's line, and the reasons of graph breaks.
    """
    name, plain = trained.built.name, trained.built.model
    for _ in range(2):
        trained.step(batch, 1)
    before = milliseconds(trained, batch, options)
    torch._dynamo.reset()
    counters.clear()
    try:
        trained.built.model = torch.compile(plain, backend=options.backend)
        begin = time.perf_counter()
        trained.step(batch, 1)
        first = time.perf_counter() - begin
        trained.step(batch, 1)
        after = milliseconds(trained, batch, options)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return [name, f"{before:.1f}", "", "", "", reason], ""
    finally:
        trained.built.model = plain
    breaks: Counter[str] = counters["graph_break"]
    reasons = "\n".join(
        f"- {name}: {count} × {' '.join(why.split())[:200]}" for why, count in breaks.most_common(5)
    )
    gain = f"{before / after:.2f}"
    return [
        name,
        f"{before:.1f}",
        f"{after:.1f}",
        gain,
        str(breaks.total()),
        f"{first:.0f} s",
    ], reasons


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--subset", default="train", help="split of DATA that the batch comes from")
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=9, help="timed steps")
    parser.add_argument("--most", type=int, default=12, help="operations in a profile's table")
    parser.add_argument("--compile", action="store_true", help="try torch.compile instead")
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    return parser.parse_args(arguments)


def main() -> None:
    """Profile or compile all models; every line is printed when it is complete."""
    options = parse_arguments()
    options.batches = 1
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    torch.manual_seed(1)
    built = build_models(options)
    (batch,) = load_batches(built, options)
    print(
        f"{describe_machine(options.device)}, {options.dtype}, size {options.size}, a batch of "
        f"{batch['ntokens']} words"
        f"{f', backend {options.backend}' if options.compile else ''}\n",
        flush=True,
    )
    step = compiled_step if options.compile else profile_step
    lines = []
    for each in built:
        line, details = step(Trained.of(each), batch, options)
        lines.append(line)
        print(f"{details or line}\n", flush=True)
    headings = ["model", "ms per step", "launches", "ms on the device"]
    if options.compile:
        headings = [
            "model",
            "ms per step",
            "compiled",
            "gain",
            "graph breaks",
            "first step or error",
        ]
    print(markdown_table(headings, lines, texts=1))


if __name__ == "__main__":
    sys.exit(main())
