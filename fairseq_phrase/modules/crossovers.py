"""Where one way of computing overtakes another, by device: the numbers in ``crossovers.json``.

``benchmarks/crossovers.py --write`` measures those of a device and writes them there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar, cast

import torch

FILE = Path(__file__).with_name("crossovers.json")
Setting = TypeVar("Setting")


def crossover(name: str) -> dict[str, float]:
    """Read the numbers of a crossover, by type of device: ``cpu``, ``cuda``."""
    return cast(dict[str, float], json.loads(FILE.read_text(encoding="utf-8"))[name])


def for_device(choices: dict[str, Setting], device: torch.device) -> Setting:
    """Look up what was chosen for a device; those never measured are taken to be like CUDA."""
    return choices.get(device.type, choices["cuda"])
