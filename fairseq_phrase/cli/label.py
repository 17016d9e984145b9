"""``fairseq-phrase-label``: label words or sentences of raw text."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fairseq_phrase.cli import CommandParser, add_hidden, run, standard_stream
from fairseq_phrase.cli.arguments import (
    add_device,
    add_identity,
    add_max_tokens,
    add_source_parser,
    add_user_dir,
    identity_of,
    load_user_dir,
)
from fairseq_phrase.errors import UserError


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fairseq-phrase-label",
        description="Label raw text: for each line of standard input a line of labels, with spaces "
        "between the labels of words, or one label. The order is kept, and empty lines stay empty. "
        "Words are separated by white space. Lines are cut and parsed as the data were.",
    )
    parser.add_argument("data", metavar="DATA", help="the data directory of the training")
    parser.add_argument(
        "--path", required=True, metavar="CHECKPOINT",
        help="checkpoint of --task syntax_labelling; for an ensemble several, with : between them",
    )  # fmt: skip
    parser.add_argument(
        "--subset",
        metavar="SUBSET",
        help="label this split of DATA (test, valid), not standard input",
    )
    add_hidden(parser, "--gen-subset", dest="subset")
    parser.add_argument(
        "--scores", action="store_true",
        help="with --subset, print scores to standard error: accuracy, that of unknown words, F1 "
        "of spans for BIO labels, and precision and recall of each label. Unknown words are not in the "
        "dictionary: training has them fewer than --min-count times. (fairseq-phrase-report "
        "--known-words counts those that training does not have at all)",
    )  # fmt: skip
    add_source_parser(parser)
    add_identity(parser)
    add_max_tokens(parser, None, " (default: 1000 on a CPU, 12000 on a GPU)")
    add_device(parser)
    add_user_dir(parser)
    return parser


def _body(argv: Sequence[str] | None) -> None:
    args = _parser().parse_args(argv)
    if args.scores and args.subset is None:
        raise UserError("--scores needs --subset: raw text has no labels to compare with")
    out = standard_stream("stdout")
    lines = None
    if args.subset is None:
        from fairseq_phrase.text import decoded_lines

        lines = decoded_lines(standard_stream("stdin"), "standard input")
    from fairseq_phrase.inference.label_scores import describe_scores
    from fairseq_phrase.inference.labelling import load_labeller

    load_user_dir(args)
    labeller = load_labeller(
        args.path,
        args.data,
        device=args.device,
        source_parser=args.source_parser,
        max_tokens=args.max_tokens,
        **identity_of(args),
    )
    if lines is not None:
        for line in labeller.label(lines):
            out.write(f"{line}\n".encode())
        out.flush()
        return
    split = labeller.label_split(args.subset)
    out.write("".join(f"{line}\n" for line in split.predicted).encode())
    out.flush()
    if args.scores:
        known = labeller.known_words() if split.words is not None else None
        if split.words is not None and known is None:
            print(
                f"unknown words are not scored, because {args.data} has no training text",
                file=sys.stderr,
            )
        print(describe_scores(split, known), file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    run("fairseq-phrase-label", _body, argv)


if __name__ == "__main__":
    main()
