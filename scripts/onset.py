"""Find when each training began to learn: the update at which its validation loss falls to a value.

    python scripts/onset.py RUNS/rows --nll 4.0 --out RUNS/onset

writes RUNS/onset.md and RUNS/onset.csv. The update is interpolated linearly between the two validations
around it. With --early and --reference they also have BLEU of an early translation, of each seed. Rows
are compared with the first one by Welch's t-test over seeds, with Holm's correction.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import sacrebleu
import yaml
from scipy.stats import ttest_ind

from fairseq_phrase.errors import UserError
from fairseq_phrase.lab.report.generation import read_generation
from fairseq_phrase.lab.report.training_log import Validation, read_training_log
from fairseq_phrase.metrics.over_seeds import holm
from fairseq_phrase.text import markdown_table, read_lines


def onset(validations: Sequence[Validation], nll: float) -> float | None:
    """Return the update at which the loss first falls to a value; None if it never does.

    Args:
        validations: in order. Their perplexity is 2 to the power of the loss.
        nll: negative log-likelihood per subword, in bits.
    """
    before: tuple[float, float] | None = None
    for validation in validations:
        if validation.ppl is None:
            continue
        point = (float(validation.update), math.log2(validation.ppl))
        if point[1] <= nll:
            if before is None or before[1] <= point[1]:
                return point[0]
            share = (before[1] - nll) / (before[1] - point[1])
            return before[0] + share * (point[0] - before[0])
        before = point
    return None


def read_onsets(rows: Path, names: Sequence[str], nll: float) -> dict[str, list[float | None]]:
    """Read the onsets of all finished trainings, by row.

    Args:
        rows: the folder with ROW/seedN/train.log.
        names: the order of the rows.
    """
    onsets = {}
    for name in names:
        logs = [read_training_log(path) for path in sorted((rows / name).glob("seed*/train.log"))]
        if finished := [log for log in logs if log.finished]:
            onsets[name] = [onset(log.validations, nll) for log in finished]
    return onsets


def early_bleu(rows: Path, name: str, output: str, reference: Sequence[str]) -> list[float]:
    """Return BLEU of a row's early translations, of each seed that has one.

    Args:
        output: the name of fairseq-generate's output in a run's folder.

    Raises:
        UserError: an output is not whole, or of another text than the reference.
    """
    scores = []
    for path in sorted((rows / name).glob(f"seed*/{output}")):
        hypotheses = read_generation(path).hypotheses
        if len(hypotheses) != len(reference):
            raise UserError(
                f"{path} has {len(hypotheses)} translations, and the reference has {len(reference)} lines"
            )
        scores.append(sacrebleu.corpus_bleu(hypotheses, [reference]).score)
    return scores


def compare(onsets: dict[str, list[float | None]]) -> dict[str, tuple[float, float, float, float]]:
    """Compare each row with the first, where both have two seeds or more that all reach the loss.

    There is no test where nothing varies, as of rows that reach it at the first validation.

    Returns:
        By row: the difference in updates, its 95% interval, and p after Holm's correction.
    """
    baseline, *names = onsets
    tests = {}
    for name in names:
        pair = [onsets[name], onsets[baseline]]
        if any(None in updates or len(updates) < 2 for updates in pair):
            continue
        if all(len({*updates}) == 1 for updates in pair):
            continue  # p would be NaN, and with it the correction of the other rows
        test = ttest_ind(*pair, equal_var=False)
        low, high = test.confidence_interval()
        difference = statistics.fmean(pair[0]) - statistics.fmean(pair[1])
        tests[name] = (difference, low, high, test.pvalue)
    corrected = holm([p for *_, p in tests.values()])
    return {
        name: (*numbers[:3], p) for (name, numbers), p in zip(tests.items(), corrected, strict=True)
    }


def table(
    onsets: dict[str, list[float | None]], titles: dict[str, str], early: dict[str, list[float]]
) -> tuple[list[str], list[list[str]]]:
    """Return the head and the cells of the table.

    Args:
        early: by row, BLEU of the early translations.
    """
    tests = compare(onsets)
    cells = []
    for name, updates in onsets.items():
        reached = [update for update in updates if update is not None]
        mean = "-" if len(reached) < len(updates) else f"{statistics.fmean(reached):.0f}"
        if mean != "-" and len(reached) > 1:
            mean += f" ± {statistics.stdev(reached):.0f}"
        cells.append([titles[name], f"{len(reached)} of {len(updates)}", mean, "", "", ""])
        scores = early.get(name, [])
        cells[-1].append(", ".join(f"{score:.1f}" for score in scores) or "-")
        if name in tests:
            difference, low, high, p = tests[name]
            cells[-1][3:6] = [f"{difference:+.0f}", f"{low:.0f} to {high:.0f}", f"{p:.3f}"]
    return ["row", "seeds that reach it", "update", "Δ", "95%", "p", "early BLEU"], cells


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path, help="the folder with ROW/seedN/train.log")
    parser.add_argument("--titles", type=Path, required=True, help="YAML with the rows, in order")
    parser.add_argument("--nll", type=float, required=True, help="the loss in bits per subword")
    parser.add_argument("--early", help="the name of an early translation in a run's folder")
    parser.add_argument("--reference", type=Path, help="its reference, .gz too")
    parser.add_argument("--out", type=Path, required=True, help="the files' name, without .md")
    args = parser.parse_args(arguments)
    if args.early and not args.reference:
        sys.exit("error: give --early and --reference together")
    rows = yaml.safe_load(args.titles.read_text("utf-8"))
    rows = rows.get("rows", rows)
    titles = {name: row["title"] for name, row in rows.items()}
    onsets = read_onsets(args.rows, list(titles), args.nll)
    if not onsets:
        sys.exit(f"{args.rows} has no finished training")
    early = {}
    if args.early:
        reference = list(read_lines(args.reference))
        try:
            early = {name: early_bleu(args.rows, name, args.early, reference) for name in onsets}
        except UserError as error:
            sys.exit(f"error: {error}")
    head, cells = table(onsets, titles, early)
    text = (
        f"**Update at which the validation loss falls to {args.nll:g} bits per subword**\n\n"
        f"{markdown_table(head, cells)}\n"
    )
    args.out.with_name(f"{args.out.name}.md").write_text(text, encoding="utf-8")
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([head, *cells])
    args.out.with_name(f"{args.out.name}.csv").write_text(stream.getvalue(), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
