"""Notes below a report's table: what differs or is missing, and what its tests mean (docs/compare.md).

Each function writes one kind of note, or nothing; `_NOTES` has them in the order below the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fairseq_phrase.lab.report.generation import other_lines
from fairseq_phrase.lab.report.rows import Report, Row
from fairseq_phrase.lab.report.runs import Run
from fairseq_phrase.lab.report.text_form import form_differences
from fairseq_phrase.metrics.over_sentences import LEVEL, TESTS

_ENOUGH_SEEDS, _CLAIM = 3, 5  # seeds of a comparison, and of a claim
#: Values of options without effect, as fairseq logs them.
_OFF = {"None", "False", "0", "0.0", "''", "[]", "{}"}


def table_notes(report: Report) -> list[str]:
    """State what limits the comparison of a table's rows, and what its numbers are."""
    return [note for write in _NOTES for note in write(report)]


# Texts and outputs


def _table(report: Report) -> Iterator[str]:
    if absent := [row.title for row in report.rows if row.absent]:
        yield f"Rows without runs: {'; '.join(absent)}."
    if len(report.texts) > 1:
        names = ", ".join(text.name for text in report.texts)
        yield f"Test sets: {names}. Columns that name none of them are means over all of them."
    if any(len(row.runs) > 1 for row in report.rows):
        yield "Scores are means over the seeds ± their standard deviation (n - 1)."


def _texts(report: Report) -> Iterator[str]:
    """The files of a test set are not what fairseq translated, or have another form than the outputs."""
    for text in report.texts:
        of = f" of {text.name}" if len(report.texts) > 1 else ""
        outputs = [(row, run.generations[text.subset]) for row, run in report.runs]
        targets = {tuple(output.targets) for _, output in outputs}
        sources = {tuple(output.sources) for _, output in outputs}
        files = [text.sources or outputs[0][1].sources]
        for kind, printed, expected, effect in (
            ("reference", targets, text.references, "their scores compare different sentences"),
            ("source", sources, files, "the models read different sentences"),
        ):
            lines = {line for output in printed for line in other_lines(output, expected)}
            if lines:
                yield (
                    f"{len(lines):,} of {len(text.lines):,} lines of the {kind}{of} are not what fairseq "
                    f"printed, the first of them line {min(lines) + 1}: {effect}."
                )
        if report.metrics.outputs != "translations":
            continue
        forms = _titles_by(
            (form, row)
            for row, output in outputs
            for form in form_differences(output.hypotheses, text.lines)
        )
        for form, titles in forms.items():
            names = "; ".join(titles) if len(titles) < len(report.rows_with_runs) else "all rows"
            are = "are" if form.startswith("not ") else "are not"
            yield (
                f"The reference{of} is {form} and these translations {are}, so that the scores count "
                f"this difference: {names}."
            )


def _same_outputs(report: Report) -> Iterator[str]:
    """Runs may be one training: they have the same outputs, which are not all correct."""
    runs_by_output: dict[tuple[str, ...], list[tuple[Row, Run]]] = {}
    for row, run in report.runs:
        runs_by_output.setdefault(tuple(run.hypotheses), []).append((row, run))
    for output, runs in runs_by_output.items():
        if output != tuple(report.references) and len({row.name for row, _ in runs}) > 1:
            names = (
                row.title + ("" if run.seed is None else f", seed {run.seed}") for row, run in runs
            )
            yield f"Runs of different rows have the same outputs: {'; '.join(names)}."
    if repeated := [row.title for row in report.rows if row.repeated]:
        yield (
            "Two runs of a row have the same outputs, so that they may be one training, and the row has "
            f"no p over seeds: {'; '.join(repeated)}."
        )


# Trainings


