"""From run directories to a report: read, score, compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairseq_phrase.errors import UserError
from fairseq_phrase.metrics.base import Metrics
from fairseq_phrase.metrics.measures import LABELLING, Measure
from fairseq_phrase.metrics.over_seeds import RESAMPLES
from fairseq_phrase.metrics.over_sentences import TRIALS, random_seed
from fairseq_phrase.report.compare import compare_over_seeds, compare_over_sentences
from fairseq_phrase.report.contrastive import MinimalPairs, accuracies
from fairseq_phrase.report.notes import table_notes
from fairseq_phrase.report.references import ReferenceText
from fairseq_phrase.report.row_file import RowTitle
from fairseq_phrase.report.rows import Report, Row
from fairseq_phrase.report.runs import Run, RunFolder, check_alike, read_run
from fairseq_phrase.report.same_text import check_same_sources


@dataclass(frozen=True)
class ReportOptions:
    """What a report contains.

    Attributes:
        baseline: the row that the others are compared with; None for no comparison.
        test: ``auto``: over seeds if both rows have at least two seeds, and paired approximate
            randomization over sentences; ``seeds``: the same, but fewer seeds are an error; ``ar`` and
            ``bs``: over sentences only; ``mcnemar``: over labels or outputs that are right or wrong;
            ``none``.
        trials: number of trials of each test; 0 for 10,000.
        measure: what is measured.
        partial: leave out runs that are not finished, and say so.
        needs_training: whether a run without a finished training log is an error.
        titles: titles and papers' numbers by row, in the table's order.
        caption: the table's title.
        pairs: minimal pairs that every run has scored; empty for none.

    Raises:
        UserError: the test does not fit what is measured.
    """

    baseline: str | None = None
    test: str = "auto"
    trials: int = 0
    measure: Measure = field(default_factory=Measure)
    partial: bool = False
    needs_training: bool = True
    titles: Mapping[str, RowTitle] = field(default_factory=dict)
    caption: str = "Results"
    pairs: Sequence[MinimalPairs] = ()

    def __post_init__(self) -> None:
        """Check the test."""
        if self.test == "mcnemar" and not self.measure.right_or_wrong:
            raise UserError(
                f"--test mcnemar --measure {self.measure.name}: McNemar's test compares outputs that are "
                "right or wrong one by one, as with --measure labels or exact; use --test ar"
            )

    @property
    def sentence_test(self) -> str | None:
        """The test over sentences: ``ar``, ``bs``, ``mcnemar`` for right or wrong items; None without."""
        usual = "mcnemar" if self.measure.right_or_wrong else "ar"
        names = {"auto": usual, "seeds": usual, "none": None}
        return names.get(self.test, self.test)


def make_report(
    folders: Sequence[RunFolder], texts: Sequence[ReferenceText], options: ReportOptions
) -> Report:
    """Read runs, score them, and test them against the baseline.

    Args:
        folders: the runs' folders.
        texts: the test sets, with their reference translations.
        options: what the report contains.

    Raises:
        UserError: a run is not finished (and the report may not be partial), the runs cannot be compared,
            the baseline is missing, a row has one seed although a test over seeds is required, or a run
            has not scored the minimal pairs.
    """
    names = {folder.row for folder in folders}
    if options.baseline is not None and options.baseline not in names:
        raise UserError(
            f"the baseline '{options.baseline}' is not among the rows: {', '.join(sorted(names))}"
        )
    runs, problems = _read_runs(folders, texts, options)
    check_alike(runs)
    for text in texts:
        check_same_sources([(run.path, run.generations[text.subset]) for run in runs])
    rows = _rows(folders, runs, options)
    baseline = next((row for row in rows if row.name == options.baseline), None)
    if baseline is not None and not baseline.runs:
        raise UserError(
            f"the baseline '{baseline.name}' has no finished run:\n" + "\n".join(problems)
        )
    _check_titles(rows)
    if options.test == "seeds":
        _check_seeds(rows, baseline)
    for row in rows if options.pairs else ():
        row.contrastive = [accuracies(run, options.pairs) for run in row.runs]
    metrics = [options.measure.metrics(text.references, text.sources) for text in texts]
    _score(rows, metrics, texts)
    settings: dict[str, object] = {}
    if baseline is not None and options.sentence_test is not None:
        compare_over_sentences(rows, baseline, metrics, options.sentence_test, options.trials)
        settings = {"seed": random_seed(), options.sentence_test: options.trials or TRIALS}
    if baseline is not None and options.test in ("auto", "seeds"):
        compare_over_seeds(rows, baseline, metrics[0], options.trials or RESAMPLES)
    return Report(
        caption=_caption(options.caption, rows, problems),
        rows=rows,
        baseline=baseline,
        metrics=metrics[0],
        texts=texts,
        signatures=metrics[0].signatures(**settings),
        left_out=problems,
        notes=[
            *table_notes(rows, baseline, metrics[0], texts, options.sentence_test, options.trials),
            *dict.fromkeys(note for one in metrics for note in one.notes),
        ],
        pairs=options.pairs,
    )


def _read_runs(
    folders: Sequence[RunFolder], texts: Sequence[ReferenceText], options: ReportOptions
) -> tuple[list[Run], list[str]]:
    """Read the finished runs.

    Returns:
        The finished runs, and for each other run a line that says what is wrong.

    Raises:
        UserError: a run cannot be reported and the report may not be partial, or no run can be reported.
    """
    runs, problems = [], []
    for folder in folders:
        try:
            runs.append(
                read_run(folder, texts, options.needs_training, options.measure.name in LABELLING)
            )
        except UserError as error:
            problems.append(str(error))
    if problems and not options.partial:
        advice = ["--partial leaves them out, and says so in the table"]
        raise UserError(
            "\n".join(
                [
                    f"{_count(len(problems), 'run')} cannot be reported:",
                    *problems,
                    *(advice if options.needs_training else []),
                ]
            )
        )
    if not runs:
        raise UserError("\n".join(["no run can be reported:", *problems]))
    return runs, problems


def _rows(
    folders: Sequence[RunFolder], runs: Sequence[Run], options: ReportOptions
) -> list[Row]:  # fmt: skip
    """Group runs into rows, in this order: the file of rows, the baseline, the arguments."""
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
    """Add to the caption which runs are missing and how p is corrected."""
    present = sum(1 for row in rows if not row.absent)
    if present < len(rows):
        caption = f"{caption} ({present} of {len(rows)} rows)"
    compared = sum(1 for row in rows if row.by_seeds)
    if compared > 1:
        caption = f"{caption}; p corrected by Holm's method for {compared} comparisons"
    return f"PARTIAL TABLE: {caption}" if problems else caption


def _check_titles(rows: Sequence[Row]) -> None:
    """Check that no two rows of the table have the same title.

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


