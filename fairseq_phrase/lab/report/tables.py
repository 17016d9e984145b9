"""A report as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev

from fairseq_phrase.lab.report.confusion import is_labelled, label_cells
from fairseq_phrase.lab.report.contrastive import Accuracy
from fairseq_phrase.lab.report.rows import Report, Row
from fairseq_phrase.metrics.over_seeds import SeedComparison
from fairseq_phrase.text import escape_markdown, markdown_code, markdown_table

NONE = "-"  # shown instead of a missing number
_BY_SEEDS = ("low", "high", "p", "p_holm", "error", "freedom", "seed_error", "smallest")


def table_cells(report: Report) -> list[list[str]]:
    """Return the cells of a report's table, the heading first, without columns that lack numbers."""
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("model", lambda row: row.title),
        ("paper", lambda row: row.paper or NONE),
    ]
    main = report.main

    def over_seeds(show: Callable[[SeedComparison], str]) -> Callable[[Row], str]:
        return lambda row: show(row.by_seeds[main]) if main in row.by_seeds else NONE

    if len(report.texts) > 1:
        for number, text in enumerate(report.texts):
            heading = f"{main} {text.name}"
            columns.append((heading, lambda row, at=number: _score(row, main, at)))  # type: ignore[misc]
    for metric in report.metrics.names:
        columns.append((metric, lambda row, metric=metric: _score(row, metric)))  # type: ignore[misc]
        if metric == main and report.baseline is not None:
            columns += [
                (f"Δ{main}", lambda row: _number(report.difference(row, main), "+.2f")),
                ("95%", over_seeds(lambda test: f"{test.low:+.2f} to {test.high:+.2f}")),
                ("p", over_seeds(lambda test: format_p(test.p_holm))),
                (
                    "smallest gain found in 80%",
                    over_seeds(lambda test: _number(test.smallest, ".2f")),
                ),
                ("people agree", lambda row: _agreement(report, row)),
                ("p, sentences", lambda row: _sentence_p(row, main)),
            ]
    columns += [
        ("seeds", lambda row: {0: NONE, 1: "1 seed"}.get(len(row.runs), str(len(row.runs)))),
        ("parameters", lambda row: _number(row.median("parameters"), ",.0f")),
        ("updates", lambda row: _number(row.median("updates"), ",.0f")),
        ("words/s", lambda row: _number(row.median("words_per_second"), ",.0f")),
        ("training", _hours),
        ("sentences/s", lambda row: _number(row.speed(parsed=False), ".1f")),
        ("with parsing", lambda row: _number(row.speed(parsed=True), ".1f")),
    ]
    filled = [[heading, *map(cell, report.shown_rows)] for heading, cell in columns]
    return list(
        map(list, zip(*(column for column in filled if set(column[1:]) != {NONE}), strict=True))
    )


LABELS = "Labels, in percent: means over the seeds"
CONTRASTIVE = "Contrastive accuracy"
CONTRASTIVE_NOTE = (
    "Share of minimal pairs, in percent, in which the model gives the correct translation the higher "
    "score: by the log-probability of the whole translation / by the mean of its subwords. The first "
    "favours the shorter translation of a pair, the second does not. Numbers of pairs are in brackets; "
    "the last column is the mean over the phenomena."
)


def other_tables(report: Report) -> list[tuple[str, list[list[str]], str]]:
    """Return the tables below the main one: the title, the cells with the heading first, and a note."""
    tables = [(LABELS, label_cells(report), "")] if is_labelled(report) else []
    if report.pairs:
        tables.append((CONTRASTIVE, contrastive_cells(report), CONTRASTIVE_NOTE))
    return tables


def contrastive_cells(report: Report) -> list[list[str]]:
    """Return the cells of contrastive accuracies, the heading first.

    There is a column for each phenomenon and one for their mean, in percent: by the whole translation's
    log-probability, then by the mean over its subwords; means over the seeds ± standard deviation.
    """
    names = [test.phenomenon for test in report.pairs]
    cells = [["model", *(f"{test.phenomenon} ({test.count:,})" for test in report.pairs), "mean"]]
    for row in report.shown_rows:
        if row.runs:
            columns = [*([name] for name in names), names]
            cells.append([row.title, *(_accuracy(row.contrastive, column) for column in columns)])
    return cells


