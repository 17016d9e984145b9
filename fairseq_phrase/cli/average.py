"""``fairseq-phrase-average``: average checkpoints of a training.

fairseq's ``scripts/average_checkpoints.py`` is not part of its package on PyPI.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_phrase.cli.arguments import add, positive
from fairseq_phrase.cli.command import CommandParser, command


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fairseq-phrase-average", description="Average the parameters of checkpoints."
    )
    # fmt: off
    parser.add_argument("inputs", nargs="+", type=Path,
        help="checkpoints, or with --last, --around-best or --updates one --save-dir")
    selection = parser.add_mutually_exclusive_group()
    selection.add_argument("--last", type=positive, metavar="N", help="the last N epochs' checkpoints")
    selection.add_argument("--around-best", type=positive, metavar="N",
        help="N epochs' checkpoints with that of checkpoint_best.pt in the middle, for a training with "
        "--patience. --keep-last-epochs must be more than the patience and N / 2")
    selection.add_argument("--updates", type=positive, metavar="N",
        help="the checkpoint after N updates, checkpoint_EPOCH_N.pt, alone")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE",
        help="the checkpoint to write")
    add(parser, "--allow-difference", "--strict-identity")
    return parser


@command(make_parser)
def main(args: argparse.Namespace) -> None:
    if (args.last or args.around_best or args.updates) and len(args.inputs) != 1:
        make_parser().error("--last N, --around-best N and --updates N take one folder")
    from fairseq_phrase.checkpoints.averaging import (
        average_checkpoints,
        checkpoint_after,
        checkpoints_around_best,
        last_checkpoints,
    )

    paths = args.inputs
    if args.last:
        paths = last_checkpoints(paths[0], args.last)
    elif args.around_best:
        paths = checkpoints_around_best(paths[0], args.around_best)
    elif args.updates:
        paths = [checkpoint_after(paths[0], args.updates)]
    average_checkpoints(paths, args.out, args.allow_difference, strict=args.strict_identity)
    print(f"{args.out}: the mean of {', '.join(path.name for path in paths)}")
