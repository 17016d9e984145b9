"""``fairseq-phrase-report``: make a table of runs, with significance, pictures and examples."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fairseq_phrase.cli.arguments import add, positive
from fairseq_phrase.cli.command import CommandParser, command
from fairseq_phrase.errors import UserError
from fairseq_phrase.option_values import FORMS


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fairseq-phrase-report",
        description="Make one table of trained models: Markdown, CSV, LaTeX, pictures, and an HTML "
        "page with all of it. A run is a folder ROW/seedN, or ROW, with what fairseq-train printed "
        "(train.log, in --log-format simple or json) and what fairseq-generate printed, with --bpe or "
        "--remove-bpe (generate-SUBSET.txt or generate.txt; and for its speed, which goes to stderr, "
        "generate-SUBSET.log or generate.log). For the speed with parsing, the same two files of "
        "fairseq-interactive (interactive-SUBSET.txt, interactive-SUBSET.log, or without SUBSET).",
    )
    # fmt: off
    parser.add_argument("runs", nargs="+", metavar="[NAME=]DIR",
        help="runs, rows of runs, or folders of rows")
    add(parser, "--reference")
    add(parser, "--subset",
        help="the test set's name in fairseq, if --reference does not have it")
    parser.add_argument("--source", action="append", metavar="[SUBSET=]FILE",
        help="the test sets' raw sentences, for the page's examples (default: as fairseq printed them) "
        "and the picture by length (default: by the length of the reference)")
    parser.add_argument("--set-name", action="append", metavar="SUBSET=NAME",
        help="what the table calls a test set (default: SUBSET); once for each")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR",
        help="folder for report.md and the other files")
    parser.add_argument("--baseline", metavar="ROW", help="compare the other rows with this one")
    parser.add_argument("--test", choices=("auto", "seeds", "ar", "bs", "none"), default="auto",
        help="tests against the baseline: auto, over seeds and sentences for rows "
        "with two seeds or more, and paired approximate randomization over sentences; seeds, the same, "
        "but a row with one seed is an error; ar or bs, only approximate randomization or a centred "
        "bootstrap over sentences; none. For labels and exact match, auto and seeds use McNemar's exact "
        "test instead of approximate randomization")
    parser.add_argument("--trials", type=positive, default=10_000, metavar="N",
        help="number of resamples or exchanges of each test")
    parser.add_argument(
        "--measure", choices=("translation", "labels", "spans", "exact"), default="translation",
        help="translation: BLEU, chrF and TER; labels: accuracy of labels (labels-SUBSET.txt, what "
        "fairseq-phrase-label writes); spans: F1 of spans in BIO labels; exact: share of outputs equal "
        "to the reference, such as logical forms")
    parser.add_argument("--metric", action="append", default=[], metavar="NAME[:ARGUMENT]",
        help="another metric, which needs --source; the first is the table's main one. "
        "file:NAME=SCORES[:lower], without --source, a number for each sentence in the file SCORES of "
        "each run's folder (:lower: lower is better); for corrections of errors gleu, "
        "errant:FILE.m2[@PIPELINE]; or that of an installed package")
    parser.add_argument("--form", choices=FORMS,
        help="with --measure exact: the outputs' formal language, which adds the share of well-formed "
        "outputs. calls: brackets after predicates, f ( a ); lambda: brackets around them, ( f a ); "
        "regex: also the share with the reference's language; sql: also the share of equal queries")
    parser.add_argument("--known-forms", type=Path, metavar="FILE",
        help="with --form calls or lambda: the training data's forms. A form with other predicates than "
        "theirs is not well-formed")
    parser.add_argument("--known-words", type=Path, metavar="FILE",
        help="with --measure labels or spans, and --source: the training data's words, a fairseq "
        "dictionary or text; adds the accuracy of all other words")
    parser.add_argument("--lowercase", action="store_true",
        help="add BLEU of lower-cased text, as papers report it")
    parser.add_argument("--repetition", action="store_true",
        help="add the rates of n-grams that a translation repeats (n = 1 to 4), and of immediate "
        "repetitions")
    add(parser, "--tokenize")
    parser.add_argument("--rows", type=Path, metavar="FILE.yaml",
        help="rows in the table's order, each with a title and the paper's number: "
        "'ROW: {title: TEXT, paper: 34.61}'")
    parser.add_argument("--contrastive", type=Path, metavar="DIR",
        help="contrastive accuracy on minimal pairs: a folder for each phenomenon with src.LANG, "
        "tgt.correct.LANG and tgt.incorrect.LANG, which scripts/contrastive.py has scored")
    parser.add_argument("--caption", default="Results", help="the table's title")
    parser.add_argument("--partial", action="store_true",
        help="leave out unfinished runs, and mark the table")
    parser.add_argument("--check", action="store_true",
        help="only check the options, read the texts and load the metrics; the runs may be missing")
    return parser


def _form(args: argparse.Namespace) -> Any:
    if args.form is None:
        if args.known_forms is not None:
            raise UserError("--known-forms needs --form calls or --form lambda")
        return None
    if args.measure != "exact":
        raise UserError(f"--form {args.form} needs --measure exact, not {args.measure}")
    from fairseq_phrase.metrics.measure_registry import FORMS as MADE
    from fairseq_phrase.text import read_lines

    texts = args.known_forms and list(read_lines(args.known_forms))
    return MADE[args.form](texts)


@command(make_parser)
def main(args: argparse.Namespace) -> None:
    from fairseq_phrase.lab.report.contrastive import read_pairs
    from fairseq_phrase.lab.report.files import write_report
    from fairseq_phrase.lab.report.make_report import ReportOptions, make_report
    from fairseq_phrase.lab.report.references import read_known_words, read_references
    from fairseq_phrase.lab.report.rows import read_row_file
    from fairseq_phrase.lab.report.runs import find_runs
    from fairseq_phrase.lab.report.tables import markdown
    from fairseq_phrase.metrics.functions import load_metrics
    from fairseq_phrase.metrics.measure_registry import LABELLING, Measure
    from fairseq_phrase.metrics.tokenizers import check_tokenizer

    tokenizer = args.tokenize and check_tokenizer(args.tokenize)
    texts = read_references(args.reference, args.subset, args.source or (), args.set_name or ())
    if args.known_words and args.measure not in LABELLING:
        raise UserError(f"--known-words needs --measure labels or spans, not {args.measure}")
    known_words = args.known_words and read_known_words(args.known_words)
    metrics = (known_words, _form(args), load_metrics(args.metric))
    options = ReportOptions(
        args.baseline, args.test, args.trials,
        Measure(args.measure, args.lowercase, tokenizer, args.repetition, *metrics),
        partial=args.partial, caption=args.caption,
        titles=read_row_file(args.rows) if args.rows is not None else {},
        pairs=read_pairs(args.contrastive) if args.contrastive is not None else (),
    )  # fmt: skip
    if args.check:
        for text in texts:
            options.measure.metrics(text.references, text.sources, text.ending)
        return
    report = make_report(find_runs(args.runs), texts, options)
    written = write_report(report, args.out)
    print(markdown(report))
    print(f"wrote {', '.join(map(str, written))}")
