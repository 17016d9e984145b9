"""``fairseq-phrase-synthetic``: write a synthetic parallel corpus with gold trees."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fairseq_phrase.choices import MAX_WORDS, SYNTHETIC_LANGUAGES
from fairseq_phrase.cli import CommandParser, run


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fairseq-phrase-synthetic",
        description="Write a German-English corpus made by a small grammar, with gold dependency "
        "(CoNLL-U) and constituency (bracketed) trees of both sides.",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="directory to write to")
    for split, size in (("train", 6000), ("valid", 300), ("test", 300)):
        parser.add_argument(
            f"--{split}", type=_count, default=size, metavar="N", help=f"sentence pairs in {split}"
        )
    parser.add_argument("--seed", type=int, default=1, help="same seed, same files")
    for side, language in (("source", "de"), ("target", "en")):
        parser.add_argument(
            f"-{side[0]}",
            f"--{side}-lang",
            choices=SYNTHETIC_LANGUAGES,
            default=language,
            metavar="LANG",
            help=f"the {side} language, de or en",
        )
    parser.add_argument(
        "--max-words", type=_count, default=MAX_WORDS, metavar="N", help="longest sentence"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an existing corpus in DIR"
    )
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    run("fairseq-phrase-synthetic", _body, argv)


def _body(argv: Sequence[str] | None) -> None:
    args = _parser().parse_args(argv)
    from fairseq_phrase.synthetic.writer import write_corpus

    # The held-out splits come first, so that they do not depend on the size of the training split.
    sizes = {"valid": args.valid, "test": args.test, "train": args.train}
    write_corpus(
        args.out,
        sizes,
        args.seed,
        source_lang=args.source_lang,
        target_lang=args.target_lang,
        max_words=args.max_words,
        overwrite=args.overwrite,
    )
    for split, size in sizes.items():
        print(
            f"{split}: {size} sentence pairs" if size else f"{split}: 0 asked for, no file written"
        )
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