def _accuracy(runs: Sequence[Mapping[str, Accuracy]], names: Sequence[str]) -> str:
    cells = []
    of_runs = [[run[name] for name in names] for run in runs]
    for shares in (
        [[accuracy.total for accuracy in run] for run in of_runs],
        [[accuracy.mean for accuracy in run] for run in of_runs],
    ):
        values = [100 * fmean(run) for run in shares]
        spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
        cells.append(f"{fmean(values):.1f}{spread}")
    return " / ".join(cells)


def _number(value: float | None, form: str) -> str:
    return NONE if value is None else format(value, form)


def _score(row: Row, metric: str, test_set: int | None = None) -> str:
    deviation = row.deviation(metric, test_set)
    spread = "" if deviation is None else f" ± {deviation:.2f}"
    return _number(row.mean(metric, test_set), ".2f") + spread


def _agreement(report: Report, row: Row) -> str:
    difference = report.difference(row, report.main)
    share = None if difference is None else report.metrics.people_agree(report.main, difference)
    return NONE if share is None else f"{share:.0f}%"


def format_p(p: float) -> str:
    """Round a p-value."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _sentence_p(row: Row, metric: str) -> str:
    comparison = row.by_sentences.get(metric)
    if comparison is None:
        return NONE
    if comparison.pairs == 1:
        return format_p(comparison.p)
    better_worse = f"+{comparison.better} -{comparison.worse} of {comparison.pairs}"
    return f"{format_p(comparison.p)} ({better_worse})"


def _hours(row: Row) -> str:
    hours = row.median("hours")
    if hours is None:
        return NONE
    kind = "CPU" if row.hardware == "CPU" else "GPU"
    return f"{hours:.2f} {kind} h" if hours >= 0.1 else f"{hours:.4f} {kind} h"


def markdown(report: Report) -> str:
    """Write a report as a Markdown table with its notes and signatures."""
    heading, *lines = table_cells(report)
    parts = [f"**{escape_markdown(report.caption)}**"]
    if report.left_out:
        parts.append(
            "Left out:\n\n"
            + "\n".join(f"- {escape_markdown(problem)}" for problem in report.left_out)
        )
    parts += [markdown_table(heading, lines), *map(escape_markdown, report.notes)]
    if report.signatures:
        signatures = (
            f"- {escape_markdown(metric)}: {markdown_code(how)}"
            for metric, how in report.signatures.items()
        )
        parts.append("Signatures:\n\n" + "\n".join(signatures))
    for title, (heading, *lines), note in other_tables(report):
        parts += [
            f"**{title}**",
            markdown_table(heading, lines),
            *([escape_markdown(note)] if note else []),
        ]
    return "\n\n".join(parts) + "\n"


def rows_csv(report: Report) -> str:
    """Write a report's rows as CSV, one line for each row, without rounding.

    ``left_out`` counts the runs that are missing from a row's numbers. Rows without runs are listed too.
    """
    records, main = [], report.main
    for row in report.rows:
        record: dict[str, object] = {"row": row.name, "title": row.title, "paper": row.paper}
        record["runs"], record["left_out"] = len(row.runs), len(row.left_out)
        for metric in report.metrics.names:
            record[f"{metric}_mean"] = row.mean(metric)
            record[f"{metric}_sd"] = row.deviation(metric)
        if len(report.texts) > 1:
            for number, text in enumerate(report.texts):
                record[f"{main}_{text.name}_mean"] = row.mean(main, number)
                record[f"{main}_{text.name}_sd"] = row.deviation(main, number)
        for metric in report.metrics.tested:
            record[f"{metric}_difference"] = report.difference(row, metric)
            by_seeds = row.by_seeds.get(metric)
            for name in _BY_SEEDS:
                record[f"{metric}_{name}"] = by_seeds and getattr(by_seeds, name)
            comparison = row.by_sentences.get(metric)
            record[f"{metric}_sentence_p"] = comparison and comparison.p
            record[f"{metric}_better"] = comparison and comparison.better
            record[f"{metric}_worse"] = comparison and comparison.worse
        for name in ("parameters", "updates", "words_per_second", "hours"):
            record[name] = row.median(name)
        record["hardware"] = row.hardware
        record["sentences_per_second"] = row.speed(parsed=False)
        record["sentences_per_second_with_parsing"] = row.speed(parsed=True)
        records.append(record)
    return _csv(records)


def runs_csv(report: Report) -> str:
    """Write a report's runs as CSV, one line for each run, without rounding."""
    records = []
    for row in report.rows:
        for number, run in enumerate(row.runs):
            record: dict[str, object] = {"row": row.name, "seed": run.seed, "path": str(run.path)}
            record |= {metric: row.run_scores(metric)[number] for metric in report.metrics.names}
            if len(report.texts) > 1:
                for text, scores in zip(report.texts, row.scores[number], strict=True):
                    record |= {f"{metric} {text.name}": scores[metric] for metric in scores}
            for phenomenon, accuracy in (row.contrastive[number] if report.pairs else {}).items():
                record[f"{phenomenon} total"] = accuracy.total
                record[f"{phenomenon} mean"] = accuracy.mean
            for name in ("parameters", "updates", "words_per_second", "hours", "devices", "gpu"):
                record[name] = getattr(run.training, name)
            record["beam"], record["batch"] = run.generation.beam, run.generation.batch
            record["sentences_per_second"] = run.generation.speed
            record["sentences_per_second_with_parsing"] = run.parsed_speed
            records.append(record)
    return _csv(records)


