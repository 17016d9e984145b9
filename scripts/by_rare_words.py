"""Exact match of forms by whether the question has their rare words, which copying can then write.

    python scripts/by_rare_words.py RUNS/rows --rows none,additive,additive_joint \
        --train RUNS/raw/text/train --test RUNS/raw/text/test

A word of a form is rare if at most N of the training forms have it (--at-most). Sentences are in one of
three groups: every rare word of the form is in the question, and copying words can write it; some are
not; or the form lacks rare words. The table has each row's mean and standard deviation over its seeds.
Outputs are read from fairseq-generate's output, which keep_results.py keeps.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from fairseq_phrase.cli.arguments import positive
from fairseq_phrase.errors import UserError
from fairseq_phrase.lab.report.generation import check_same_test_set, read_generation
from fairseq_phrase.lab.report.runs import find_runs
from fairseq_phrase.metrics.forms import ExactMatch
from fairseq_phrase.text import markdown_table, read_lines

GROUPS = ("all in the question", "some not in the question", "none")


def groups(
    train_forms: Sequence[str], questions: Sequence[str], forms: Sequence[str], at_most: int
) -> NDArray[np.int_]:
    """Return the group of each sentence, an index of :data:`GROUPS`.

    >>> groups(["in ( ohio )"] * 3, ["iowa ?", "ohio ?"], ["in ( iowa )", "in ( ohio )"], at_most=1)
    array([0, 2])

    Args:
        train_forms: the forms of training.
        questions: the test sentences.
        forms: their forms.
        at_most: a word is rare if at most this number of training forms have it.

    Returns:
        Shape: ``(sentences,)``.
    """
    counts = Counter(word for form in train_forms for word in {*form.split()})
    numbers = []
    for question, form in zip(questions, forms, strict=True):
        rare = {word for word in form.split() if counts[word] <= at_most}
        numbers.append(2 if not rare else int(not rare <= {*question.split()}))
    return np.array(numbers)


def table(
    runs: Sequence[str],
    rows: Sequence[str],
    subset: str,
    forms: Sequence[str],
    group: NDArray[np.int_],
) -> str:
    """Write the exact match of each row in each group.

    Args:
        runs: folders of runs, as in the arguments of fairseq-phrase-report.
        rows: the rows' names, in order; empty for all.
        subset: the test set's name.
        forms: the correct forms.
        group: the group of each. Shape: ``(sentences,)``.

    Raises:
        UserError: a row lacks runs, or an output is of another test set.
    """
    scores: dict[str, list[list[float]]] = {}
    metric = ExactMatch(forms)
    sizes = dict(sorted(Counter(group.tolist()).items()))
    for run in find_runs(runs):
        if rows and run.row not in rows:
            continue
        path = run.output or run.path / f"generate-{subset}.txt"
        generation = read_generation(path)
        check_same_test_set(path, generation, forms)
        right = 100.0 * metric.correct_items(generation.hypotheses)
        scores.setdefault(run.row, []).append([fmean(right[group == index]) for index in sizes])
    if missing := [row for row in rows if row not in scores]:
        raise UserError(f"no runs of {', '.join(missing)} in {', '.join(runs)}")
    headings = [f"{GROUPS[index]} ({count})" for index, count in sizes.items()]
    lines = [
        [row, str(len(scores[row])), *map(_mean, zip(*scores[row], strict=True))]
        for row in rows or scores
    ]
    return markdown_table(["rare words of the form:", "seeds", *headings], lines)


def _mean(values: Sequence[float]) -> str:
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{spread}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", help="folders of rows with runs")
    parser.add_argument("--rows", default="", help="the rows, with commas between them (all)")
    parser.add_argument("--train", required=True, help="training text, without its language")
    parser.add_argument("--test", required=True, help="test text, without its language")
    parser.add_argument("--source", default="en", help="ending of questions (en)")
    parser.add_argument("--target", default="lf", help="ending of forms (lf)")
    parser.add_argument(
        "--subset", default="test", help="the test set's name in the outputs (test)"
    )
    parser.add_argument(
        "--at-most", type=positive, default=2, help="training forms that have a rare word (2)"
    )
    args = parser.parse_args(arguments)
    try:
        forms = list(read_lines(Path(f"{args.test}.{args.target}")))
        train = list(read_lines(Path(f"{args.train}.{args.target}")))
        questions = list(read_lines(Path(f"{args.test}.{args.source}")))
        if len(questions) != len(forms):
            raise UserError(f"{args.test}: {len(questions)} questions and {len(forms)} forms")
        group = groups(train, questions, forms, args.at_most)
        rows = args.rows.split(",") if args.rows else []
        print(table(args.runs, rows, args.subset, forms, group))
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
