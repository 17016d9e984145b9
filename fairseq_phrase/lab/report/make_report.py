"""Reports from run directories: reading, scoring and comparing runs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fairseq_phrase.errors import UserError
from fairseq_phrase.lab.report.contrastive import MinimalPairs, accuracies
from fairseq_phrase.lab.report.generation import check_same_sources
from fairseq_phrase.lab.report.notes import table_notes
from fairseq_phrase.lab.report.references import ReferenceText
from fairseq_phrase.lab.report.rows import Report, Row, RowTitle
from fairseq_phrase.lab.report.runs import Run, RunFolder, check_alike, read_run
from fairseq_phrase.metrics.interface import Metrics
from fairseq_phrase.metrics.measure_registry import LABELLING, Measure
from fairseq_phrase.metrics.over_seeds import compare_seeds, holm, resample_sentences
from fairseq_phrase.metrics.over_sentences import (
    TRIALS,
    mcnemar_p_value,
    random_seed,
    sentence_p_value,
    summarize,
)


def compare_over_sentences(
    rows: Sequence[Row], baseline: Row, metrics: Sequence[Metrics], test: str, trials: int
) -> None:
    """Test each run against the baseline's run of the same seed, in each metric.

    McNemar's test compares the items of the main metric only. Fills ``by_sentences`` of the rows, which
    are scored.
    """
    for row in rows:
        if row is baseline:
            continue
        pairs = row.same_seeds(baseline)
        for metric in metrics[0].tested[: 1 if test == "mcnemar" else None]:
            tests = []
            for ours, theirs in pairs:
                if test == "mcnemar":
                    runs = (row.runs[ours], baseline.runs[theirs])
                    p = mcnemar_p_value(*(_correct_items(run, metrics) for run in runs))
                else:
                    p = sentence_p_value(
                        [statistics[metric] for statistics in row.statistics[ours]],
                        [statistics[metric] for statistics in baseline.statistics[theirs]],
                        functools.partial(metrics[0].scores, metric),
                        test,
                        trials,
                    )
                difference = row.run_scores(metric)[ours] - baseline.run_scores(metric)[theirs]
                tests.append((p, difference))
            comparison = summarize(tests, metric in metrics[0].lower_is_better)
            if comparison is not None:
                row.by_sentences[metric] = comparison


def compare_over_seeds(
    rows: Sequence[Row], baseline: Row, metrics: Metrics, resamples: int
) -> None:
    """Test each row with two seeds or more against the baseline, in each metric, corrected by Holm.

    Fills ``by_seeds`` of the rows, which are scored.
    """
    tested = [
        row
        for row in (baseline, *(row for row in rows if row is not baseline))
        if len(row.runs) > 1 and not row.repeated
    ]
    if baseline not in tested:
        return
    ends = np.cumsum([len(row.runs) for row in tested])
    for metric in metrics.tested:
        runs = [
            [statistics[metric] for statistics in run] for row in tested for run in row.statistics
        ]
        scores_of = functools.partial(metrics.scores, metric)
        # (runs, resamples) -> for each row (seeds, resamples)
        resampled = np.split(resample_sentences(runs, scores_of, resamples), ends[:-1])
        scores = [np.array(row.run_scores(metric)) for row in tested]
        comparisons = []
        for row, scores_of_row, own_resampled in zip(
            tested[1:], scores[1:], resampled[1:], strict=True
        ):
            comparison = compare_seeds(scores_of_row, scores[0], own_resampled, resampled[0])
            if comparison is not None:
                comparisons.append((row, comparison))
        corrected = holm([comparison.p for _, comparison in comparisons])
        for (row, comparison), p in zip(comparisons, corrected, strict=True):
            row.by_seeds[metric] = dataclasses.replace(comparison, p_holm=p)


def _correct_items(run: Run, metrics: Sequence[Metrics]) -> NDArray[np.bool_]:
    """Return which items of all test sets a run has correct. Shape: (items,)."""
    outputs = [generation.hypotheses for generation in run.generations.values()]
    items_of_tests = [
        metric.correct_items(lines) for metric, lines in zip(metrics, outputs, strict=True)
    ]
    return np.concatenate([items for items in items_of_tests if items is not None])


@dataclass(frozen=True)
class ReportOptions:
    """The choices for a report.

    Attributes:
        baseline: the row that the others are compared with; None for no comparison.
        test: ``auto``: over seeds if both rows have at least two seeds, and paired approximate
            randomization over sentences; ``seeds``: the same, but fewer seeds are an error; ``ar`` and
            ``bs``: over sentences only; ``none``.
        partial: leave out runs that are not finished, and note it.
        needs_training: whether a run without a finished training log is an error.
        titles: titles and papers' numbers by row, in the table's order.
        pairs: minimal pairs that every run has scored; empty for none.
    """

    baseline: str | None = None
    test: str = "auto"
    trials: int = TRIALS
    measure: Measure = field(default_factory=Measure)
    partial: bool = False
    needs_training: bool = True
    titles: Mapping[str, RowTitle] = field(default_factory=dict)
    caption: str = "Results"
    pairs: Sequence[MinimalPairs] = ()

    @property
    def sentence_test(self) -> str | None:
        """The test over sentences: ``ar``, ``bs``, ``mcnemar`` (correct or wrong items); None without."""
        usual = "mcnemar" if self.measure.right_or_wrong else "ar"
        names = {"auto": usual, "seeds": usual, "none": None}
        return names.get(self.test, self.test)


def make_report(
    folders: Sequence[RunFolder], texts: Sequence[ReferenceText], options: ReportOptions
) -> Report:
    """Read runs, score them, and test them against the baseline.

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
    language = next(filter(None, (run.training.target_language for run in runs)), None)
    metrics = [
        options.measure.metrics(text.references, text.sources, language or text.ending)
        for text in texts
    ]
    _check_names(metrics, texts)
    _score(rows, metrics, texts)
    settings: dict[str, object] = {}
    if baseline is not None and options.sentence_test is not None:
        compare_over_sentences(rows, baseline, metrics, options.sentence_test, options.trials)
        settings = {"seed": random_seed(), options.sentence_test: options.trials}
    if baseline is not None and options.test in ("auto", "seeds"):
        compare_over_seeds(rows, baseline, metrics[0], options.trials)
    report = Report(
        caption=_caption(options.caption, rows, problems),
        rows=rows,
        baseline=baseline,
        metrics=metrics[0],
        texts=texts,
        signatures=_signatures(metrics, texts, settings),
        left_out=problems,
        sentence_test=options.sentence_test,
        trials=options.trials,
        pairs=options.pairs,
    )
    report.notes.extend(table_notes(report))
    report.notes.extend(dict.fromkeys(note for metric in metrics for note in metric.notes))
    return report