def _runs_of_a_row(report: Report) -> Iterator[str]:
    """The trainings of a row differ in more than the seed."""
    for row in report.rows:
        logs = [run.training for run in row.runs]
        updates = sorted({log.updates for log in logs if log.updates})
        if len(updates) > 1:
            counts = ", ".join(f"{count:,}" for count in updates)
            yield f"Runs of {row.title} have different numbers of updates: {counts}."
        trees = [log.identity.only("parser", "trees").labels() for log in logs if log.identity]
        differing = _differing([log.options for log in logs if log.options])
        differing |= _differing(_recorded_by_all([log.sentences for log in logs]))
        differing |= _differing(_recorded_by_all(trees))
        if differing:
            yield f"Runs of {row.title} differ in {_listed(differing)}."


def _data(report: Report) -> Iterator[str]:
    """The rows are trained on different data: they compare data, too, not only models."""
    logs = [row.runs[0].training for row in report.rows_with_runs]
    parts = ("languages", "source", "target", "text")
    data = [log.identity.only(*parts).labels() for log in logs if log.identity]
    differing = _differing(_recorded_by_all(data))
    differing |= _differing(_recorded_by_all([log.sentences for log in logs]))
    if differing:
        yield f"Rows are trained on data that differ in {_listed(differing)}."


def _precisions(report: Report) -> Iterator[str]:
    rows = _titles_by((name, row) for row, run in report.runs if (name := _precision(run)))
    if len(rows) > 1:
        names = "; ".join(f"{name} ({', '.join(titles)})" for name, titles in sorted(rows.items()))
        yield f"Rows are trained in different precisions: {names}."


def _precision(run: Run) -> str:
    """Return ``bf16``, ``fp16`` or ``fp32``; an empty text without a training's configuration."""
    options = run.training.options
    if "fp16" not in options:
        return ""
    return next((name for name in ("fp16", "bf16") if options.get(name) == "True"), "fp32")


def _allowed_differences(report: Report) -> Iterator[str]:
    """The data or models differ from those of a training or a translation, which the user allowed."""
    for row in report.rows:
        records = [run.training.identity for run in row.runs]
        outputs = [output for run in row.runs for output in run.generations.values()]
        texts = [text for record in records if record for text in record.allowed]
        texts += [text for output in outputs for text in output.differences]
        if texts:
            yield f"Differences that {row.title} let pass: {'; '.join(dict.fromkeys(texts))}."


def _titles_by(pairs: Iterable[tuple[str, Row]]) -> dict[str, list[str]]:
    """Return the titles of rows by what they have."""
    titles: dict[str, dict[str, None]] = {}
    for name, row in pairs:
        titles.setdefault(name, {})[row.title] = None
    return {name: [*rows] for name, rows in titles.items()}