def _check_seeds(rows: Sequence[Row], baseline: Row | None) -> None:
    """Check that a test over seeds is possible.

    Raises:
        UserError: the baseline is missing, or a row has fewer than two seeds.
    """
    if baseline is None:
        raise UserError("--test seeds compares rows with a baseline: name one with --baseline ROW")
    few = [row for row in rows if not row.absent and len(row.runs) < 2]
    if few:
        counts = ", ".join(f"'{row.name}' has {len(row.runs)}" for row in few)
        raise UserError(
            f"--test seeds needs at least two seeds of each row: {counts}. Train more seeds (the tables' "
            "scripts: --seeds 1,2,3), or leave --test out: rows with one seed then have no p over seeds"
        )


def _score(
    rows: Sequence[Row], metrics: Sequence[Metrics], texts: Sequence[ReferenceText]
) -> None:  # fmt: skip
    """Score all runs; fills the rows' statistics and scores.

    Raises:
        UserError: a run's output does not fit the reference.
    """
    for row in rows:
        for run in row.runs:
            found = []
            for metric, text in zip(metrics, texts, strict=True):
                try:
                    found.append(metric.statistics(run.generations[text.subset].hypotheses))
                except UserError as error:
                    raise UserError(f"{run.path}, test set '{text.subset}': {error}") from None
            row.statistics.append(found)
            row.scores.append(
                [
                    {
                        name: metrics[0].score(name, counts.sum(0))
                        for name, counts in one_set.items()
                    }
                    for one_set in found
                ]
            )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
