"""``fairseq-phrase-synthetic``: write a synthetic parallel corpus with gold trees."""

from __future__ import annotations

import argparse

from fairseq_phrase.cli.command import CommandParser, command


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fairseq-phrase-synthetic",
        description="Write a German-English corpus made by a small grammar, with gold dependency "
        "(CoNLL-U) and constituency (bracketed) trees of both sides.",
    )
    # fmt: off
    parser.add_argument("--out", required=True, metavar="DIR", help="directory to write to")
    for split, size in (("train", 6000), ("valid", 300), ("test", 300)):
        parser.add_argument(f"--{split}", type=_count, default=size, metavar="N",
            help=f"sentence pairs in {split}")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same files")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


@command(make_parser)
def main(args: argparse.Namespace) -> None:
    from fairseq_phrase.lab.synthetic.corpus import write_corpus

    # The held-out splits come first, because they must not depend on the size of the training split.
    sizes = {"valid": args.valid, "test": args.test, "train": args.train}
    write_corpus(args.out, sizes, args.seed)
    for split, size in sizes.items():
        print(
            f"{split}: {size} sentence pairs" if size else f"{split}: 0 asked for, no file written"
        )
    print(f"wrote {args.out}")
