"""The cores of the machine that this process may use."""

from __future__ import annotations

import os


def num_cores() -> int:
    """Return how many cores this process may use: a cluster gives a job a few of a machine's."""
    # macOS and Windows cannot restrict a process.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