def _differing(facts: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Return the values of each setting that differs, by name; ``-`` where it is not recorded.

    A setting that is off does not differ from one that an earlier version did not have.
    """
    differing = {}
    for name in dict.fromkeys(name for mapping in facts for name in mapping):
        values = list(dict.fromkeys(mapping.get(name, "-") for mapping in facts))
        is_off = len(values) == 2 and "-" in values and _OFF & {*values}
        if len(values) > 1 and not is_off:
            differing[name] = values
    return differing


def _recorded_by_all(records: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the entries that all records have: an earlier version recorded fewer."""
    return [
        {name: value for name, value in record.items() if all(name in other for other in records)}
        for record in records
    ]


def _listed(differing: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{name} ({', '.join(values)})" for name, values in differing.items())


# Tests against the baseline


def baseline_notes(report: Report) -> Iterator[str]:
    """State what the differences from the baseline and the test over seeds are."""
    metric, baseline = report.main, report.baseline
    if baseline is None or report.rows_with_runs == [baseline]:
        return
    yield f"Δ{metric}: the row's mean less that of {baseline.title}."
    if report.metrics.people_agree(metric, 0.0) is not None:
        yield (
            f"People agree: how often people prefer the same one of two systems with this Δ{metric} "
            "(Kocmi et al., 2024); 50% is chance."
        )
    if compared := [row for row in report.rows_with_runs if metric in row.by_seeds]:
        count = len(compared)
        holm = f" It is corrected by Holm's method for {count} comparisons." if count > 1 else ""
        yield (
            "95% interval and p: for another training of both models, tested on other sentences; "
            "Student's t with Satterthwaite's degrees of freedom, from the variances over seeds and over "
            f"sentences ({report.trials:,} resamples).{holm}"
        )
        fewest = min(len(row.runs) for row in (*compared, baseline))
        if fewest < _ENOUGH_SEEDS:
            few = f"With fewer than {_ENOUGH_SEEDS} seeds of a row"
            yield f"{few}, the interval is wide and p says little."
        # The shares are measured by benchmarks/null_trials.py.
        rough = " With 2 or 3 seeds it is found in 58 to 78%." if fewest < _CLAIM else ""
        yield (
            f"Smallest gain found in 80%: the smallest Δ{metric} that this test finds in 80% of the "
            f"cases (p < {LEVEL}, before Holm's correction), if seeds vary as these do.{rough}"
        )
    if len(baseline.runs) == 1:
        yield (
            f"{baseline.title} has 1 seed: no p over seeds. Another training of it may differ from this "
            "one by as much as the rows do."
        )


def _over_sentences(report: Report) -> Iterator[str]:
    metric, test, baseline = report.main, report.sentence_test, report.baseline
    pairs = [row.by_sentences[metric].pairs for row in report.rows if metric in row.by_sentences]
    if baseline is not None and test is not None and pairs:
        median = f": the median over the seeds; how many are better (+) and worse (-), p < {LEVEL}"
        count = "" if test == "mcnemar" else f" ({report.trials:,} trials)"
        corrected = f"; not corrected for {len(pairs)} comparisons" if len(pairs) > 1 else ""
        yield (
            f"p, sentences: {TESTS[test]}{count} of {metric}, each run against that of {baseline.title} "
            f"with the same seed{median if max(pairs) > 1 else ''}{corrected}. It is for these very "
            "trainings on other sentences."
        )


# Checkpoints, searches and costs


def _choices(report: Report) -> Iterator[str]:
    """Checkpoints or searches were chosen differently: the rows' scores depend on that, too."""
    metrics = {run.training.best_metric or "loss" for _, run in report.runs}
    for metric in sorted(metrics - {"loss"}):
        yield f"Training chose its best checkpoint by {metric} on the validation set."
    outputs = [output for _, run in report.runs for output in run.generations.values()]
    searches = {output.search for output in outputs} - {None}
    for what, values, comma in (
        ("Beams differ", {str(output.beam) for output in outputs if output.beam}, ", "),
        ("Options of the search differ", {s or "fairseq's defaults" for s in searches}, "; "),
        ("Translations are of checkpoints of different names",
         {str(output.models) for output in outputs if output.models}, "; "),
    ):  # fmt: skip
        if len(values) > 1:
            yield f"{what}: {comma.join(sorted(values))}."


def _costs(report: Report) -> Iterator[str]:
    """State what the columns of speed and time are."""
    if hardware := sorted({row.hardware for row in report.rows if row.hardware is not None}):
        yield (
            f"Trained on {'; '.join(hardware)}. Words/s: {report.metrics.counted} per second of "
            "training, the median. Hours: of all processes, times the devices, with resumptions and "
            "validations."
        )
    if any(row.speed(parsed=False) for row in report.rows):
        outputs = [run.generation for _, run in report.runs]
        batches = {f"beam {o.beam or '?'}, batches of {o.batch or 'unknown size'}" for o in outputs}
        yield f"Sentences/s: fairseq-generate's own ({'; '.join(sorted(batches))}), of parsed data."
    if any(row.speed(parsed=True) for row in report.rows):
        yield "With parsing: fairseq-interactive's, from raw text; loading model and parser counts."


_NOTES = (
    _table, _texts, _same_outputs, _runs_of_a_row, _data, _precisions, _allowed_differences,
    baseline_notes, _over_sentences, _choices, _costs,
)  # fmt: skip
