"""From run directories to the rows of one table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairseq_phrase.errors import UserError
from fairseq_phrase.report.notes import table_notes
from fairseq_phrase.report.row_file import RowTitle
from fairseq_phrase.report.runs import Run, RunFolder, check_alike, read_run
from fairseq_phrase.report.same_text import check_same_sources
from fairseq_phrase.report.significance import Comparison, Metrics, summarize


@dataclass(frozen=True)
class ReportOptions:
    """What a report is to be made of.

    Attributes:
        baseline: the row that the others are compared with; None for no comparison.
        subset: the test set's name in fairseq.
        test: ``bs``, ``ar`` or ``none``.
        trials: of the test; 0 for sacrebleu's default.
        lowercase: add lower-cased BLEU.
        tokenizer: sacrebleu's name of the one that BLEU counts the words of.
        partial: leave out runs that have not come to their end, and say so.
        titles: titles and papers' numbers by row, in the table's order.
        caption: the table's title.
    """

    baseline: str | None = None
    subset: str = "test"
    test: str = "bs"
    trials: int = 0
    lowercase: bool = False
    tokenizer: str = "13a"
    partial: bool = False
    titles: Mapping[str, RowTitle] = field(default_factory=dict)
    caption: str = "Results"


@dataclass
class Row:
    """A row of the table.

    Attributes:
        name: its name, that of the run folder.
        title: how it is shown.
        paper: the paper's number.
        runs: its runs, by seed.
        left_out: runs that have not come to their end.
        scores: for each run, its scores by metric.
        comparisons: by metric; empty for the baseline and without a test.
    """

    name: str
    title: str
    paper: str | None
    runs: list[Run]
    left_out: list[RunFolder]
    scores: list[dict[str, float]] = field(default_factory=list)
    comparisons: dict[str, Comparison] = field(default_factory=dict)

    @property
    def absent(self) -> bool:
        """Whether nothing was run for it: the file of rows alone knows it."""
        return not self.runs and not self.left_out

    @property
    def by_seed(self) -> dict[int | None, tuple[Run, dict[str, float]]]:
        """Its runs and their scores by seed."""
        pairs = zip(self.runs, self.scores, strict=True)
        return {run.seed: (run, scores) for run, scores in pairs}

    def mean(self, metric: str) -> float | None:
        """Return the mean of a metric over the seeds."""
        return statistics.fmean(one[metric] for one in self.scores) if self.scores else None

    def deviation(self, metric: str) -> float | None:
        """Return the standard deviation over the seeds (n - 1); None with fewer than two."""
        if len(self.scores) < 2:
            return None
        return statistics.stdev(one[metric] for one in self.scores)

    def median(self, name: str) -> float | None:
        """Return the median over the runs of an attribute of their training logs."""
        values = [getattr(run.training, name) for run in self.runs]
        found = [value for value in values if value is not None]
        return statistics.median(found) if found else None

    def speed(self, parsed: bool) -> float | None:
        """Return the median over the runs of sentences translated per second."""
        values = [run.parsed_speed if parsed else run.generation.speed for run in self.runs]
        found = [value for value in values if value is not None]
        return statistics.median(found) if found else None

    @property
    def hardware(self) -> str | None:
        """What it was trained on, ``1 x NVIDIA H200`` or ``CPU``; None without runs."""
        kinds = {
            f"{run.training.devices} x {run.training.gpu}" if run.training.gpu else "CPU"
            for run in self.runs
        }
        return " and ".join(sorted(kinds)) or None


@dataclass(frozen=True)
class Report:
    """A table and what stands under it.

    Attributes:
        caption: its title, with a word of warning if runs were left out or rows are absent.
        rows: in order; those of the file of rows that nothing was run for, too.
        baseline: the baseline's row; None without one.
        metrics: names of the metrics, in order.
        references: the reference translations.
        tokenizer: BLEU's, by sacrebleu's name.
        signatures: sacrebleu's, by metric.
        left_out: what was left out, and why, a line each; not empty only in a partial report.
        notes: what a reader must know, a sentence each.
    """

    caption: str
    rows: list[Row]
    baseline: Row | None
    metrics: list[str]
    references: Sequence[str]
    tokenizer: str
    signatures: Mapping[str, str]
    left_out: list[str]
    notes: list[str]

    @property
    def shown(self) -> list[Row]:
        """The rows that something was run for."""
        return [row for row in self.rows if not row.absent]


def make_report(
    folders: Sequence[RunFolder], references: Sequence[str], options: ReportOptions
) -> Report:
    """Read runs, score them, and test them against the baseline.

    Args:
        folders: where the runs lie.
        references: the raw reference translations.
        options: what the report is to be made of.

    Raises:
        UserError: a run has not come to its end (and the report may not be partial), the runs cannot be
            compared, or the baseline is missing.
    """
    names = {folder.row for folder in folders}
    if options.baseline is not None and options.baseline not in names:
        raise UserError(
            f"the baseline '{options.baseline}' is not among the rows: {', '.join(sorted(names))}"
        )
    runs, problems = _read_runs(folders, references, options)
    check_alike(runs)
    check_same_sources([(run.path, run.generation) for run in runs])
    rows = _rows(folders, runs, options)
    baseline = next((row for row in rows if row.name == options.baseline), None)
    if baseline is not None and not baseline.runs:
        raise UserError(
            f"the baseline '{baseline.name}' has no run that came to its end:\n"
            + "\n".join(problems)
        )
    _check_titles(rows)
    metrics = Metrics(references, options.lowercase, options.tokenizer)
    for row in rows:
        row.scores = [metrics.score(run.generation.hypotheses) for run in row.runs]
    if baseline is not None and options.test != "none":
        _compare(rows, baseline, metrics, options)
    return Report(
        caption=_caption(options.caption, rows, problems),
        rows=rows,
        baseline=baseline,
        metrics=metrics.names,
        references=references,
        tokenizer=options.tokenizer,
        signatures=metrics.signatures(),
        left_out=problems,
        notes=table_notes(rows, baseline, options.test),
    )


def _read_runs(
    folders: Sequence[RunFolder], references: Sequence[str], options: ReportOptions
) -> tuple[list[Run], list[str]]:
    """Read the runs that came to their end.

    Returns:
        The runs, and what is wrong with the others, in a line each.

    Raises:
        UserError: something is wrong with one and the report may not be partial, or with all.
    """
    runs, problems = [], []
    for folder in folders:
        try:
            runs.append(read_run(folder, references, options.subset))
        except UserError as error:
            problems.append(str(error))
    if problems and not options.partial:
        raise UserError(
            "\n".join([f"{_count(len(problems), 'run')} cannot be reported:", *problems])
            + "\n--partial leaves them out, and says so in the table"
        )
    if not runs:
        raise UserError("\n".join(["no run can be reported:", *problems]))
    return runs, problems


def _rows(
    folders: Sequence[RunFolder], runs: Sequence[Run], options: ReportOptions
) -> list[Row]:  # fmt: skip
    """Put runs into rows: those of the file of rows, the baseline, then the others as they were named."""
    read = {run.path for run in runs}
    rows = []
    baseline = [] if options.baseline is None else [options.baseline]
    for name in dict.fromkeys([*options.titles, *baseline, *(folder.row for folder in folders)]):
        title = options.titles.get(name, RowTitle(name))
        mine = [run for run in runs if run.row == name]
        missing = [one for one in folders if one.row == name and one.path not in read]
        rows.append(Row(name, title.title, title.paper, mine, missing))
    return rows


def _caption(caption: str, rows: Sequence[Row], problems: Sequence[str]) -> str:
    """Say in the caption itself what the table lacks."""
    there = sum(1 for row in rows if not row.absent)
    if there < len(rows):
        caption = f"{caption} ({there} of {len(rows)} rows)"
    return f"PARTIAL TABLE: {caption}" if problems else caption


def _check_titles(rows: Sequence[Row]) -> None:
    """Refuse a table in which two rows look the same.

    Raises:
        UserError: two rows have one title.
    """
    by_title: dict[str, Row] = {}
    for row in rows:
        other = by_title.setdefault(row.title, row)
        if other is not row:
            raise UserError(
                f"rows '{other.name}' and '{row.name}' have the same title, '{row.title}'"
            )


def _compare(
    rows: Sequence[Row], baseline: Row, metrics: Metrics, options: ReportOptions
) -> None:  # fmt: skip
    """Test each row against the baseline's run of the same seed."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for seed, (run, scores) in baseline.by_seed.items():
        others = {
            row.name: row.by_seed[seed]
            for row in rows
            if row is not baseline and seed in row.by_seed
        }
        if not others:
            continue
        systems = {name: other.generation.hypotheses for name, (other, _) in others.items()}
        tested = metrics.compare(run.generation.hypotheses, systems, options.test, options.trials)
        for name, p_values in tested.items():
            for metric, p in p_values.items():
                difference = others[name][1][metric] - scores[metric]
                found.setdefault(name, {}).setdefault(metric, []).append((p, difference))
    for row in rows:
        for metric, pairs in found.get(row.name, {}).items():
            comparison = summarize(metric, pairs)
            if comparison is not None:
                row.comparisons[metric] = comparison


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
