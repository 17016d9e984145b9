"""``fairseq-phrase-average``: average a training's last checkpoints.

fairseq's ``scripts/average_checkpoints.py`` is not part of its package on PyPI.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_phrase.cli import CommandParser, command
from fairseq_phrase.cli.arguments import add


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fairseq-phrase-average", description="Average the parameters of checkpoints."
    )
    # fmt: off
    parser.add_argument("inputs", nargs="+", type=Path,
        help="checkpoints, or with --last one --save-dir")
    parser.add_argument("--last", type=int, metavar="N", help="the last N epochs' checkpoints")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE",
        help="the checkpoint to write")
    add(parser, "--allow-difference", "--strict-identity")
    return parser


@command(_parser)
def main(args: argparse.Namespace) -> None:
    """Run the command."""
    if args.last is not None and (len(args.inputs) != 1 or args.last < 1):
        _parser().error("--last N takes one folder and a positive number")
    from fairseq_phrase.models.averaging import average_checkpoints, last_checkpoints

    paths = args.inputs if args.last is None else last_checkpoints(args.inputs[0], args.last)
    average_checkpoints(paths, args.out, args.allow_difference, strict=args.strict_identity)
    print(f"{args.out}: the mean of {', '.join(path.name for path in paths)}")
