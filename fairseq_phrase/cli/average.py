"""``fairseq-phrase-average``: average checkpoints of a training.

fairseq's ``scripts/average_checkpoints.py`` is not part of its package on PyPI.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_phrase.cli import CommandParser, command
from fairseq_phrase.cli.arguments import add, positive


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fairseq-phrase-average", description="Average the parameters of checkpoints."
    )
    # fmt: off
    parser.add_argument("inputs", nargs="+", type=Path,
        help="checkpoints, or with --last or --around-best one --save-dir")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--last", type=positive, metavar="N", help="the last N epochs' checkpoints")
    chosen.add_argument("--around-best", type=positive, metavar="N",
        help="N epochs' checkpoints with that of checkpoint_best.pt in the middle, for a training with "
        "--patience. --keep-last-epochs must be more than the patience and N / 2")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE",
        help="the checkpoint to write")
    add(parser, "--allow-difference", "--strict-identity")
    return parser


@command(_parser)
def main(args: argparse.Namespace) -> None:
    """Run the command."""
    if (args.last or args.around_best) and len(args.inputs) != 1:
        _parser().error("--last N and --around-best N take one folder")
    from fairseq_phrase.checkpoints.averaging import (
        average_checkpoints,
        checkpoints_around_best,
        last_checkpoints,
    )

    paths = args.inputs
    if args.last:
        paths = last_checkpoints(paths[0], args.last)
    elif args.around_best:
        paths = checkpoints_around_best(paths[0], args.around_best)
    average_checkpoints(paths, args.out, args.allow_difference, strict=args.strict_identity)
    print(f"{args.out}: the mean of {', '.join(path.name for path in paths)}")
