"""``fairseq-phrase-preprocess``: raw parallel text to a fairseq data directory with parses."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fairseq_phrase.cli import run
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers.pipeline import CONSTITUENTS


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, not {text}")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fairseq-phrase-preprocess",
        description="Raw parallel text to a directory that fairseq-train reads, with the source "
        "side's parses beside it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    text = parser.add_argument_group("text")
    text.add_argument("-s", "--source-lang", required=True, metavar="LANG")
    text.add_argument("-t", "--target-lang", required=True, metavar="LANG")
    text.add_argument("--trainpref", metavar="PREF", help="training text PREF.LANG or PREF.LANG.gz")
    text.add_argument("--validpref", metavar="PREF", help="validation texts, commas between them")
    text.add_argument("--testpref", metavar="PREF", help="test texts, commas between them")
    text.add_argument("--destdir", type=Path, default=Path("data-bin"), metavar="DIR")
    text.add_argument(
        "--max-length", type=_positive, default=1023, metavar="N",
        help="leave out training and validation pairs with more subwords than this on a side",
    )  # fmt: skip
    text.add_argument(
        "--strict", action="store_true", help="stop at an empty or too long pair instead"
    )
    syntax = parser.add_argument_group("syntax")
    syntax.add_argument(
        "--parser", default="none",
        help="spacy:MODEL (an installed pipeline or a folder), conllu or ptb (files PREF.LANG.conllu, "
        "PREF.LANG.ptb), or none (words at white space, for models that need no tree)",
    )  # fmt: skip
    syntax.add_argument(
        "--constituents", choices=CONSTITUENTS, default="parser",
        help="where constituents are from: the parser, if it makes any; its dependency trees; or none",
    )  # fmt: skip
    subwords = parser.add_argument_group("subwords")
    subwords.add_argument("--bpe", choices=["sentencepiece"], default="sentencepiece")
    subwords.add_argument(
        "--sentencepiece-model", type=Path, metavar="FILE",
        help="use this model; without it, one is trained on both sides of the training text",
    )  # fmt: skip
    subwords.add_argument("--vocab-size", type=_positive, default=8000, metavar="N")
    subwords.add_argument(
        "--joined-dictionary", action="store_true", help="one dictionary for both languages"
    )
    subwords.add_argument("--srcdict", type=Path, metavar="FILE", help="reuse this dictionary")
    subwords.add_argument("--tgtdict", type=Path, metavar="FILE", help="reuse this dictionary")
    work = parser.add_argument_group("work")
    work.add_argument("--workers", type=_positive, default=1, metavar="N", help="processes")
    work.add_argument("--seed", type=int, default=1)
    return parser


def _body(argv: Sequence[str] | None) -> None:
    args = vars(_parser().parse_args(argv))
    prefixes = [args.pop(f"{name}pref") for name in ("train", "valid", "test")]
    if not any(prefixes):
        raise UserError("nothing to do: give --trainpref, --validpref or --testpref")
    args.pop("bpe")
    # Imported here, because each parsing process imports this file and needs no fairseq.
    from fairseq_phrase.data.preprocess import Options, preprocess, splits_of

    options = Options(splits=dict(splits_of(*prefixes)), **args)
    for name, counts in preprocess(options).items():
        left_out = f"; left out: {counts.empty} empty, {counts.too_long} too long"
        print(
            f"{name}: {counts.kept} sentence pairs, {counts.words} source words, "
            f"{counts.subwords} subwords{left_out if counts.empty or counts.too_long else ''}"
        )
    print(f"wrote {options.destdir}")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    run("fairseq-phrase-preprocess", _body, argv)


if __name__ == "__main__":
    main()
