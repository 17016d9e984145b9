"""Losses of every encoder at updates 1, 10 and 100, with fairseq's update and the faster one.

Both trainings of a model begin with the same parameters and take the same batches in turn, with dropout.
A training enlarges every rounding, so the table has what rounding alone does to fairseq's update, too.

Columns:

- ``loss``: for a word, with fairseq's update in float32, at updates 1, 10 and 100,
- ``float32``, ``bfloat16``: the relative difference of the losses of the two updates,
- ``fairseq, rounded``: the largest relative difference that fairseq's update makes in float32 if the
  first parameters change at random in their last bit, of several such trainings (--roundings),
- ``fairseq, bfloat16``: the difference between fairseq's losses in bfloat16 and in float32.

The status is 1 if a loss in float32 differs by more than 1e-5, or one in bfloat16 by more than 2⁻⁸, and
by more than ten times what rounding does to fairseq's.

Examples:
    python benchmarks/losses.py --out benchmarks/losses.md
    python benchmarks/losses.py --models tree --updates 1 10
"""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace

import torch
from measuring import add_out, describe_machine, progress, report, run_command
from translation_models import (
    Trained,
    add_arguments,
    add_batches,
    build_rows,
    chosen_models,
    load_batches,
    row_flags,
)

from fairseq_phrase.text import markdown_table

#: Relative differences that are rounding, by type.
ROUNDING = {"float32": 1e-5, "bfloat16": 2**-8}
#: A larger difference is rounding if it is at most so many times what rounding does to fairseq's update.
TIMES = 10


def compare(options: argparse.Namespace) -> int:
    """Train every model with both updates; report its losses, and return the status."""
    lines, far = [], []
    for name in progress(chosen_models(options), unit="model"):
        stock, faster = (
            {dtype: losses(name, dtype, is_fairseqs, options) for dtype in ROUNDING}
            for is_fairseqs in (True, False)
        )
        by_type = {dtype: differences(faster[dtype], stock[dtype]) for dtype in ROUNDING}
        of_roundings = [
            differences(losses(name, "float32", True, options, number), stock["float32"])
            for number in range(1, options.roundings + 1)
        ]
        of_rounding = [*map(max, zip(*of_roundings, strict=True))]
        of_half = differences(stock["bfloat16"], stock["float32"])
        lines.append(
            [
                name, ", ".join(f"{loss:.4f}" for loss in stock["float32"]),
                *map(written, [*by_type.values(), of_rounding, of_half]),
            ]
        )  # fmt: skip
        print(*lines[-1], sep=" | ", flush=True)
        rounding = {"float32": of_rounding, "bfloat16": of_half}
        far += [
            f"{name}, {dtype}"
            for dtype, numbers in by_type.items()
            if any(map(is_far, numbers, rounding[dtype], [ROUNDING[dtype]] * len(numbers)))
        ]
    numbers = ", ".join(map(str, options.updates))
    conditions = (
        f"{describe_machine(options.device)}, size {options.size}, {options.batches} batches of "
        f"--max-tokens {options.max_tokens} in turn, lr {options.lr}, updates {numbers}"
    )
    headings = [
        "model", "loss", "float32", "bfloat16", "fairseq, rounded", "fairseq, bfloat16",
    ]  # fmt: skip
    report(conditions, markdown_table(headings, lines, texts=2), options.out)
    print(*(f"{name}: more than rounding" for name in far), sep="\n", file=sys.stderr)
    return bool(far)


def losses(
    name: str,
    dtype: str,
    is_fairseqs: bool,
    options: argparse.Namespace,
    rounding: int = 0,
) -> list[float]:
    """Train a model; return its losses at ``--updates``.

    Args:
        is_fairseqs: whether with fairseq's own update.
        rounding: the seed by which the first parameters change in their last bit; 0 for no change.
    """
    options = Namespace(**{**vars(options), "dtype": dtype})
    torch.manual_seed(1)
    (built,) = build_rows({name: row_flags(name, options)}, options)
    samples = [built.own_inputs(batch) for batch in load_batches([built], options)]
    if rounding:
        rng = torch.Generator().manual_seed(rounding)
        for parameter in built.model.parameters():
            parameter.data *= 1 + 2**-23 * torch.randint(-1, 2, parameter.shape, generator=rng)
    built.task.cfg.fairseq_update = is_fairseqs
    trained = Trained(built.cfg, built.task, built.model)
    trained.optimizer.set_lr(options.lr)
    torch.manual_seed(1)
    by_update = [
        trained.step(samples[update % len(samples)], update + 1, clip_norm=1.0)
        for update in range(max(options.updates))
    ]
    return [float(by_update[update - 1]) for update in options.updates]


def differences(losses: list[float], expected: list[float]) -> list[float]:
    """Return the relative differences of losses."""
    return [abs(loss - other) / other for loss, other in zip(losses, expected, strict=True)]


def is_far(difference: float, rounding: float, least: float) -> bool:
    """Return whether a difference is more than rounding."""
    return difference > max(least, TIMES * rounding)


def written(numbers: list[float]) -> str:
    """Write relative differences."""
    return ", ".join(f"{number:.0e}" for number in numbers)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`compare`."""
    add_arguments(parser)
    add_batches(parser, max_tokens=128, batches=8)
    parser.set_defaults(size="smallest", vocabulary=1000)
    parser.add_argument("--updates", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--roundings", type=int, default=3, help="trainings that show rounding")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate")
    add_out(parser)


if __name__ == "__main__":
    sys.exit(run_command(compare, add_options, __doc__))
