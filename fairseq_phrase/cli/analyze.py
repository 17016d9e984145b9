"""``fairseq-phrase-analyze``: tables about a model's behaviour over a whole data set."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_phrase.cli.arguments import add, loading
from fairseq_phrase.cli.command import CommandParser, command
from fairseq_phrase.data.store.outputs import write_atomically


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fairseq-phrase-analyze", description="Analyze a model over a whole data set."
    )
    commands = parser.add_subparsers(dest="table", required=True)
    attention = commands.add_parser(
        "attention",
        help="the tree Transformer's attention on constituents, against their share of the nodes",
        description="Measure the share of attention that constituents get, in each layer's cross- and "
        "self-attention, against their share of the nodes that may be attended to.",
    )
    add(attention, "data", "--path", "--subset")
    add(attention, "--allow-difference", "--strict-identity", "--user-dir")
    attention.add_argument("--out", type=Path, metavar="FILE", help="also write the table here")
    return parser


@command(make_parser)
def main(args: argparse.Namespace) -> None:
    # fairseq takes seconds to import: --help and wrong arguments do not wait for it.
    from fairseq_phrase.checkpoints.loading import load_model
    from fairseq_phrase.inference.source_sentence import dataset_batches
    from fairseq_phrase.lab.pictures.constituent_maps import nonterminal_shares, shares_table

    model, task = load_model(args.path, args.data, **loading(args))
    table = shares_table(nonterminal_shares(model, dataset_batches(task, args.subset)))
    if args.out is not None:
        write_atomically(args.out, f"{table}\n".encode())
    print(table)