def _signatures(
    metrics: Sequence[Metrics], texts: Sequence[ReferenceText], settings: Mapping[str, object]
) -> dict[str, str]:
    """Return how each metric is computed on the first test set, and on others where it differs."""
    first = metrics[0].signatures(**settings)
    signatures = dict(first)
    for set_metrics, text in zip(metrics[1:], texts[1:], strict=True):
        for metric, signature in set_metrics.signatures(**settings).items():
            if signature != first[metric]:
                signatures[f"{metric} {text.name}"] = signature
    return signatures


def _read_runs(
    folders: Sequence[RunFolder], texts: Sequence[ReferenceText], options: ReportOptions
) -> tuple[list[Run], list[str]]:
    """Read the finished runs.

    Returns:
        The finished runs, and for each other run a line that states the problem.
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
        count = "1 run" if len(problems) == 1 else f"{len(problems)} runs"
        message = [f"{count} cannot be reported:", *problems]
        if options.needs_training:
            message.append("--partial leaves them out, and marks the table")
        raise UserError("\n".join(message))
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
        missing = [folder for folder in folders if folder.row == name and folder.path not in read]
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
    by_title: dict[str, Row] = {}
    for row in rows:
        first = by_title.setdefault(row.title, row)
        if first is not row:
            raise UserError(
                f"rows '{first.name}' and '{row.name}' have the same title, '{row.title}'"
            )


def _check_names(metrics: Sequence[Metrics], texts: Sequence[ReferenceText]) -> None:
    for metric, text in zip(metrics, texts, strict=True):
        if differing := {*metric.names} ^ {*metrics[0].names}:
            raise UserError(
                f"the test sets '{texts[0].name}' and '{text.name}' do not both have {min(differing)}: "
                "leave --known-words out, or make a report of each"
            )


def _check_seeds(rows: Sequence[Row], baseline: Row | None) -> None:
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
    """Score all runs; fills the rows' statistics and scores."""
    for row in rows:
        for run in row.runs:
            statistics = []
            for metric, text in zip(metrics, texts, strict=True):
                try:
                    metric_of_run = metric.of_run(run.path, text.subset, run.outputs[text.subset])
                    statistics.append(
                        metric_of_run.statistics(run.generations[text.subset].hypotheses)
                    )
                except UserError as error:
                    raise UserError(f"{run.path}, test set '{text.subset}': {error}") from None
            row.statistics.append(statistics)
            row.scores.append([metrics[0].scores_of(one_set) for one_set in statistics])
