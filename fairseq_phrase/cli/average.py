"""``fairseq-phrase-average``: average a training's last checkpoints.

fairseq's ``scripts/average_checkpoints.py`` is not part of its package on PyPI.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fairseq_phrase.cli import CommandParser, run
from fairseq_phrase.cli.arguments import add_identity


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fairseq-phrase-average",
        description="Average the parameters of checkpoints.",
    )
    parser.add_argument(
        "inputs", nargs="+", type=Path, help="checkpoints, or with --last one --save-dir"
    )
    parser.add_argument("--last", type=int, metavar="N", help="the last N epochs' checkpoints")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the checkpoint to write"
    )
    add_identity(parser)
    return parser


def _body(argv: Sequence[str] | None) -> None:
    parser = _parser()
    args = parser.parse_args(argv)
    if args.last is not None and (len(args.inputs) != 1 or args.last < 1):
        parser.error("--last N takes one folder and a positive number")
    from fairseq_phrase.models.averaging import average_checkpoints, last_checkpoints

    paths = args.inputs if args.last is None else last_checkpoints(args.inputs[0], args.last)
    average_checkpoints(paths, args.out, args.allow_difference, strict=args.strict_identity)
    print(f"{args.out}: the mean of {', '.join(path.name for path in paths)}")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    run("fairseq-phrase-average", _body, argv)


if __name__ == "__main__":
    main()
