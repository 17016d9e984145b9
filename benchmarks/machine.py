"""Shared code of the benchmarks: options, a description of the machine, timing, and memory."""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


def add_kernel_arguments(parser: argparse.ArgumentParser, lengths: Sequence[int]) -> None:
    """Add the options of a kernel's benchmark."""
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--lengths", type=int, nargs="+", default=list(lengths))
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)


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
        f"{processor}, {os.cpu_count()} cores, {torch.get_num_threads()} threads{load}, "
        f"torch {torch.__version__}"
    )


def synchronize(device: torch.device) -> None:
    """Wait for the device to finish."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Time one call; on one thread of a CPU, its CPU time, which other processes hardly change."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    synchronize(device)
    begin = clock()
    run()
    synchronize(device)
    return clock() - begin


def peak_memory(run: Callable[[], object], device: torch.device) -> int:
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
