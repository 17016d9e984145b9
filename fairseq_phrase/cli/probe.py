"""``fairseq-phrase-probe``: probe an encoder's states for properties of sentences."""

from __future__ import annotations

import argparse
import math
from functools import partial
from pathlib import Path

from fairseq_phrase.cli.arguments import add, loading, number_or, positive, seed
from fairseq_phrase.cli.command import CommandParser, command
from fairseq_phrase.data.store.outputs import write_atomically
from fairseq_phrase.errors import UserError


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fairseq-phrase-probe",
        description="Probe encoders: average a layer's states over the tokens of a sentence, and train "
        "a classifier of this vector for each task (Conneau et al. 2018). Print the accuracies. With "
        "--make, write a task instead.",
    )
    parser.add_argument("--path", type=Path, nargs="+", metavar="CHECKPOINT", help="checkpoints")
    # fmt: off
    parser.add_argument("--names", nargs="+", metavar="NAME",
        help="the checkpoints' names in the table; by default what their paths do not share. Checkpoints "
        "of the same name are seeds: they share a row, with mean and standard deviation")
    parser.add_argument("--baseline", metavar="ROW",
        help="the model that others are compared with, if models have several seeds (the first one)")
    parser.add_argument("--tasks", type=Path, nargs="+", metavar="DIR",
        help="folders of tasks: SentEval's TASK.txt, or X-Probe's TASK.va.txt and TASK.te.txt, also .gz")
    parser.add_argument("--task", action="append", default=[], metavar="TASK", dest="only",
        help="only this task, such as tree_depth; may be repeated")
    parser.add_argument("--detokenize", metavar="LANG",
        help="join words and punctuation of the tasks' texts, for encoders that were trained on raw text")
    parser.add_argument("--layer", type=number_or("all", "last", least=0), default="last", metavar="N",
        help="from 0 (what enters the first layer), last, or all")
    add(parser, "--data", "--source-parser", "--allow-difference", "--strict-identity")
    add(parser, "--user-dir")
    parser.add_argument("--max-sentences", type=positive, metavar="N",
        help="use at most N training sentences of each task, and a quarter of N of the others")
    add(parser, "--device")
    parser.add_argument("--out", type=Path, metavar="DIR",
        help="also write probing.md, probing.json, and probing.png, and keep "
        "what each classifier found in finished/, from which a later call goes on; with --make, the "
        "folder of the task")
    _add_classifier(parser)
    _add_make(parser)
    return parser


def penalty(text: str) -> float:
    """Read the weight of an L2 penalty, a number of 0 or more."""
    number = float(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of 0 or more, not {text}")
    return number


def _add_classifier(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("classifier")
    # fmt: off
    group.add_argument("--hidden", type=positive, nargs="+", default=[50, 100, 200], metavar="N",
        help="sizes of the hidden layer to choose from on the validation split")
    group.add_argument("--l2", type=penalty, nargs="+", default=[1e-5, 1e-3, 1e-1], metavar="X",
        help="weights of the L2 penalty to choose from on the validation split")
    group.add_argument("--epochs", type=positive, default=200, metavar="N",
        help="passes over the data, at most")
    group.add_argument("--workers", type=positive, default=1, metavar="N",
        help="processes that train classifiers")
    group.add_argument("--seed", type=seed, default=1,
        help="of slices, splits and classifiers' first weights")


def _add_make(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tasks from trees")
    # fmt: off
    group.add_argument("--make", choices=("top_constituents",),
        help="write this task to --out: the labels are the 20 most frequent sequences of constituents "
        "below the sentence's node, and OTHER")
    group.add_argument("--trees", type=Path, nargs="+", metavar="FILE", help="bracketed trees")
    group.add_argument("--text", type=Path, nargs="+", metavar="FILE",
        help="raw sentences, one a line, which --parser parses")
    group.add_argument("--sentence-label", default="S", metavar="LABEL",
        help="take only sentences whose node has this label, or any")
    add(group, "--parser", "--constituents")


@command(make_parser)
def main(args: argparse.Namespace) -> None:
    if args.make:
        _make(args)
    else:
        _probe(args)


def _make(args: argparse.Namespace) -> None:
    from fairseq_phrase.lab.probing.top_constituents import (
        from_bracket_files,
        from_parsed_files,
        write_task,
    )
    from fairseq_phrase.parsers.pipeline import ParsingOptions

    if args.out is None or (args.trees is None) == (args.text is None):
        raise UserError(f"--make {args.make} needs --out DIR, and --trees FILE or --text FILE")
    if args.trees:
        examples = from_bracket_files(args.trees, args.sentence_label)
    else:
        options = ParsingOptions(args.parser, args.constituents)
        examples = from_parsed_files(args.text, options, args.sentence_label)
    path = args.out / f"{args.make}.txt"
    counts = write_task(examples, path, seed=args.seed)
    print(f"{path}: {sum(counts.values())} sentences")
    for label, count in counts.most_common():
        print(f"{count}\t{label}")


def _probe(args: argparse.Namespace) -> None:
    if not args.path or not args.tasks:
        raise UserError("name checkpoints with --path and folders of tasks with --tasks")
    if args.names and len(args.names) != len(args.path):
        raise UserError(f"{len(args.path)} checkpoints, but {len(args.names)} --names")
    from fairseq_phrase.lab.probing.task_files import find_tasks

    tasks = find_tasks(args.tasks, args.only, seed=args.seed)
    if args.max_sentences:
        tasks = [task.sliced(args.max_sentences, args.seed) for task in tasks]
    if args.detokenize:
        tasks = [task.detokenized(args.detokenize) for task in tasks]
    # Check before the training of classifiers that the folder can be written.
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
    # Importing fairseq takes seconds; --help and wrong arguments do not need it.
    from fairseq_phrase.checkpoints.loading import load_model
    from fairseq_phrase.inference.model_files import device_named
    from fairseq_phrase.lab.probing.classifier import ProbeOptions
    from fairseq_phrase.lab.probing.probe_checkpoints import probe_checkpoints
    from fairseq_phrase.lab.probing.results import (
        baseline_differences,
        differences_table,
        plot_results,
        short_names,
    )

    names = args.names or short_names(args.path)
    baseline = args.baseline or names[0]
    if baseline not in names:
        raise UserError(f"--baseline {baseline}: the models are {', '.join(dict.fromkeys(names))}")
    loaded = loading(args)
    device = loaded.pop("device")
    results = probe_checkpoints(
        list(zip(names, args.path, strict=True)),
        partial(load_model, data=args.data, **loaded),
        tasks,
        layers=args.layer,
        options=ProbeOptions(args.hidden, args.l2, args.epochs, seed=args.seed),
        device=device_named(device),
        workers=args.workers,
        finished=None if args.out is None else args.out / "finished",
    )
    table = results.table()
    if compared := baseline_differences(results, baseline):
        table += f"\n\n{differences_table(compared, baseline)}"
    print(table)
    if args.out is not None:
        write_atomically(args.out / "probing.md", f"{table}\n".encode())
        write_atomically(args.out / "probing.json", results.as_json().encode())
        plot_results(results, args.out / "probing.png")
