"""``fairseq-phrase-export``: write a trained model in a form that can be shared."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fairseq_phrase.cli import CommandParser, run


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fairseq-phrase-export",
        description="Write one folder with what translation needs: weights as safetensors, "
        "dictionaries, the subword model, the parser's name and the configuration. No file in it can "
        "run code. fairseq-phrase-translate and fairseq_phrase.load take it.",
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="fairseq checkpoint")
    parser.add_argument("data", metavar="DATA", help="its data directory")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to make")
    parser.add_argument(
        "--source-parser", metavar="PARSER",
        help="name this parser instead of the one that made the data, for example spacy:MODEL if it was "
        "a folder of this machine",
    )  # fmt: skip
    return parser


def _body(argv: Sequence[str] | None) -> None:
    args = _parser().parse_args(argv)
    from fairseq_phrase.inference.bundle import write_bundle

    folder = write_bundle(args.checkpoint, args.data, args.out, args.source_parser)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"wrote {folder} ({size / 1e6:.1f} MB)")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    run("fairseq-phrase-export", _body, argv)


if __name__ == "__main__":
    main()
