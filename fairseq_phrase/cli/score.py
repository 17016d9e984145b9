"""``fairseq-phrase-score``: a table of sacrebleu scores of ``fairseq-generate``'s output."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_phrase.cli.arguments import add
from fairseq_phrase.cli.command import CommandParser, command
from fairseq_phrase.data.store.outputs import write_atomically


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fairseq-phrase-score",
        description="Score translations by sacrebleu, detokenized against raw references: "
        "fairseq-phrase-report's table without files, tests and pictures. A run is a folder with "
        "generate-SUBSET.txt or generate.txt (what fairseq-generate printed, with --bpe or --remove-bpe) "
        "and, if you have it, train.log (what fairseq-train printed). Or name the file itself.",
    )
    # fmt: off
    parser.add_argument("runs", nargs="+", metavar="[NAME=]PATH",
        help="runs, rows of runs, folders of rows, or files that fairseq-generate wrote")
    add(parser, "--reference", "--tokenize")
    parser.add_argument("--out", type=Path, metavar="FILE",
        help="also write the table here; FILE.json gets the scores in sacrebleu's form")
    return parser


@command(make_parser)
def main(args: argparse.Namespace) -> None:
    from fairseq_phrase.lab.report.make_report import ReportOptions, make_report
    from fairseq_phrase.lab.report.references import read_references
    from fairseq_phrase.lab.report.runs import find_runs
    from fairseq_phrase.lab.report.tables import markdown, scores_json
    from fairseq_phrase.metrics.measure_registry import Measure
    from fairseq_phrase.metrics.tokenizers import check_tokenizer

    texts = read_references(args.reference, "test")
    measure = Measure(tokenizer=args.tokenize and check_tokenizer(args.tokenize))
    options = ReportOptions(test="none", measure=measure, needs_training=False, caption="Scores")
    report = make_report(find_runs(args.runs), texts, options)
    table = markdown(report)
    if args.out is not None:
        is_json = args.out.suffix == ".json"
        write_atomically(args.out, (scores_json(report) if is_json else table).encode())
    print(table, end="")
