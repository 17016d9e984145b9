"""What the benchmarks share: a description of the machine, and clocks that wait for the device."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch


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
    """Time one call."""
    synchronize(device)
    begin = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - begin
