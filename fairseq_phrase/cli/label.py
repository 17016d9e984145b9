"""``fairseq-phrase-label``: label words or sentences of raw text."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_phrase.cli.arguments import add, loading, positive, require_parsers
from fairseq_phrase.cli.command import MixedParser, command, standard_stream
from fairseq_phrase.cli.raw_text import add_output, write_output
from fairseq_phrase.errors import UserError

if TYPE_CHECKING:
    from fairseq_phrase.data.store.outputs import Key
    from fairseq_phrase.inference.output_files import Chunks, Outputs


def make_parser() -> argparse.ArgumentParser:
    parser = MixedParser(
        prog="fairseq-phrase-label",
        description="Label raw text: for each line a line of labels, with spaces between the labels of "
        "words, or one label. The order is kept, and empty lines stay empty. Words are separated by "
        "white space. Lines are segmented and parsed as the data were.",
    )
    parser.add_argument("data", metavar="DATA", help="the data directory of the training")
    # fmt: off
    parser.add_argument("inputs", nargs="*", type=Path, metavar="FILE",
        help="text (default: standard input). Data whose parser reads files need the parses of FILE next "
        "to it, FILE.conllu or another ending")
    parser.add_argument("--path", required=True, metavar="CHECKPOINT",
        help="checkpoint of --task syntax_labelling; for an ensemble several, with : between them")
    parser.add_argument("--subset", metavar="SUBSET",
        help="label this split of DATA (test, valid), not standard input")
    parser.add_argument("--scores", action="store_true",
        help="with --subset, print scores to standard error: accuracy, F1 of spans for BIO labels, and "
        "precision and recall of each label")
    add(parser, "--source-parser", "--allow-difference", "--strict-identity")
    parser.add_argument("--max-tokens", type=positive, metavar="N",
        help="tokens in a batch, at most (default: 1000 on a CPU, 12000 on a GPU)")
    add_output(parser, "label", "labelled")
    add(parser, "--device", "--user-dir")
    return parser


@command(make_parser)
def main(args: argparse.Namespace) -> None:
    if args.scores and args.subset is None:
        raise UserError("--scores needs --subset: raw text has no labels to compare with")
    require_parsers(args.source_parser)
    if args.subset is None:
        _label_text(args)
        return
    if args.inputs:
        raise UserError("--subset labels a split of DATA: leave FILE or --subset out")
    if args.out or args.shard:
        raise UserError("--out and --shard are for raw text: leave them or --subset out")
    _label_split(args)


def _label_text(args: argparse.Namespace) -> None:
    """Label files, or standard input."""
    from fairseq_phrase.inference.labelling import BUFFER_SIZE, load_labeller, read_labeller
    from fairseq_phrase.inference.output_files import output_key

    args.buffer_size = BUFFER_SIZE
    options = loading(args)

    def predict(chunks: Chunks) -> Outputs:
        labeller = load_labeller(args.path, args.data, max_tokens=args.max_tokens, **options)
        for labels in labeller.in_chunks(chunks):
            yield len(labels), "".join(f"{line}\n" for line in labels).encode()

    def key(parses: Sequence[Path]) -> Key:
        return output_key(vars(args), parses, read_labeller)

    write_output(args, predict, key, ("labelling", "labelled"))


def _label_split(args: argparse.Namespace) -> None:
    """Label a split of the data, and score its labels."""
    out = standard_stream("stdout")
    from fairseq_phrase.inference.labelling import describe_scores, load_labeller

    labeller = load_labeller(args.path, args.data, max_tokens=args.max_tokens, **loading(args))
    split = labeller.label_split(args.subset)
    out.write("".join(f"{line}\n" for line in split.predicted).encode())
    out.flush()
    if args.scores:
        print(describe_scores(split), file=sys.stderr)