def scores_json(report: Report) -> str:
    """Write the scores of each row and test set in sacrebleu's JSON form."""
    scores = []
    for row in report.shown_rows:
        for number, text in enumerate(report.texts if row.runs else ()):
            for metric in report.metrics.names:
                signature = report.signatures.get(f"{metric} {text.name}") or (
                    report.signatures.get(metric, "")
                )
                score = row.mean(metric, number)
                entry = {"name": metric, "score": score, "signature": signature}
                run_of = {"model": row.title, "seeds": len(row.runs), "test_set": text.name}
                scores.append(entry | run_of)
    return json.dumps(scores, indent=2, ensure_ascii=False) + "\n"


def _csv(records: Sequence[dict[str, object]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def latex(report: Report) -> str:
    """Write a report as LaTeX tables, for the package booktabs."""
    signatures = "; ".join(
        f"{_latex(metric)}: \\texttt{{{_latex(signature).replace(_BAR, _BAR + _BREAK)}}}"
        for metric, signature in report.signatures.items()
    )
    notes = " ".join(
        [
            *(_latex(f"Left out: {problem}.") for problem in report.left_out),
            *map(_latex, report.notes),
        ]
    )
    tables = [
        "% needs \\usepackage{booktabs}",
        *_latex_table(
            table_cells(report),
            report.caption,
            f"{notes} Signatures: {signatures}." if signatures else notes,
        ),
    ]
    if report.pairs:
        caption = f"{CONTRASTIVE}: {report.caption}"
        tables += _latex_table(contrastive_cells(report), caption, _latex(CONTRASTIVE_NOTE))
    return "\n".join([*tables, ""])


def _latex_table(cells: Sequence[Sequence[str]], caption: str, notes: str) -> list[str]:
    """Return a table's lines; the notes are LaTeX already."""
    heading, *lines = [" & ".join(map(_latex, line)) + r" \\" for line in cells]
    return [
        "\\begin{table*}",
        "\\centering\\small",
        f"\\begin{{tabular}}{{l{'r' * (len(cells[0]) - 1)}}}",
        "\\toprule",
        heading,
        "\\midrule",
        *lines,
        "\\bottomrule",
        "\\end{tabular}",
        f"\\caption[{_latex(caption)}]{{{_latex(caption)}. {notes}}}",
        "\\end{table*}",
    ]


_BAR, _BREAK = r"\textbar{}", r"\allowbreak{}"  # lines of signatures may break after a bar
_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "[": "{[}", "]": "{]}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "±": r"$\pm$", "Δ": r"$\Delta$", "σ": r"$\sigma$", "<": r"$<$",
    ">": r"$>$", "|": _BAR,
})  # fmt: skip


def _latex(text: str) -> str:
    return text.translate(_LATEX)
