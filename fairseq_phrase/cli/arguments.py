"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from typing import Any

from fairseq_phrase.data.engines import ENGINES, EngineOptions
from fairseq_phrase.errors import UserError


def positive(text: str) -> int:
    """Read a number of 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, not {text}")
    return number


def add_engine(group: Any) -> None:
    """Add ``--workers``, ``--engine`` and ``--ray-address`` to a parser or a group of it."""
    group.add_argument(
        "--workers", type=positive, default=1, metavar="N", help="processes, or Ray actors"
    )
    group.add_argument(
        "--engine",
        choices=ENGINES,
        default="processes",
        help="who parses; ray needs the extra [ray]",
    )
    group.add_argument(
        "--ray-address", metavar="ADDRESS",
        help="the cluster's (auto, ray://HOST:PORT); without one, Ray starts on this machine",
    )  # fmt: skip


def engine_of(args: dict[str, Any]) -> EngineOptions:
    """Take the engine out of the arguments.

    Raises:
        UserError: the options contradict one another.
    """
    options = EngineOptions(args.pop("engine"), args.pop("workers"), args.pop("ray_address"))
    if options.ray_address is not None and options.name != "ray":
        raise UserError("--ray-address goes with --engine ray")
    return options
